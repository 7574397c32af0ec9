# SPDX-License-Identifier: Apache-2.0
"""Caches and windows beyond what 32 bits count. Memory that is not touched is never allocated."""

from __future__ import annotations

import mmap

import pytest
import torch

import tutti_kv_kernels as tk

GIB = 1 << 30


def reserve(size: int) -> torch.Tensor:
    """Zeroed bytes of which only the touched pages take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        pytest.skip(f"this machine reserves no {size >> 30} GiB of address space: {error}")
    return torch.frombuffer(memory, dtype=torch.uint8)


def test_more_than_two_to_the_31_elements_and_strides_beyond_32_bits() -> None:
    """K and V half a tensor of 5 x 2^30 elements apart, and a layer stride to match."""
    memory = reserve(10 * GIB)
    blocks, block = 5 * GIB // 1024, 512
    tensor = memory[: 5 * GIB].view(2, blocks, 16, 1, 32)
    other = memory[5 * GIB :].view(2, blocks, 16, 1, 32)
    assert tensor.numel() > 2**32
    cache = tk.PagedCache.from_format(
        "NL_X_TWO_NB_BS_NH_HS", [tensor, other], num_blocks=blocks, block_size=16
    )
    far = [blocks - 1, blocks // 2 + 3, 2**22 + 1]
    for layer, part in enumerate((tensor, other)):
        for index, number in enumerate(far):
            for kv in (0, 1):
                part[kv, number] = 64 * layer + 16 * index + kv + 1
    window = torch.zeros(2 * 3 * 2 * block, dtype=torch.uint8)
    ids, slots = torch.tensor(far).view(3, 1), torch.arange(6).view(2, 3)
    checksums = cache.gather(ids, window, slots, 2 * block)
    expected = [64 * layer + 16 * index + kv + 1 for layer in (0, 1) for index in range(3) for kv in (0, 1)]
    assert window.view(-1, block)[:, 0].tolist() == expected
    assert window.view(-1, block).eq(window.view(-1, block)[:, :1]).all()
    for part in (tensor, other):
        part[:, far] = 0
    assert not cache.scatter(window, slots, 2 * block, ids, checksums).any()
    found = [int(part[kv, number, 15, 0, 31]) for part in (tensor, other) for number in far for kv in (0, 1)]
    assert found == expected


def test_window_beyond_four_gib() -> None:
    window = reserve(6 * GIB)
    slot_bytes = 1 << 20
    last = window.numel() // slot_bytes - 1
    pages = torch.randint(0, 256, (4 * 4096,), dtype=torch.uint8)
    layout = tk.PagedLayout(0, 4096, 4096, 4)
    ids, slots = torch.tensor([[2, 0]]), torch.tensor([last])
    checksums = tk.gather(pages, layout, ids, window, slots, slot_bytes)
    packed = torch.cat([pages[8192:12288], pages[:4096]])
    assert window[last * slot_bytes :][:8192].equal(packed)
    restored = torch.zeros_like(pages)
    assert tk.scatter(window, slots, slot_bytes, restored, layout, ids, checksums).all()
    assert restored[8192:12288].equal(pages[8192:12288])


HUGE = 2**62
IMPOSSIBLE = {
    "far blocks": tk.Plane(0, 0, HUGE, 3, 64),
    "many blocks": tk.Plane(0, 0, 64, HUGE, 64),
    "far offset": tk.Plane(0, HUGE, 64, 1, 64),
    "long run": tk.Plane(0, 0, 64, 1, HUGE),
    "three huge dimensions": tk.Plane(0, 0, HUGE, 2, 1, (HUGE, HUGE, HUGE), (HUGE, 2**31, 1)),
    "far tokens": tk.Plane(0, 0, HUGE, 1, 64, tokens_per_block=2, token_stride=HUGE),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_sums_that_would_overflow_are_refused(case: str) -> None:
    with pytest.raises(tk.LayoutError, match=r"the layout reaches beyond pages|overlaps itself"):
        tk.PagedCache([torch.zeros(4096, dtype=torch.uint8)], [[IMPOSSIBLE[case]]])
