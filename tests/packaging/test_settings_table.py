# SPDX-License-Identifier: Apache-2.0
"""The package's README shows every setting as the code has it."""

from __future__ import annotations

import json
import re

import pytest

from tools.layers import ROOT

SHOWN = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", re.MULTILINE)


def test_the_packages_table_is_the_one_that_the_code_prints() -> None:
    table = pytest.importorskip("tutti_vllm.settings.table", reason="tutti-vllm is not installed here")
    text = (ROOT / "packages" / "tutti-vllm" / "README.md").read_text()
    shown = text.partition("<!-- settings: start -->\n")[2].partition("<!-- settings: end -->")[0]
    assert shown == table.markdown(), "`python -m tutti_vllm.settings.table` prints it"


def test_every_setting_has_a_meaning_in_the_code() -> None:
    table = pytest.importorskip("tutti_vllm.settings.table", reason="tutti-vllm is not installed here")
    rows = SHOWN.findall(table.markdown())
    assert len(rows) >= 20
    assert all(len(meaning) > 10 for _, _, meaning in rows)


def test_the_repositorys_table_names_the_defaults_of_the_code() -> None:
    table = pytest.importorskip("tutti_vllm.settings.table", reason="tutti-vllm is not installed here")
    code = {key: default for key, default, _ in SHOWN.findall(table.markdown())}
    readme = {key: default for key, default, _ in SHOWN.findall((ROOT / "README.md").read_text())}
    assert set(code) == set(readme)

    def value(shown: str) -> object:
        try:
            return json.loads(shown.strip("`"))
        except ValueError:
            return shown.strip("`")

    assert {key: value(default) for key, default in readme.items()} == {
        key: value(default) for key, default in code.items()
    }
