# SPDX-License-Identifier: Apache-2.0
"""Caches from the numbers of vLLM's KVCacheTensor entries, against indexing of the backing memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tutti_kv_kernels as tk

ORDERS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]


@dataclass(frozen=True)
class Placed:
    """The fields of vLLM's KVCacheTensor that are read, and two that are not."""

    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0
    size: int = 0
    shared_by: list[str] = field(default_factory=list)


def placed(
    order: str, sizes: dict[str, int], offset: int
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[Placed, torch.Tensor]]]:
    """Backing memory, its logical view [L, B, H, N, C] of bytes, and the placement of its layers."""
    shape = [sizes[letter] for letter in order]
    count = torch.Size(shape).numel()
    memory = torch.randint(0, 256, (offset + count,), dtype=torch.uint8)
    logical = memory[offset:].view(shape).permute([order.index(letter) for letter in "LBHNC"])
    names = [f"layers.{index}" for index in range(sizes["L"])]
    placement = Placed(names, logical.stride(0), logical.stride(1), offset, memory.numel())
    return memory, logical, [(placement, memory)]


@given(
    order=st.sampled_from(ORDERS),
    sizes=st.fixed_dictionaries({letter: st.integers(1, 4) for letter in "LBHNC"}),
    offset=st.integers(0, 9),
)
def test_pages_are_packed_as_they_lie_head_by_head(order: str, sizes: dict[str, int], offset: int) -> None:
    _, logical, placements = placed(order, sizes, offset)
    page_bytes = sizes["H"] * sizes["N"] * sizes["C"]
    cache = tk.PagedCache.from_placements(
        placements,
        kv_cache_layout=order,
        page_bytes=page_bytes,
        num_blocks=sizes["B"],
        num_heads=sizes["H"],
    )
    window = torch.zeros(sizes["L"] * sizes["B"] * page_bytes, dtype=torch.uint8)
    ids = torch.arange(sizes["B"]).view(1, -1)
    cache.gather(ids, window, torch.arange(sizes["L"]).view(-1, 1), sizes["B"] * page_bytes)
    tokens_first = order in ("LBNHC", "BLNHC")
    pages = logical.transpose(2, 3) if tokens_first else logical
    assert window.equal(pages.reshape(-1))
    assert cache.layer_names == tuple(placements[0][0].layers)


def test_heads_of_a_padded_block_and_of_a_group_with_fewer_layers() -> None:
    """In BHLNC the heads of a block are as far apart as the layers of their own group take."""
    memory = torch.randint(0, 256, (4 * 100,), dtype=torch.uint8)
    groups = [(Placed(["a", "b", "c"], 16, 100), memory), (Placed(["d", "e"], 16, 100), memory)]
    cache = tk.PagedCache.from_placements(
        groups, kv_cache_layout="BHLNC", page_bytes=32, num_blocks=4, num_heads=2
    )
    window = torch.zeros(32, dtype=torch.uint8)
    for layer, heads in enumerate([(0, 48), (16, 64), (32, 80), (0, 32), (16, 48)]):
        cache.gather(torch.tensor([[3]]), window, torch.tensor([0]), 32, layers=layer)
        assert window.equal(torch.cat([memory[300 + at :][:16] for at in heads])), cache.layer_names[layer]


def shared() -> tuple[tk.PagedCache, torch.Tensor]:
    """Two groups over the same bytes: pages of 64 bytes, and pages of 128 bytes with half as many blocks."""
    memory = torch.randint(0, 256, (8 * 128,), dtype=torch.uint8)
    small = Placed(["sliding.0", "sliding.1"], layer_stride=64, block_stride=128)
    large = Placed(["full.0"], layer_stride=0, block_stride=128)
    cache = tk.PagedCache.from_placements(
        [(small, memory), (large, memory)],
        kv_cache_layout="BLHNC",
        page_bytes={"sliding.0": 64, "sliding.1": 64, "full.0": 128},
        num_blocks=8,
    )
    return cache, memory


def test_groups_that_share_bytes_move_different_blocks_in_one_call() -> None:
    cache, memory = shared()
    original = memory.clone()
    window = torch.zeros(3 * 256, dtype=torch.uint8)
    ids, layers, slots = torch.tensor([[0, 3], [0, 3], [5, 1]]), torch.tensor([0, 1, 2]), torch.arange(3)
    checksums = cache.gather(ids, window, slots, 256, layers=layers)
    moved = [0, 1, 3, 5]
    memory.fill_(0xA5)
    assert not cache.scatter(window, slots, 256, ids, checksums, layers=layers).any()
    assert memory.view(8, 128)[moved].equal(original.view(8, 128)[moved])
    assert memory.view(8, 128)[[2, 4, 6, 7]].eq(0xA5).all()


def test_one_block_of_two_groups_cannot_be_written_by_one_scatter() -> None:
    cache, memory = shared()
    before = memory.clone()
    window, slots = torch.zeros(2 * 128, dtype=torch.uint8), torch.arange(2)
    ids, layers = torch.tensor([[4], [4]]), torch.tensor([1, 2])
    with pytest.raises(
        ValueError, match=r"block_ids\[1, 0\] repeats block 4; a scatter writes each block once"
    ):
        cache.scatter(window, slots, 128, ids, torch.zeros(2).long(), layers=layers)
    assert memory.equal(before)


MEMORY = torch.zeros(4096, dtype=torch.uint8)
GOOD: dict[str, Any] = {
    "placements": [(Placed(["a", "b"], 1024, 128), MEMORY)],
    "kv_cache_layout": "LHBNC",
    "page_bytes": 256,
    "num_blocks": 4,
    "num_heads": 2,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no layout": ({"kv_cache_layout": None}, "the layout must be one of LBHNC"),
    "a layer twice": (
        {"placements": [(Placed(["a"], 0, 128), MEMORY), (Placed(["a"], 0, 128, 1024), MEMORY)]},
        "layer 'a' is placed twice",
    ),
    "odd heads": ({"num_heads": 3}, "layer 'a': page_bytes 256 are not divided by 3 heads"),
    "no heads": ({"num_heads": {"a": 2}}, "layer 'b': num_heads must be an int of at least 1, got None"),
    "no page": ({"page_bytes": 0}, "layer 'a': page_bytes must be an int of at least 1, got 0"),
    "beyond its memory": ({"num_blocks": 16}, "the layout reaches beyond pages: planes.1. has 16 blocks"),
    "fewer heads than there are, BHLNC": (
        {"kv_cache_layout": "BHLNC", "placements": [(Placed(["a", "b"], 128, 1024), MEMORY)], "num_heads": 1},
        "layer 'a': its run of 256 bytes .1 heads in a page of 256. reaches into the next layer.* 128 bytes",
    ),
    "more heads than there are, BHLNC": (
        {"kv_cache_layout": "BHLNC", "placements": [(Placed(["a", "b"], 128, 1024), MEMORY)], "num_heads": 4},
        "layer 'a': layer_stride must be 64 in BHLNC, one of 4 heads in a page of 256 bytes, got 128",
    ),
    "more heads than there are, LHBNC": (
        {"num_heads": 4},
        "layer 'a': block_stride must be 64 in LHBNC, one of 4 heads in a page of 256 bytes, got 128",
    ),
    "overlapping layers": (
        {"kv_cache_layout": "LBHNC", "placements": [(Placed(["a", "b"], 128, 256), MEMORY)]},
        "layer 'a': its run of 256 bytes .* reaches into the next layer",
    ),
    "overlapping blocks": (
        {"kv_cache_layout": "LBHNC", "num_heads": 1},
        "overlaps itself: it takes 4 steps of 128 bytes over parts of 256 bytes",
    ),
    "negative offset": (
        {"placements": [(Placed(["a"], 0, 128, -128), MEMORY)]},
        "offset must be at least 0, got -128",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_of_placements_says_what_and_why(case: str) -> None:
    changes, rule = REFUSED[case]
    assert len(tk.PagedCache.from_placements(**GOOD).layers) == 2
    with pytest.raises(tk.LayoutError, match=rule):
        tk.PagedCache.from_placements(**GOOD | changes)
