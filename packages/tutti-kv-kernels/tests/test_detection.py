# SPDX-License-Identifier: Apache-2.0
"""Damage in the window between a gather and a scatter is noticed, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cache_samples import FORMS, Sample, Sizes

import tutti_kv_kernels as tk

# In one form a block is one run, in the other runs of 102 bytes. A segment ends inside a word.
SIZES = Sizes(L=2, B=6, N=3, H=2, C=17)
COLUMNS, SLOTS = 3, 4


class Stored:
    """Two segments of each of two layers, packed in a window; then the cache is wiped."""

    def __init__(self, form: str) -> None:
        self.sample = Sample(FORMS[form], SIZES)
        self.cache = self.sample.cache
        self.data_bytes = COLUMNS * self.cache.block_bytes(0)
        self.slot_bytes = self.data_bytes + 6
        self.window = torch.zeros(SLOTS * self.slot_bytes, dtype=torch.uint8)
        self.slots = torch.tensor([[2, 0], [1, 3]])
        self.ids = torch.tensor([[0, 4, 1], [5, 2, 3]])
        self.checksums = self.cache.gather(self.ids, self.window, self.slots, self.slot_bytes)
        for storage in self.cache.storages:
            storage.fill_(0)

    def slot(self, slot: int) -> torch.Tensor:
        return self.window[slot * self.slot_bytes :][: self.data_bytes]

    def scatter(self) -> list[int]:
        status = self.cache.scatter(self.window, self.slots, self.slot_bytes, self.ids, self.checksums)
        return status.view(-1).tolist()

    def wrote(self, layer: int, block: int) -> bool:
        return any(self.sample.packed(layer, block))


def swap(first: torch.Tensor, second: torch.Tensor) -> None:
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def swap_blocks(stored: Stored) -> None:
    block = stored.data_bytes // COLUMNS
    swap(stored.slot(0)[:block], stored.slot(0)[block : 2 * block])


DAMAGE: dict[str, tuple[Callable[[Stored], object], list[int]]] = {
    "none": (lambda stored: None, []),
    "blocks of a segment swapped": (swap_blocks, [1]),
    "segments swapped": (lambda stored: swap(stored.slot(0), stored.slot(3)), [1, 3]),
    "tail cut off": (lambda stored: stored.slot(0)[-9:].zero_(), [1]),
    "last byte lost": (lambda stored: stored.slot(0)[-1:].bitwise_xor_(255), [1]),
    "all zero": (lambda stored: stored.slot(0).zero_(), [1]),
    "shifted by a byte": (lambda stored: stored.slot(0).copy_(stored.slot(0).roll(1)), [1]),
    "old bytes of another segment": (lambda stored: stored.slot(0).copy_(stored.slot(1)), [1]),
    "padding only": (lambda stored: stored.window[stored.data_bytes : stored.slot_bytes].fill_(1), []),
}


@pytest.mark.parametrize("form", ["LBHNC", "LHBNC"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_reported_for_its_segments_and_written_by_none(form: str, damage: str) -> None:
    stored = Stored(form)
    harm, segments = DAMAGE[damage]
    harm(stored)
    assert stored.scatter() == [int(segment in segments) for segment in range(SLOTS)]
    for segment in range(SLOTS):
        layer, row = divmod(segment, 2)
        for block in stored.ids[row].tolist():
            assert stored.wrote(layer, block) == (segment not in segments)


@pytest.mark.parametrize("form", ["LBHNC", "LHBNC"])
def test_every_bit_of_a_segment_counts(form: str) -> None:
    stored = Stored(form)
    slot = stored.slot(0)
    for bit in range(stored.data_bytes * 8):
        slot[bit // 8] ^= 1 << bit % 8
        assert stored.scatter() == [0, 1, 0, 0], f"flip of bit {bit}"
        slot[bit // 8] ^= 1 << bit % 8
    assert stored.scatter() == [0, 0, 0, 0]


def test_zeros_are_data_like_any_other() -> None:
    stored = Stored("LBHNC")
    checksums = stored.cache.gather(stored.ids, stored.window, stored.slots, stored.slot_bytes)
    assert not stored.window.any()
    assert checksums.unique().tolist() == [checksums[0, 0].item()] != [0]
    stored.checksums = checksums
    assert stored.scatter() == [0, 0, 0, 0]


@pytest.mark.parametrize("value", [1, -1, 2**31 - 1])
def test_a_segment_that_was_not_read_is_not_touched(value: int) -> None:
    stored = Stored("LHBNC")
    read_status = torch.tensor([[0, value], [0, 0]], dtype=torch.int32)
    status = stored.cache.scatter(
        stored.window,
        stored.slots,
        stored.slot_bytes,
        stored.ids,
        stored.checksums,
        read_status=read_status,
    )
    assert status.tolist() == [[tk.ScatterStatus.OK, tk.ScatterStatus.NOT_READ], [0, 0]]
    assert not stored.wrote(0, 5)
    assert not stored.wrote(0, 2)
    assert stored.wrote(1, 5)
