# SPDX-License-Identifier: Apache-2.0
"""Places of a store in memory are filled file by file in turn; those on drives one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.slot_order import FILES_AT_ONCE, RUN_BYTES, slot_order


def layout(*, chunks: int, per_file: int, roots: int = 1, chunk_bytes: int = RUN_BYTES) -> StoreLayout:
    directories = tuple(f"/{number}" for number in range(roots))
    return StoreLayout(directories, 1, 4096, chunk_bytes, per_file, chunks)


def yes(directory: str) -> bool:
    return True


@given(
    chunks=st.integers(1, 300),
    per_file=st.integers(1, 40),
    roots=st.integers(1, 3),
    chunk_bytes=st.sampled_from([16384, RUN_BYTES // 4, RUN_BYTES, 4 * RUN_BYTES]),
)
def test_every_slot_comes_once(chunks: int, per_file: int, roots: int, chunk_bytes: int) -> None:
    made = layout(chunks=chunks, per_file=per_file, roots=roots, chunk_bytes=chunk_bytes)
    assert sorted(slot_order(made, yes)) == list(range(chunks))


def test_large_chunks_that_are_filled_together_lie_in_different_files() -> None:
    made = layout(chunks=40 * FILES_AT_ONCE, per_file=20)
    files = [made.locate(slot, 0)[0] for slot in slot_order(made, yes)]
    for start in range(0, len(files), FILES_AT_ONCE):
        assert len(set(files[start : start + FILES_AT_ONCE])) == FILES_AT_ONCE
    # The second half of the files is not used before the first one is full.
    assert max(files[: len(files) // 2]) == FILES_AT_ONCE - 1


def test_small_chunks_stay_neighbours_as_far_as_one_request_goes() -> None:
    made = layout(chunks=64, per_file=16, chunk_bytes=RUN_BYTES // 4)
    assert list(slot_order(made, yes))[:9] == [0, 1, 2, 3, 16, 17, 18, 19, 32]


@pytest.mark.parametrize(
    ("chunks", "memory"), [(64, lambda each: False), (64, lambda each: each == "/0"), (16, yes)]
)
def test_drives_and_single_files_are_filled_from_the_first_place_on(chunks: int, memory: object) -> None:
    made = layout(chunks=chunks, per_file=16, roots=2 if chunks == 64 else 1)
    assert slot_order(made, memory) == range(chunks)
