# SPDX-License-Identifier: Apache-2.0
"""The support matrix is what the tests say."""

from __future__ import annotations

import pytest

from tools.support_matrix import PAGE, ROWS, markdown, where


def test_the_page_is_the_one_that_the_tool_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "`python tools/support_matrix.py` writes it"


def test_every_line_names_a_test_that_exists() -> None:
    assert len(ROWS) > 30
    assert all(row.tests and all(map(where, row.tests)) for row in ROWS)


@pytest.mark.parametrize(
    ("test", "place"),
    [
        ("tests/e2e/test_hits.py::test_chunked_prefill", "vLLM engine"),
        (
            "tests/e2e/test_data_parallel.py::test_engines_share_a_root_and_its_capacity_and_nothing_else",
            "vLLM engine, long",
        ),
        ("packages/tutti-runtime/tests/test_gpu.py::test_a_stream_never_hangs", "NVIDIA GPU"),
        ("packages/tutti-runtime/tests/test_contract.py::test_contract_on_a_block_device", "library, root"),
        ("packages/tutti-engine/tests/fault/test_hostile_store.py", "library"),
    ],
)
def test_where_follows_from_folder_and_marks(test: str, place: str) -> None:
    assert where(test) == place


@pytest.mark.parametrize("test", ["tests/e2e/test_hits.py::test_that_was_removed", "tests/e2e/test_gone.py"])
def test_a_line_whose_test_is_gone_fails(test: str) -> None:
    with pytest.raises(LookupError, match="does not exist"):
        where(test)
