# SPDX-License-Identifier: Apache-2.0
"""Transfers on a CUDA device give the bytes, checksums and statuses that they give on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cache_samples import FORMS, POISON, Sample, Sizes
from device_samples import Layered, draw_layered, on_device
from hypothesis import given
from hypothesis import strategies as st
from test_cache_transfers import draw_sample, moves, slot_bytes_of

import tutti_kv_kernels as tk
from tutti_kv_kernels.device import DeviceTransfer, Verify, has_cuda_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not has_cuda_kernels(), reason="built without CUDA"),
]
PLACES = ["device", "pinned"]


def placed(window: torch.Tensor, place: str) -> torch.Tensor:
    return window.pin_memory() if place == "pinned" else window.cuda()


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_gather_is_the_cpu_s(name: str, data: st.DataObject) -> None:
    sample = draw_sample(data, name)
    move = data.draw(moves(sample), label="move")
    slot_bytes = slot_bytes_of(sample, move)
    window = torch.full(((len(move.slots) + 2) * slot_bytes + 3,), POISON, dtype=torch.uint8)
    moved = placed(window, data.draw(st.sampled_from(PLACES)))
    options = move.options()
    arguments = {"slot_bytes": slot_bytes, "missing_blocks": True}
    sums = sample.cache.gather(move.rows(), window, **arguments, **options)
    found = on_device(sample.cache).gather(
        move.rows().cuda(), moved, **arguments, **{k: to_cuda(v) for k, v in options.items()}
    )
    assert found.cpu().equal(sums)
    assert moved.cpu().equal(window)


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_scatter_is_the_cpu_s(name: str, data: st.DataObject) -> None:
    source = draw_sample(data, name)
    move = data.draw(moves(source), label="move")
    slot_bytes = slot_bytes_of(source, move)
    window = torch.zeros(((len(move.slots) + 2) * slot_bytes,), dtype=torch.uint8)
    whole = {k: v for k, v in move.options().items() if k != "token_ranges"}
    sums = source.cache.gather(move.rows(), window, slot_bytes=slot_bytes, missing_blocks=True, **whole)
    for slot in move.slots:
        if data.draw(st.booleans(), label="damage"):
            window[slot * slot_bytes] ^= 0x20
    read = torch.tensor([data.draw(st.sampled_from([0, 0, 0, 1])) for _ in move.slots], dtype=torch.int32)
    target = dataclasses.replace(source, seed=None)
    options = {**move.options(), "read_status": read.view(move.options()["slots"].shape)}
    cuda_cache = on_device(target.cache)
    status = target.cache.scatter(
        window, slot_bytes=slot_bytes, block_ids=move.rows(), checksums=sums, **options
    )
    found = cuda_cache.scatter(
        placed(window, data.draw(st.sampled_from(PLACES))),
        slot_bytes=slot_bytes,
        block_ids=move.rows().cuda(),
        checksums=sums.cuda(),
        **{k: to_cuda(v) for k, v in options.items()},
    )
    assert found.cpu().equal(status)
    for on_cpu, on_cuda in zip(target.cache.storages, cuda_cache.storages, strict=True):
        assert on_cuda.cpu().equal(on_cpu)


def to_cuda(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) else value


@given(case=draw_layered(), place=st.sampled_from(PLACES), num_sms=st.sampled_from([0, 1, 3]))
def test_random_planes_round_trip(case: Layered, place: str, num_sms: int) -> None:
    window = case.poisoned_window()
    sums = case.cache.gather(case.ids, window, case.slots, case.slot_bytes, layers=case.layers)
    cache = on_device(case.cache)
    moved = placed(case.poisoned_window(), place)
    transfer = DeviceTransfer(cache, moved, case.slot_bytes, num_sms=num_sms, max_segments=len(case.slots))
    found = torch.full_like(sums, -1).cuda()
    status = torch.full(sums.shape, 9, dtype=torch.int32).cuda()
    ids, slots, layers = case.ids.cuda(), case.slots.cuda(), case.layers.cuda()
    transfer.gather(ids, slots, layers=layers, checksums=found, status=status)
    assert found.cpu().equal(sums)
    assert not status.any()
    assert moved.cpu().equal(window)
    for of in ("pages", "slots"):
        found.zero_()
        transfer.checksums(ids, slots, found, of=of, layers=layers)
        assert found.cpu().equal(sums), of
    for verify in Verify:
        target = on_device(case.cache, fill=POISON)
        back = DeviceTransfer(target, moved, case.slot_bytes, num_sms=num_sms, max_segments=len(case.slots))
        back.scatter(ids, slots, layers=layers, checksums=found, status=status.fill_(9), verify=verify)
        assert not status.any()
        expected = case.poisoned_copy(case.ids)
        assert [storage.cpu().tolist() for storage in target.storages] == [e.tolist() for e in expected]


@given(case=draw_layered(), data=st.data())
def test_statuses_say_what_was_not_written(case: Layered, data: st.DataObject) -> None:
    count = len(case.slots)
    outcomes = data.draw(st.lists(st.sampled_from(list(tk.ScatterStatus)), min_size=count, max_size=count))
    window = case.poisoned_window()
    sums = case.cache.gather(case.ids, window, case.slots, case.slot_bytes, layers=case.layers)
    ids, kept = case.ids.clone(), case.ids.clone()
    for i, outcome in enumerate(outcomes):
        if outcome == tk.ScatterStatus.MISMATCH:
            window[int(case.slots[i]) * case.slot_bytes] ^= 1
        elif outcome == tk.ScatterStatus.OUT_OF_RANGE:
            ids[i, -1] = data.draw(st.sampled_from([10**12, -2, 2**62]))
        if outcome != tk.ScatterStatus.OK:
            kept[i] = -1
    read = torch.tensor([int(o == tk.ScatterStatus.NOT_READ) for o in outcomes], dtype=torch.int32)
    target = on_device(case.cache, fill=POISON)
    transfer = DeviceTransfer(target, window.cuda(), case.slot_bytes)
    status = torch.full((count,), 9, dtype=torch.int32).pin_memory()
    transfer.scatter(
        ids.cuda(),
        case.slots.cuda(),
        layers=case.layers.cuda(),
        checksums=sums.cuda(),
        status=status,
        read_status=read.cuda(),
    )
    torch.cuda.synchronize()
    assert status.tolist() == outcomes
    expected = case.poisoned_copy(kept)
    assert [storage.cpu().tolist() for storage in target.storages] == [e.tolist() for e in expected]


def simple_case(device: str = "cuda") -> tuple[tk.PagedCache, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A cache of 3 layers with 64 blocks of 16 KiB, a window of 32 slots of two blocks, ids and slots."""
    pages = torch.randint(0, 256, (3 * 64 * 16384,), dtype=torch.uint8, device=device)
    layers = [[tk.Plane(0, i * 64 * 16384, 16384, 64, 16384)] for i in range(3)]
    window = torch.full((32 * 32768,), POISON, dtype=torch.uint8, device=device)
    ids = torch.randperm(64, device=device)[:24].view(12, 2)
    return tk.PagedCache([pages], layers), window, ids, torch.randperm(32, device=device)[:12]


def packed(cache: tk.PagedCache, ids: torch.Tensor, layer: int = 0) -> torch.Tensor:
    return cache.storages[0].view(3, 64, 16384)[layer, ids].flatten(1)


def test_a_fused_scatter_reports_what_it_has_written() -> None:
    cache, window, ids, slots = simple_case()
    sums = cache.gather(ids, window, slots, 32768, layers=0)
    before = packed(cache, ids)
    window.view(32, 32768)[slots[5], 7] ^= 2
    cache.storages[0].fill_(POISON)
    status = torch.zeros(12, dtype=torch.int32, device="cuda")
    transfer = DeviceTransfer(cache, window, 32768)
    transfer.scatter(ids, slots, checksums=sums, status=status, verify=Verify.FUSED)
    assert status.tolist() == [int(i == 5) for i in range(12)]
    good = [i for i in range(12) if i != 5]
    assert packed(cache, ids)[good].equal(before[good])


@pytest.mark.parametrize("page", [4608, 16384])
@pytest.mark.parametrize(
    ("mover", "verify"),
    [
        (tk.Mover.KERNEL, Verify.BEFORE),
        (tk.Mover.KERNEL, Verify.FUSED),
        (tk.Mover.COPY_ENGINE, Verify.FUSED),
    ],
)
def test_a_checksum_that_differs_in_any_one_bit_is_a_mismatch(
    page: int, mover: tk.Mover, verify: Verify
) -> None:
    """Segment i expects a checksum with bit i turned over; the two page sizes have kernels of their own."""
    pages = torch.randint(0, 256, (65 * page,), dtype=torch.uint8, device="cuda")
    cache = tk.PagedCache([pages], [[tk.Plane(0, 0, page, 65, page)]])
    ids, slots = torch.randperm(65).view(65, 1), torch.randperm(65)
    window = torch.zeros(65 * page, dtype=torch.uint8, device="cuda")
    sums = torch.zeros(65, dtype=torch.int64, device="cuda")
    transfer = DeviceTransfer(cache, window, page)
    transfer.gather(ids.cuda(), slots.cuda(), checksums=sums)
    bits = [1 << bit for bit in range(63)] + [-(1 << 63), 0]
    sums ^= torch.tensor(bits, device="cuda")
    status = torch.full((65,), 9, dtype=torch.int32, device="cuda")
    if mover is tk.Mover.KERNEL:
        ids, slots = ids.cuda(), slots.cuda()
    transfer.scatter(ids, slots, checksums=sums, status=status, verify=verify, mover=mover)
    assert status.tolist() == [1] * 64 + [0]


@pytest.mark.parametrize("page", [4608, 16384])
@pytest.mark.parametrize("layers", [1, 6])
def test_no_id_and_no_slot_of_a_wide_segment_escapes(page: int, layers: int) -> None:
    """70 ids a segment: more than a warp looks at at once. Slots below and above the window are untouched."""
    columns, segments = 70, 12
    count = columns * segments
    pages = torch.randint(0, 256, (layers * count * page,), dtype=torch.uint8, device="cuda")
    planes = [[tk.Plane(0, i * count * page, page, count, page)] for i in range(layers)]
    cache = tk.PagedCache([pages], planes)
    ids = torch.randperm(count, device="cuda").view(segments, columns)
    slots = torch.arange(segments, device="cuda")
    ids[1, 31], ids[2, 32], ids[3, 63], ids[4, 64], ids[5, 69] = count, 2**62, -1, -2, count
    slots[6], slots[7], slots[8], slots[9] = -1, -2, segments, -(2**62)
    size = segments * columns * page
    room = torch.full((3 * size,), POISON, dtype=torch.uint8, device="cuda")
    transfer = DeviceTransfer(cache, room[size : 2 * size], columns * page)
    of = torch.full_like(slots, layers - 1) if layers > 1 else None
    status = torch.full((segments,), 9, dtype=torch.int32, device="cuda")
    transfer.gather(ids, slots, layers=of, status=status)
    assert status.tolist() == [0] + [3] * 9 + [0, 0]
    assert (room[:size] == POISON).all() and (room[2 * size :] == POISON).all()
    transfer.scatter(ids, slots, layers=of, status=status.fill_(9), verify=Verify.NONE)
    leaves_a_block_out = 3
    assert status.tolist() == [3 * (1 <= i <= 9 and i != leaves_a_block_out) for i in range(segments)]


@pytest.mark.parametrize("layers", [1, 3])
def test_a_gather_says_which_segments_had_an_id_that_names_nothing(layers: int) -> None:
    """One layer's launch takes its table along, three layers' is on the device."""
    cache, window, ids, slots = simple_case()
    ids[2, 1], ids[5, 0], ids[7, 1], slots[9] = 64, -1, 2**62, 32
    of = {"layers": 0} if layers == 1 else {"layers": torch.full_like(slots, 2)}
    if layers == 3:
        of["layers"][10] = 3
    sums = torch.full((12,), 77, dtype=torch.int64, device="cuda")
    status = torch.full((12,), 9, dtype=torch.int32, device="cuda")
    cache.gather(ids, window, slots, 32768, checksums=sums, status=status, **of)
    bad = {2, 5, 7, 9} | ({10} if layers == 3 else set())
    assert status.tolist() == [3 * (i in bad) for i in range(12)]
    rows = window.view(32, 2, 16384)
    for i, row in enumerate(ids.tolist()):
        if i in (9, 10) and i in bad:
            assert sums[i] == 77
            continue
        for part, block in enumerate(row):
            found = rows[slots[i], part]
            if 0 <= block < 64:
                assert found.equal(cache.storages[0].view(3, 64, 16384)[layers - 1, block]), (i, part)
            else:
                assert not found.any(), (i, part)
    cache.gather(ids, window, slots, 32768, missing_blocks=True, status=status, **of)
    assert status.tolist() == [3 * (i in bad - {5}) for i in range(12)]


def test_a_transfer_runs_in_a_captured_graph_with_the_ids_of_each_replay() -> None:
    cache, window, ids, slots = simple_case()
    transfer = DeviceTransfer(cache, window, 32768)
    sums = torch.zeros(12, dtype=torch.int64, device="cuda")
    transfer.gather(ids, slots, checksums=sums)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        transfer.gather(ids, slots, checksums=sums)
    for seed in range(3):
        torch.manual_seed(seed)
        ids.copy_(torch.randperm(64)[:24].view(12, 2))
        graph.replay()
        torch.cuda.synchronize()
        assert window.view(32, 32768)[slots].equal(packed(cache, ids))
        assert sums.cpu().equal(cache.gather(ids, window, slots, 32768, layers=0).cpu())


def test_a_transfer_is_ordered_on_the_current_stream() -> None:
    cache, window, ids, slots = simple_case()
    transfer = DeviceTransfer(cache, window, 32768)
    stream = torch.cuda.Stream()
    for value in range(20):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            cache.storages[0].fill_(value)
            transfer.gather(ids, slots)
            out = window.view(32, 32768)[slots].clone()
        torch.cuda.current_stream().wait_stream(stream)
        assert int(out.min()) == int(out.max()) == value


def test_all_layers_of_many_chunks_are_one_launch() -> None:
    cache, window, ids, slots = simple_case()
    transfer = DeviceTransfer(cache, window, 32768)
    layers = torch.arange(3, device="cuda").repeat_interleave(4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        transfer.gather(ids[:4].contiguous(), slots, layers=layers)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if "transfer_kernel" in event.name]
    assert len(names) == 1
    for layer in range(3):
        rows = slots[layer * 4 : layer * 4 + 4]
        assert window.view(32, 32768)[rows].equal(packed(cache, ids[:4], layer))


def test_addresses_beyond_2_to_the_31_are_reached() -> None:
    free, _ = torch.cuda.mem_get_info()
    size = 5 << 30
    if free < size + (1 << 30):
        pytest.skip(f"needs 6 GiB of device memory, {free >> 30} GiB are free")
    pages = torch.zeros(size, dtype=torch.uint8, device="cuda")
    page = 1 << 20
    blocks = pages.view(-1, page)
    ids = torch.tensor([[0, 5119], [4097, 2049]], device="cuda")
    blocks[ids.flatten()] = torch.randint(0, 256, (4, page), dtype=torch.uint8, device="cuda")
    cache = tk.PagedCache([pages], [[tk.Plane(0, 0, page, 5120, page)]])
    window = torch.zeros(4 * page, dtype=torch.uint8, device="cuda")
    slots = torch.tensor([1, 0], device="cuda")
    expected = [tk.checksum(blocks[row].flatten().cpu()) for row in ids]
    sums = torch.zeros(2, dtype=torch.int64, device="cuda")
    for num_sms in (0, 2):  # the kernel for pages, and the one for everything
        transfer = DeviceTransfer(cache, window.zero_(), 2 * page, num_sms=num_sms)
        transfer.gather(ids, slots, checksums=sums.zero_())
        assert window.view(2, -1)[slots].equal(blocks[ids].flatten(1))
        assert [value % 2**64 for value in sums.tolist()] == expected


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_the_device_is_the_cache_s_and_not_the_current_one() -> None:
    assert torch.cuda.current_device() == 0
    cache, window, ids, slots = simple_case("cuda:1")
    sums = cache.gather(ids, window, slots, 32768, layers=0)
    assert torch.cuda.current_device() == 0
    assert window.view(32, 32768)[slots].equal(packed(cache, ids))
    transfer = DeviceTransfer(cache, window, 32768)
    status = torch.full((12,), 9, dtype=torch.int32, device="cuda:1")
    transfer.scatter(ids, slots, checksums=sums, status=status)
    assert not status.any()


@pytest.mark.parametrize("operator", ["gather", "scatter"])
def test_operators_keep_torch_s_rules_on_the_device(operator: str) -> None:
    cache, window, ids, slots = simple_case()
    sums = cache.gather(ids, window, slots, 32768, layers=0)
    ops = torch.ops.tutti_kv_kernels
    if operator == "gather":
        torch.library.opcheck(
            ops.gather.default,
            (
                *(list(cache.storages), cache.planes, None, ids, 1, None),
                *(False, window, slots, 32768, sums, None, 1),
            ),
        )
    else:
        status = torch.zeros(12, dtype=torch.int32, device="cuda")
        torch.library.opcheck(
            ops.scatter.default,
            (
                *(window, slots, 32768, list(cache.storages), cache.planes, None, ids, 1),
                *(None, sums, None, status, 1),
            ),
        )


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "pageable slots": (lambda t, i, s: t.gather(i, s.cpu()), "slots must be on CUDA device 0 or in pinned"),
    "ids of another dtype": (lambda t, i, s: t.gather(i.int(), s), "block_ids must be a contiguous Long"),
    "too many blocks": (lambda t, i, s: t.gather(i.view(6, 4), s[:6]), "slot_bytes 32768 is too small"),
    "rows": (lambda t, i, s: t.gather(i[:5].contiguous(), s), "block_ids must have a row for each"),
    "no status": (
        lambda t, i, s: t.scatter(i, s, checksums=torch.zeros(12, dtype=torch.int64, device="cuda")),
        "reports in status",
    ),
    "ranges": (lambda t, i, s: t.gather(i, s, token_ranges=i), "token_ranges go with a geometry"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_argument_and_start_nothing(case: str) -> None:
    cache, window, ids, slots = simple_case()
    act, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        act(DeviceTransfer(cache, window, 32768), ids, slots)
    torch.cuda.synchronize()
    assert (window == POISON).all()


def test_a_window_inside_the_cache_is_refused() -> None:
    cache, *_ = simple_case()
    with pytest.raises(ValueError, match="overlaps"):
        DeviceTransfer(cache, cache.storages[0][: 1 << 20], 32768)


def test_a_workspace_serves_launch_after_launch() -> None:
    cache, window, ids, slots = simple_case()
    transfer = DeviceTransfer(cache, window, 32768, max_segments=12)
    expected = cache.gather(ids, window, slots, 32768, layers=0)
    for num_sms in (0, 1, 5) * 10:
        transfer.num_sms = num_sms
        sums = torch.zeros(12, dtype=torch.int64, device="cuda")
        transfer.gather(ids, slots, checksums=sums)
        assert sums.equal(expected)


@given(case=draw_layered(), place=st.sampled_from(PLACES), data=st.data())
def test_copy_engines_move_the_same_bytes(case: Layered, place: str, data: st.DataObject) -> None:
    ids = case.ids.clone()
    if data.draw(st.booleans(), label="missing"):
        ids[0, 0] = -1
    window = case.poisoned_window()
    options = {"layers": case.layers, "missing_blocks": True}
    sums = case.cache.gather(ids, window, case.slots, case.slot_bytes, **options)
    moved = placed(case.poisoned_window(), place)
    found = torch.zeros_like(sums).cuda()
    status = torch.full(sums.shape, 9, dtype=torch.int32).cuda()
    stream = torch.cuda.Stream() if data.draw(st.booleans(), label="own stream") else None
    with torch.cuda.stream(stream):
        transfer = DeviceTransfer(on_device(case.cache), moved, case.slot_bytes)
        engine = {"mover": tk.Mover.COPY_ENGINE}
        transfer.gather(ids, case.slots, checksums=found, status=status, **options, **engine)
        torch.cuda.synchronize()
        assert moved.cpu().equal(window)
        assert found.cpu().equal(sums)
        target = on_device(case.cache, fill=POISON)
        back = DeviceTransfer(target, moved, case.slot_bytes)
        found[0] ^= 1
        arguments = {"checksums": found, "status": status.fill_(9), "verify": Verify.FUSED, **engine}
        back.scatter(ids, case.slots, layers=case.layers, **arguments)
        torch.cuda.synchronize()
    assert status.tolist() == [1] + [0] * (len(case.slots) - 1)
    expected = case.poisoned_copy(ids)
    assert [storage.cpu().tolist() for storage in target.storages] == [e.tolist() for e in expected]


@pytest.mark.parametrize("where", ["own stream", "default stream", "captured"])
@pytest.mark.parametrize("place", PLACES)
def test_copy_engines_take_any_number_of_runs_in_the_stream_s_order(where: str, place: str) -> None:
    """3000 runs and 1500 fills; a captured graph takes a copy each, the others batches on several streams."""
    page, segments = 2048, 1500
    pages = torch.randint(0, 256, (2 * segments, page), dtype=torch.uint8, device="cuda")
    ids = torch.randperm(2 * segments).view(segments, 2)
    slots = torch.randperm(segments)
    window = placed(torch.full((segments, 2 * page + 64), POISON, dtype=torch.uint8), place)
    cache = tk.PagedCache([pages.view(-1)], [[tk.Plane(0, 0, page, 2 * segments, page)]])
    transfer = DeviceTransfer(cache, window.view(-1), 2 * page + 64)
    packed_pages, unpacked = torch.empty_like(window, device="cuda"), torch.empty_like(pages)
    expected = pages.clone()

    def there_and_back() -> None:
        # All is in the queues when the first copy starts: who does not wait for another stream is too early.
        torch.cuda._sleep(200_000_000)
        transfer.gather(ids, slots, mover=tk.Mover.COPY_ENGINE)
        packed_pages.copy_(window, non_blocking=True)
        pages.fill_(POISON)
        transfer.scatter(ids, slots, verify=Verify.NONE, mover=tk.Mover.COPY_ENGINE)
        unpacked.copy_(pages)

    torch.cuda.synchronize()
    if where == "captured":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            there_and_back()
        graph.replay()
    else:
        with torch.cuda.stream(torch.cuda.Stream() if where == "own stream" else None):
            there_and_back()
    torch.cuda.synchronize()
    assert packed_pages[slots.cuda(), : 2 * page].equal(expected[ids.cuda()].flatten(1))
    assert not packed_pages[:, 2 * page :].any()
    assert unpacked.equal(expected)


@pytest.mark.parametrize(
    ("ids", "slots", "message"),
    [
        ([[0, 1], [2, 64]], [0, 1], "block_ids.1, 1. is 64, outside 0 to 63"),
        ([[0, 1], [2, -1]], [0, 1], "block_ids.1, 1. is -1"),
        ([[0, 1], [2, 3]], [0, 32], "slots.1. is 32, outside the window's 32 slots"),
        ([[0, 1], [2, 3]], [1, 1], "slots repeat a slot"),
    ],
)
def test_copy_engines_refuse_bad_ids_before_anything_is_started(
    ids: list[list[int]], slots: list[int], message: str
) -> None:
    cache, window, *_ = simple_case()
    transfer = DeviceTransfer(cache, window, 32768)
    with pytest.raises(ValueError, match=message):
        transfer.gather(torch.tensor(ids), torch.tensor(slots), mover=tk.Mover.COPY_ENGINE)
    torch.cuda.synchronize()
    assert (window == POISON).all()


def test_the_mover_is_chosen_by_costs_that_can_be_given() -> None:
    cache, window, ids, slots = simple_case()
    fast, slow = tk.MoverCosts(1, ((4096, 1e6),)), tk.MoverCosts(100, ((4096, 1e3),))
    for costs, mover in (
        (tk.TransferCosts(fast, fast, slow, slow), tk.Mover.KERNEL),
        (tk.TransferCosts(slow, slow, fast, fast), tk.Mover.COPY_ENGINE),
    ):
        transfer = DeviceTransfer(cache, window, 32768, costs=costs)
        transfer.gather(ids.cpu(), slots.cpu())
        assert transfer.decision.mover is mover
        assert "393216 bytes in 24 runs" in transfer.decision.reason
        assert window.view(32, 32768)[slots].equal(packed(cache, ids))
        transfer.gather(ids, slots)
        assert transfer.decision == tk.Decision(tk.Mover.KERNEL, "the ids are known on the device only")
    with pytest.raises(ValueError, match="copy engines cannot move this transfer: the ids are known"):
        transfer.gather(ids, slots, mover=tk.Mover.COPY_ENGINE)


@pytest.mark.parametrize("pinned", [True, False])
def test_costs_are_measured_once(pinned: bool) -> None:
    costs = tk.measure_costs(0, pinned)
    for part in (costs.kernel_gather, costs.kernel_scatter, costs.copy_gather, costs.copy_scatter):
        assert part.start_us > 0
        assert all(rate > 0 for _, rate in part.rates)
    assert tk.measure_costs(0, pinned) is costs


def test_tokens_outside_the_range_stay_on_the_device_too() -> None:
    sample = Sample(FORMS["LBHNC"], Sizes(N=16, H=4, C=64))
    cache = on_device(sample.cache)
    block = cache.block_bytes(0)
    window = torch.zeros(4 * block, dtype=torch.uint8, device="cuda")
    ids, slots = torch.tensor([[1, 3]], device="cuda"), torch.tensor([0], device="cuda")
    ranges = torch.tensor([[5, 20]], device="cuda")
    transfer = DeviceTransfer(cache, window, 2 * block, by_tokens=True)
    transfer.gather(ids, slots, token_ranges=ranges)
    expected = torch.zeros(4 * block, dtype=torch.uint8)
    sample.cache.gather(ids.cpu(), expected, slots.cpu(), 2 * block, layers=0, token_ranges=ranges.cpu())
    assert window.cpu().equal(expected)
