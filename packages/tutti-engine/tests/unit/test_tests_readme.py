# SPDX-License-Identifier: Apache-2.0
"""The table of covered mistakes names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMES = sorted(
    set(re.findall(r"`((?:unit|contract|fault)/[\w/]+\.py(?:::\w+)?)`", (TESTS / "README.md").read_text()))
)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_that_the_table_names_exists(name: str) -> None:
    path, _, test = name.partition("::")
    text = (TESTS / path).read_text()
    assert not test or re.search(rf"^(def {test}\(|{test} = |class {test}\b)", text, re.MULTILINE)


def test_the_table_was_read() -> None:
    assert len(NAMES) > 20
