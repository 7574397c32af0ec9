# SPDX-License-Identifier: Apache-2.0
"""Which blocks of which group a chunk is stored from and loaded to."""

import pytest

from tutti_engine import SKIP_BLOCK, CacheGroup, Geometry
from tutti_vllm.scheduler_side.block_tables import LoadTable, stored_blocks, stored_chunks

# Chunks of 64 tokens: four blocks of full attention, two of the window.
GEOMETRY = Geometry.of_groups(
    [CacheGroup((0,), 16, 512), CacheGroup((1,), 32, 512, window=50)], blocks_per_chunk=2
)


@pytest.mark.parametrize(
    ("full", "window", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14], ((5, 6, 7, 8), (13, 14))),
        ([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 13, 14], ((5, 6, 7, 8), (13, 14))),
        ([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 14], ((5, 6, 7, 8), ())),
        ([1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13], ((5, 6, 7, 8), ())),
        ([1, 2, 3, 4, 5, 6, 7], [11, 12, 13, 14], None),
        ([1, 2, 3, 4, 5, 0, 7, 8], [11, 12, 13, 14], None),
    ],
)
def test_what_a_chunk_is_stored_from(full, window, expected):
    assert stored_blocks(GEOMETRY, (full, window), 1) == expected


def test_a_chunk_that_only_a_window_kept_and_gave_up_is_not_stored():
    geometry = Geometry.of_groups([CacheGroup((0,), 16, 512, window=50)], blocks_per_chunk=2)
    assert stored_blocks(geometry, ([0, 0, 3, 4],), 0) is None
    assert stored_blocks(geometry, ([0, 0, 3, 4],), 1) == ((3, 4),)


PLAIN = Geometry.of_groups([CacheGroup((0,), 16, 512), CacheGroup((1,), 32, 512)], blocks_per_chunk=2)


@pytest.mark.parametrize("geometry", [GEOMETRY, PLAIN])
@pytest.mark.parametrize("holes", [(), (0,), (9,), (3, 10)])
@pytest.mark.parametrize("length", [16, 15, 7])
@pytest.mark.parametrize("places", [range(4), [0, 1, 2, 3], [1, 2], [0, 2, 3], [3], [2, 1], []])
def test_many_chunks_are_stored_from_the_same_blocks_as_each(geometry, holes, length, places):
    full = [0 if n in holes else 100 + n for n in range(length)]
    window = [0 if n in holes else 200 + n for n in range(length // 2)]
    keys = [b"key %d" % place for place in places]
    each = [(key, stored_blocks(geometry, (full, window), place)) for key, place in zip(keys, places)]
    found = stored_chunks(geometry, (full, window), keys, places)
    assert list(found) == [(key, blocks) for key, blocks in each if blocks is not None]


def test_a_load_fills_what_was_promised_and_nothing_else():
    # 32 tokens are here, up to 192 were promised; of the window the last 50 tokens have blocks.
    full = [91, 92, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 99]
    window = [93, 0, 0, 0, 25, 26, 98]
    table = LoadTable(GEOMETRY, (full, window), 32, 192)
    assert list(table.chunks) == [0, 1, 2]
    assert list(zip(*table.rows())) == [
        ((SKIP_BLOCK, SKIP_BLOCK, 3, 4), ()),
        ((5, 6, 7, 8), ()),
        ((9, 10, 11, 12), (25, 26)),
    ]
    assert table.promised() == (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 25, 26)


def test_a_window_that_begins_inside_a_chunk():
    window = [0, 0, 0, 24, 25, 26]
    table = LoadTable(GEOMETRY, (list(range(1, 13)), window), 0, 192)
    assert list(table.rows()[1]) == [(), (SKIP_BLOCK, 24), (25, 26)]


def test_a_token_without_a_block_cannot_be_loaded():
    table = LoadTable(GEOMETRY, ([1, 2, 0, 4], [11, 12]), 0, 64)
    with pytest.raises(ValueError, match="no block"):
        table.rows()
