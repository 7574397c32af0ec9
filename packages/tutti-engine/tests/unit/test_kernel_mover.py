# SPDX-License-Identifier: Apache-2.0
"""The mover on tutti-kv-kernels moves the same bytes as the one in pure Python."""

from __future__ import annotations

from array import array

import pytest

pytest.importorskip("torch", reason="the kernels' mover needs torch")
pytest.importorskip("tutti_kv_kernels", reason="the kernels' mover needs tutti-kv-kernels")

import torch

import tutti_kv_kernels as kernels
from tutti_engine import SKIP_BLOCK, Geometry
from tutti_engine.movers.kernels import KernelMover
from tutti_engine.movers.plain import PlainMover
from tutti_engine.testing.window import HostWindow

GEOMETRY = Geometry(num_layers=4, block_tokens=16, blocks_per_chunk=3, page_bytes=1040)
BLOCKS = 20
CHUNKS = [(4, 0, 19), (7, 3, 7), (1, 2, 3)]


class Side:
    """One mover with pages and a window of its own."""

    def __init__(self, make):
        torch.manual_seed(3)
        self.pages = [torch.randint(0, 256, (BLOCKS * 1040,), dtype=torch.uint8) for _ in range(4)]
        self.mover = make(self.pages)
        self.window = HostWindow(24, GEOMETRY.segment_bytes)
        self.mover.bind(self.window)


@pytest.fixture
def plain():
    return Side(lambda pages: PlainMover(GEOMETRY, [memoryview(page.numpy()) for page in pages]))


@pytest.fixture
def fast():
    layout = kernels.PagedLayout(0, 1040, 1040, BLOCKS)
    return Side(
        lambda pages: KernelMover(
            kernels.PagedCache.from_layouts({f"{i}": (page, layout) for i, page in enumerate(pages)})
        )
    )


class Counting:
    """A cache that counts the calls which reach the kernels."""

    def __init__(self, cache):
        self.cache = cache
        self.calls = []

    def gather(self, *arguments, **named):
        self.calls.append("gather")
        return self.cache.gather(*arguments, **named)

    def scatter(self, *arguments, **named):
        self.calls.append("scatter")
        return self.cache.scatter(*arguments, **named)


def test_all_layers_of_a_call_move_at_once(fast):
    fast.mover._cache = cache = Counting(fast.mover._cache)
    slots = list(range(12))
    sums = fast.mover.gather(range(4), CHUNKS, slots)
    assert all(fast.mover.scatter(range(4), slots, [(5, 6, 8), (9, 10, 11), (12, 13, 14)], sums))
    assert cache.calls == ["gather", "scatter"]


def test_a_block_out_of_range_in_one_layer_leaves_the_others_alone():
    """Layers may have their pages in memory of different sizes."""
    sizes = [BLOCKS, BLOCKS - 4]

    def make(pages):
        layouts = [kernels.PagedLayout(0, 1040, 1040, size) for size in sizes]
        return KernelMover(
            kernels.PagedCache.from_layouts({f"{i}": (pages[i], layout) for i, layout in enumerate(layouts)})
        )

    side = Side(make)
    before = bytes(side.window.memory)
    with pytest.raises(ValueError, match="15"):
        side.mover.gather((0, 1), [(0, 1, 18)], [0, 1])
    assert bytes(side.window.memory) == before


@pytest.mark.parametrize("layers", [range(4), (2,), (3, 0), array("q", [1, 2])])
def test_both_pack_the_same_bytes_and_unpack_them_again(plain, fast, layers):
    slots = array("q", range(5, 5 + 3 * len(layers)))
    sums = {}
    for side in (plain, fast):
        sums[side] = side.mover.gather(layers, CHUNKS, slots)
        assert len(sums[side]) == len(slots)
    assert bytes(plain.window.memory) == bytes(fast.window.memory)
    targets = [(5, 6, SKIP_BLOCK), (8, 9, 10), (11, SKIP_BLOCK, 12)]
    for side in (plain, fast):
        assert all(side.mover.scatter(layers, slots, targets, sums[side]))
    assert all(torch.equal(one, other) for one, other in zip(plain.pages, fast.pages))


def test_only_what_differs_is_left_out(fast):
    slots = [3, 9, 0, 5, 4, 2]
    sums = fast.mover.gather((1, 2), CHUNKS, slots)
    assert all(isinstance(value, int) and 0 <= value < 1 << 64 for value in sums)
    before = [page.clone() for page in fast.pages]
    fast.window.slot(5)[77] ^= 1
    matched = fast.mover.scatter((1, 2), slots, [(10, 11, 12), (13, 14, 15), (16, 17, 18)], list(sums))
    assert list(matched) == [True, True, True, False, True, True]
    assert torch.equal(fast.pages[2][10 * 1040 : 13 * 1040], before[2][10 * 1040 : 13 * 1040])
    assert not torch.equal(fast.pages[2][13 * 1040 : 16 * 1040], before[2][13 * 1040 : 16 * 1040])


def test_blocks_out_of_range_and_ragged_chunks_write_nothing(fast):
    window, pages = bytes(fast.window.memory), [page.clone() for page in fast.pages]
    with pytest.raises(ValueError, match="20"):
        fast.mover.gather((0,), [(0, 1, 20)], [0])
    with pytest.raises(ValueError, match="equally many blocks"):
        fast.mover.gather((0,), [(0, 1, 2), (3, 4)], [0, 1])
    with pytest.raises(ValueError, match="without checksums"):
        fast.mover.scatter((0,), [0], [(0, 1, 2)], None)
    assert bytes(fast.window.memory) == window
    assert all(torch.equal(page, old) for page, old in zip(fast.pages, pages))
