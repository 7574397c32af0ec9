# SPDX-License-Identifier: Apache-2.0
"""Gather and scatter against the slow reference, byte for byte."""

from __future__ import annotations

import random
from dataclasses import dataclass

import kv_kernels_reference as reference
import torch
from hypothesis import given
from hypothesis import strategies as st

import tutti_kv_kernels as tk

POISON = 0xA5


@dataclass(frozen=True)
class Case:
    """One transfer over a storage of random bytes."""

    layout: tk.PagedLayout
    storage: bytes
    block_ids: list[list[int]]
    slots: list[int]
    slot_bytes: int
    window_bytes: int

    @property
    def data_bytes(self) -> int:
        return len(self.block_ids[0]) * self.layout.page_bytes

    def packed(self, segment: int) -> bytes:
        return b"".join(self.storage[self.page(block)] for block in self.block_ids[segment])

    def page(self, block: int) -> slice:
        start = self.layout.storage_offset + block * self.layout.block_stride
        return slice(start, start + self.layout.page_bytes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    page_bytes = draw(st.one_of(st.integers(1, 300), st.sampled_from([8, 64, 1024, 4096, 18432 // 4])))
    columns = draw(st.integers(1, 4))
    segments = draw(st.integers(1, 4))
    num_blocks = columns * segments + draw(st.integers(0, 5))
    layout = tk.PagedLayout(
        storage_offset=draw(st.integers(0, 100)),
        block_stride=page_bytes + draw(st.one_of(st.just(0), st.integers(0, 200))),
        page_bytes=page_bytes,
        num_blocks=num_blocks,
    )
    seed = draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    ids = rng.sample(range(num_blocks), columns * segments)
    slot_bytes = columns * page_bytes + draw(st.integers(0, 50))
    window_slots = segments + draw(st.integers(0, 3))
    return Case(
        layout=layout,
        storage=rng.randbytes(layout.end + draw(st.integers(0, 30))),
        block_ids=[ids[i * columns : (i + 1) * columns] for i in range(segments)],
        slots=rng.sample(range(window_slots), segments),
        slot_bytes=slot_bytes,
        window_bytes=window_slots * slot_bytes + draw(st.integers(0, 7)),
    )


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@given(case=cases(), num_threads=st.sampled_from([1, 2]))
def test_gather_packs_pages_zeroes_the_rest_and_leaves_other_slots(case: Case, num_threads: int) -> None:
    window = torch.full((case.window_bytes,), POISON, dtype=torch.uint8)
    checksums = tk.gather(
        as_tensor(case.storage),
        case.layout,
        torch.tensor(case.block_ids),
        window,
        torch.tensor(case.slots),
        case.slot_bytes,
        num_threads=num_threads,
    )
    expected = bytearray([POISON] * case.window_bytes)
    for segment, slot in enumerate(case.slots):
        start = slot * case.slot_bytes
        expected[start : start + case.slot_bytes] = case.packed(segment).ljust(case.slot_bytes, b"\0")
    assert as_bytes(window) == bytes(expected)
    packed = [case.packed(segment) for segment in range(len(case.slots))]
    assert checksums.tolist() == [reference.signed(reference.checksum(data)) for data in packed]


@given(case=cases(), num_threads=st.sampled_from([1, 2]), data=st.data())
def test_scatter_writes_exactly_the_pages_of_matching_segments(
    case: Case, num_threads: int, data: st.DataObject
) -> None:
    damaged = data.draw(st.sets(st.sampled_from(range(len(case.slots)))), label="damaged segments")
    places = [(i, j) for i, row in enumerate(case.block_ids) for j in range(len(row))]
    skipped = data.draw(st.sets(st.sampled_from(places)), label="skipped blocks")
    window = bytearray([POISON] * case.window_bytes)
    sums = []
    for segment, slot in enumerate(case.slots):
        packed = case.packed(segment)
        sums.append(reference.signed(reference.checksum(packed)))
        start = slot * case.slot_bytes
        window[start : start + case.data_bytes] = packed
        if segment in damaged:
            window[start + len(packed) // 2] ^= 0x10
    pages = torch.full((len(case.storage),), POISON, dtype=torch.uint8)
    ids = [
        [-1 if (i, j) in skipped else block for j, block in enumerate(row)]
        for i, row in enumerate(case.block_ids)
    ]

    matched = tk.scatter(
        as_tensor(bytes(window)),
        torch.tensor(case.slots),
        case.slot_bytes,
        pages,
        case.layout,
        torch.tensor(ids),
        torch.tensor(sums),
        num_threads=num_threads,
    )

    assert matched.dtype == torch.bool
    assert matched.tolist() == [segment not in damaged for segment in range(len(case.slots))]
    expected = bytearray([POISON] * len(case.storage))
    for segment, row in enumerate(ids):
        for block in row:
            if segment not in damaged and block >= 0:
                expected[case.page(block)] = case.storage[case.page(block)]
    assert as_bytes(pages) == bytes(expected)
