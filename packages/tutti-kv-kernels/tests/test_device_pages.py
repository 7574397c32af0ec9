# SPDX-License-Identifier: Apache-2.0
"""Caches whose blocks are pages of one size have a kernel of their own: it gives what the CPU gives."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from cache_samples import POISON
from device_samples import on_device
from hypothesis import given, settings
from hypothesis import strategies as st

import tutti_kv_kernels as tk
from tutti_kv_kernels.device import DeviceTransfer, Verify, has_cuda_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not has_cuda_kernels(), reason="built without CUDA"),
]


@dataclass(frozen=True)
class Pages:
    """Layers of ``parts`` pages a block, and a transfer that has every kind of bad id in it."""

    cache: tk.PagedCache
    ids: torch.Tensor
    slots: torch.Tensor
    layers: torch.Tensor | None
    slot_bytes: int
    num_slots: int

    def window(self) -> torch.Tensor:
        return torch.full((self.num_slots * self.slot_bytes,), POISON, dtype=torch.uint8)

    def good(self) -> torch.Tensor:
        """Per segment, whether its slot and layer are there."""
        there = (self.slots >= 0) & (self.slots < self.num_slots)
        if self.layers is not None:
            there &= (self.layers >= 0) & (self.layers < len(self.cache.layers))
        return there

    def in_range(self) -> torch.Tensor:
        return (self.ids >= 0) & (self.ids < self.cache.num_ids(0))


# Layers and parts of a block: tables that are a parameter of the launch, tables on the device, and neither.
CACHES = [(1, 1), (1, 2), (1, 3), (5, 1), (9, 2), (5, 3)]


@st.composite
def draw_pages(draw: st.DrawFn, layers: int, parts: int) -> Pages:
    rng = random.Random(draw(st.integers(0, 2**32)))
    runs = draw(st.sampled_from([1, 1, 2, 7]))
    columns, segments = draw(st.sampled_from([1, 3, 33])), draw(st.integers(1, 4))
    run = 16 * rng.randint(4096 // 16 // runs + 1, (6000 if columns == 33 else 20000) // 16 // runs)
    num_ids = columns * segments + rng.randint(1, 4)
    stride = 0 if runs == 1 else run + 16 * rng.choice([1, 9])
    block_stride = (stride * (runs - 1) + run) + 16 * rng.choice([0, 5])
    planes: list[list[tk.Plane]] = []
    for layer in range(layers):
        planes.append([])
        for part in range(parts):
            where, offset = layer * parts + part, 16 * rng.randint(0, 3)
            shape = (run, (1, 1, runs), (0, 0, stride))
            planes[layer].append(tk.Plane(where, offset, block_stride, num_ids, *shape))
    size = 48 + num_ids * block_stride
    storages = [
        torch.frombuffer(bytearray(rng.randbytes(size)), dtype=torch.uint8) for _ in range(layers * parts)
    ]
    ids = torch.tensor(rng.sample(range(num_ids), columns * segments)).view(segments, columns)
    slots = torch.tensor(rng.sample(range(segments + 2), segments))
    of = torch.tensor([rng.randrange(layers) for _ in range(segments)])
    if draw(st.booleans(), label="bad ids"):
        # Often the last one: of more than 32 it is looked at when a segment is closed, not at the start.
        at = rng.choice([columns - 1, rng.randrange(columns)])
        ids[rng.randrange(segments), at] = rng.choice([-1, -2, num_ids, 2**62, -(2**62)])
        slots[rng.randrange(segments)] = rng.choice([-1, segments + 2, 2**62, -(2**62)])
        of[rng.randrange(segments)] = rng.choice([-1, layers, 2**40])
    rest = draw(st.sampled_from([0, 0, 16, 5000 // 16 * 16]))
    return Pages(
        tk.PagedCache(storages, planes),
        ids,
        slots,
        of if layers > 1 else None,
        columns * parts * runs * run + rest,
        segments + 2,
    )


def reference(case: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """The window and checksums of a gather on the CPU, with ids that name nothing taken for "no block"."""
    window, kept = case.window(), case.good()
    sums = torch.full(case.slots.shape, 77, dtype=torch.int64)
    if kept.any():
        ids = torch.where(case.in_range(), case.ids, -1)[kept].contiguous()
        layers = 0 if case.layers is None else case.layers[kept].contiguous()
        sums[kept] = case.cache.gather(
            ids,
            window,
            case.slots[kept].contiguous(),
            case.slot_bytes,
            layers=layers,
            missing_blocks=True,
        )
    return window, sums


def expected_status(case: Pages, missing_blocks: bool) -> list[int]:
    allowed = case.in_range() | (missing_blocks & (case.ids == -1))
    return [0 if good else 3 for good in (case.good() & allowed.all(1)).tolist()]


@pytest.mark.parametrize("shape", CACHES)
@settings(max_examples=30)
@given(data=st.data(), place=st.sampled_from(["device", "pinned"]), missing=st.booleans())
def test_pages_are_packed_as_on_the_cpu(
    shape: tuple[int, int], data: st.DataObject, place: str, missing: bool
) -> None:
    case = data.draw(draw_pages(*shape))
    window, sums = reference(case)
    moved = case.window().cuda() if place == "device" else case.window().pin_memory()
    transfer = DeviceTransfer(on_device(case.cache), moved, case.slot_bytes)
    found = torch.full_like(sums, 77).cuda()
    status = torch.full(sums.shape, 9, dtype=torch.int32, device="cuda")
    layers = None if case.layers is None else case.layers.cuda()
    options = {"layers": layers, "missing_blocks": missing}
    for taken in (found, None):
        moved.fill_(POISON)
        transfer.gather(
            case.ids.cuda(), case.slots.cuda(), checksums=taken, status=status.fill_(9), **options
        )
        torch.cuda.synchronize()
        assert moved.cpu().equal(window)
        assert status.tolist() == expected_status(case, missing)
    assert found.cpu().equal(sums)
    for of in ("pages", "slots"):
        again = torch.full_like(sums, 77).cuda()
        transfer.checksums(case.ids.cuda(), case.slots.cuda(), again, of=of, layers=layers)
        assert again.cpu().equal(sums), of


@pytest.mark.parametrize("shape", CACHES)
@settings(max_examples=30)
@given(data=st.data(), verify=st.sampled_from(list(Verify)))
def test_pages_are_unpacked_as_on_the_cpu(
    shape: tuple[int, int], data: st.DataObject, verify: Verify
) -> None:
    case = data.draw(draw_pages(*shape))
    window, sums = reference(case)
    good, outcome = case.good(), expected_status(case, True)
    read = torch.zeros(sums.shape, dtype=torch.int32)
    for i, there in enumerate(good.tolist()):
        if data.draw(st.booleans(), label="unread"):
            read[i], outcome[i] = 1, 2
        elif there and outcome[i] == 0 and data.draw(st.booleans(), label="damage"):
            byte = data.draw(st.integers(0, case.cache.block_bytes(0) * case.ids.shape[1] - 1))
            window.view(case.num_slots, -1)[int(case.slots[i]), byte] ^= 1 << data.draw(st.integers(0, 7))
            outcome[i] = 0 if verify is Verify.NONE else 1
    target = on_device(case.cache, fill=POISON)
    transfer = DeviceTransfer(target, window.cuda(), case.slot_bytes)
    status = torch.full(sums.shape, 9, dtype=torch.int32, device="cuda")
    transfer.scatter(
        case.ids.cuda(),
        case.slots.cuda(),
        layers=None if case.layers is None else case.layers.cuda(),
        checksums=sums.cuda(),
        status=status,
        read_status=read.cuda(),
        verify=verify,
    )
    assert status.tolist() == outcome
    written = good & (read == 0)
    if verify is Verify.BEFORE:
        written &= torch.tensor(outcome) == 0
    kept = tk.PagedCache([torch.full_like(s, POISON) for s in case.cache.storages], case.cache.layers)
    if written.any():
        slots = case.slots[written].contiguous()
        layers = 0 if case.layers is None else case.layers[written].contiguous()
        ids = torch.where(case.in_range(), case.ids, -1)[written].contiguous()
        used = window.view(case.num_slots, -1)[slots, : case.cache.block_bytes(0) * ids.shape[1]]
        unsigned = [tk.checksum(row.contiguous()) for row in used]
        true_sums = torch.tensor([value - (value >> 63 << 64) for value in unsigned])
        kept.scatter(window, slots, case.slot_bytes, ids, true_sums, layers=layers)
    for on_cpu, on_cuda in zip(kept.storages, target.storages, strict=True):
        assert on_cuda.cpu().equal(on_cpu)


@pytest.mark.parametrize("layers", [1, 6])
@pytest.mark.parametrize("page", [4608, 16384])
def test_which_kernel_pages_take(layers: int, page: int) -> None:
    """Pages that fill three quarters of their 4 KiB units; the table is a parameter or on the device."""
    pages = torch.randint(0, 256, (layers * 8 * page,), dtype=torch.uint8, device="cuda")
    cache = tk.PagedCache([pages], [[tk.Plane(0, i * 8 * page, page, 8, page)] for i in range(layers)])
    transfer = DeviceTransfer(cache, torch.zeros(16 * page, dtype=torch.uint8, device="cuda"), page)
    ids, slots = torch.tensor([[3]], device="cuda"), torch.arange(layers, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        transfer.gather(ids, slots, layers=slots if layers > 1 else None)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if "_kernel" in event.name]
    assert len(names) == 1
    assert ("page_kernel" if page == 16384 else "transfer_kernel") in names[0]


def test_a_segment_of_more_units_than_a_launch_of_pages_can_count_takes_the_other_kernel() -> None:
    page, columns = 18432, 13200
    pages = torch.randint(0, 256, (columns * page,), dtype=torch.uint8, device="cuda")
    cache = tk.PagedCache([pages], [[tk.Plane(0, 0, page, columns, page)]])
    ids, slots = torch.randperm(columns, device="cuda").view(1, -1), torch.tensor([0], device="cuda")
    window = torch.full((columns * page,), POISON, dtype=torch.uint8, device="cuda")
    sums = cache.gather(ids, window, slots, columns * page)
    assert window.view(columns, page).equal(pages.view(columns, page)[ids[0]])
    assert int(sums[0]) % 2**64 == tk.checksum(window.cpu())
