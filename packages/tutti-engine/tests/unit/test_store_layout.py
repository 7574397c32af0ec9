# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.errors import GeometryError
from tutti_engine.store.layout import (
    MAX_FILES_PER_ROOT,
    MIN_FILE_BYTES,
    StoreLayout,
    choose_chunks_per_file,
)


@st.composite
def layouts(draw: st.DrawFn) -> StoreLayout:
    layers = draw(st.integers(1, 5))
    segment = 4096 * draw(st.integers(1, 9))
    chunk = -(-layers * segment // 16384) * 16384
    roots = draw(st.integers(1, 4))
    return StoreLayout(
        directories=tuple(f"/r{root}/ns" for root in range(roots)),
        num_layers=layers,
        segment_bytes=segment,
        chunk_bytes=chunk,
        chunks_per_file=draw(st.integers(1, 12)),
        num_chunks=draw(st.integers(1, 60)),
    )


@given(layouts())
def test_segments_lie_inside_their_files_and_never_overlap(layout: StoreLayout) -> None:
    taken: dict[int, set[int]] = {}
    unit = 4096
    for slot in range(layout.num_chunks):
        for layer in range(layout.num_layers):
            number, offset = layout.locate(slot, layer)
            assert number in layout.files()
            assert offset + layout.segment_bytes <= layout.file_bytes(number)
            pages = set(range(offset // unit, (offset + layout.segment_bytes) // unit))
            assert not pages & taken.setdefault(number, set())
            taken[number] |= pages
    assert sorted(taken) == layout.files()


@given(layouts())
def test_files_hold_exactly_the_chunks(layout: StoreLayout) -> None:
    total = sum(layout.file_bytes(number) for number in layout.files())
    assert total == layout.num_chunks * layout.chunk_bytes
    for number in (-1, layout.files()[-1] + len(layout.directories), 10**9):
        with pytest.raises(ValueError, match="has no file"):
            layout.file_bytes(number)


@given(layouts())
def test_neighbouring_slots_use_different_roots(layout: StoreLayout) -> None:
    roots = len(layout.directories)
    for slot in range(layout.num_chunks):
        path = layout.file_path(3, layout.locate(slot, 0)[0])
        assert path.startswith(f"{layout.directories[slot % roots]}/rank-3/")
        assert path.endswith(".seg")


@given(layouts(), st.integers(1, 60))
def test_places_stay_when_the_store_grows(layout: StoreLayout, more: int) -> None:
    larger = StoreLayout(
        **{name: getattr(layout, name) for name in StoreLayout.__slots__}
        | {"num_chunks": layout.num_chunks + more}
    )
    for slot in range(layout.num_chunks):
        assert larger.locate(slot, 0) == layout.locate(slot, 0)


@given(st.integers(1, 4096), st.integers(1, 10**7), st.integers(1, 8))
def test_few_large_files(units: int, num_chunks: int, num_roots: int) -> None:
    chunk_bytes = 16384 * units
    count = choose_chunks_per_file(chunk_bytes=chunk_bytes, num_chunks=num_chunks, num_roots=num_roots)
    assert count * chunk_bytes >= MIN_FILE_BYTES
    assert -(-num_chunks // num_roots) <= count * MAX_FILES_PER_ROOT


def test_layout_travels_to_workers() -> None:
    layout = StoreLayout(("/a", "/b"), 2, 8192, 16384, 4, 10, "id")
    assert pickle.loads(pickle.dumps(layout)) == layout


@pytest.mark.parametrize(("slot", "layer"), [(-1, 0), (10, 0), (0, -1), (0, 2)])
def test_foreign_places_are_refused(slot: int, layer: int) -> None:
    layout = StoreLayout(("/a",), 2, 8192, 16384, 4, 10)
    with pytest.raises(ValueError, match="outside"):
        layout.locate(slot, layer)


@pytest.mark.parametrize(
    "change",
    [
        {"directories": ()},
        {"segment_bytes": 4095},
        {"chunk_bytes": 20480},
        {"num_layers": 3},
        {"num_chunks": 0},
        {"chunks_per_file": True},
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict) -> None:
    sizes = {
        "directories": ("/a",),
        "num_layers": 2,
        "segment_bytes": 8192,
        "chunk_bytes": 16384,
        "chunks_per_file": 4,
        "num_chunks": 10,
    }
    with pytest.raises(GeometryError):
        StoreLayout(**(sizes | change))
