# SPDX-License-Identifier: Apache-2.0
"""The measurements of ``gpu.py``, one function a question. Rates are GB/s (1e9 bytes moved a second)."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpu_timing import Rotation, alternating_us, host_us, on_stream_us

import tutti_kv_kernels as tk

__all__ = ["Gemm", "beside_gemm", "device_windows", "host_costs", "pinned_windows", "random_bytes"]

MIB = 1 << 20
Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A layout of pages in a pool: runs of ``run`` bytes, ``stride`` apart, make a block."""

    name: str
    block: int
    run: int
    stride: int
    blocks_per_segment: int

    def cache(self, pool: torch.Tensor) -> tk.PagedCache:
        runs = self.block // self.run
        step = self.block if runs == 1 else runs * self.stride
        plane = tk.Plane(0, 0, step, pool.numel() // step, self.run, (1, 1, runs), (0, 0, self.stride))
        return tk.PagedCache([pool], [[plane]])


SHAPES = [
    Shape("page of 64 KiB in one run (LBHNC, LBNHC, BL*)", 65536, 65536, 0, 4),
    Shape("page of 16 KiB in one run", 16384, 16384, 0, 16),
    Shape("page of 18 KiB in one run (MLA)", 18432, 18432, 0, 14),
    Shape("runs of 4 KiB, one a head (LHBNC, BHLNC)", 65536, 4096, 8192, 4),
    Shape("runs of 512 B", 65536, 512, 1024, 4),
    Shape("runs of 256 B", 65536, 256, 512, 4),
    Shape("runs of 1152 B", 64512, 1152, 2304, 4),
]


def random_bytes(size: int, device: str = "cuda") -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)


def device_windows(pool_bytes: int, sizes: list[int]) -> list[Row]:
    """Between pages and a window in device memory, against a copy of the same bytes in one run."""
    pool, window, scratch = (random_bytes(pool_bytes) for _ in range(3))
    rows = []
    for shape in SHAPES:
        cache = shape.cache(pool)
        slot_bytes = shape.block * shape.blocks_per_segment
        transfer = tk.DeviceTransfer(cache, window, slot_bytes)
        for size in sizes:
            rows.append(_device_window(shape, cache, transfer, size, pool, scratch))
    return rows


def _device_window(
    shape: Shape,
    cache: tk.PagedCache,
    transfer: tk.DeviceTransfer,
    size: int,
    pool: torch.Tensor,
    scratch: torch.Tensor,
) -> Row:
    segments = max(1, size // transfer.slot_bytes)
    nbytes = segments * transfer.slot_bytes
    sets = max(2, min(16, (1 << 30) // nbytes))
    per_set = segments * shape.blocks_per_segment
    ids = torch.randperm(cache.num_ids(0), device="cuda")[: sets * per_set].view(sets, segments, -1)
    slots = torch.randperm(transfer.window.numel() // transfer.slot_bytes, device="cuda")[: sets * segments]
    ids, slots = ids.contiguous(), slots.view(sets, segments)
    sums = torch.zeros(sets, segments, dtype=torch.int64, device="cuda")
    status = torch.zeros(segments, dtype=torch.int32, device="cuda")
    for i in range(sets):
        transfer.gather(ids[i], slots[i], checksums=sums[i])
    turn = Rotation(sets)

    def scatter(i: int, verify: tk.Verify) -> None:
        expected = None if verify is tk.Verify.NONE else sums[i]
        transfer.scatter(ids[i], slots[i], checksums=expected, status=status, verify=verify)

    def copied(memory: torch.Tensor, i: int) -> torch.Tensor:
        return memory.narrow(0, i * nbytes, nbytes)

    times = alternating_us(
        {
            "copy": turn(
                lambda i: scratch[: i * nbytes + nbytes][-nbytes:].copy_(pool[i * nbytes :][:nbytes])
            ),
            "gather": turn(lambda i: transfer.gather(ids[i], slots[i])),
            "gather, checksum": turn(lambda i: transfer.gather(ids[i], slots[i], checksums=sums[i])),
            "scatter": turn(lambda i: scatter(i, tk.Verify.NONE)),
            "scatter, fused": turn(lambda i: scatter(i, tk.Verify.FUSED)),
            "scatter, before": turn(lambda i: scatter(i, tk.Verify.BEFORE)),
        }
    )
    if status.any():
        raise RuntimeError(f"{shape.name}: a scatter reported {status.unique().tolist()}: nothing was timed")
    times |= _indexed(shape, pool, scratch, ids, segments)
    return {"shape": shape.name, "run": shape.run, "bytes": nbytes, "us": times}


def _indexed(
    shape: Shape, pool: torch.Tensor, scratch: torch.Tensor, ids: torch.Tensor, segments: int
) -> dict[str, float]:
    """torch's own operators on the same blocks, as rows of 8-byte numbers; strided ones through a view."""
    runs = shape.block // shape.run
    step = shape.block if runs == 1 else runs * shape.stride
    rows = pool.narrow(0, 0, pool.numel() // step * step).view(torch.int64).view(-1, step // 8)
    if runs > 1:
        rows = rows.view(rows.shape[0], runs, shape.stride // 8)[:, :, : shape.run // 8]
    count = segments * shape.blocks_per_segment
    size = count * shape.block
    flat = ids.view(ids.shape[0], count)
    turn = Rotation(ids.shape[0])

    def packed(i: int) -> torch.Tensor:
        return scratch.narrow(0, i * size, size).view(torch.int64).view(count, *rows.shape[1:])

    return alternating_us(
        {
            "index_select": turn(lambda i: torch.index_select(rows, 0, flat[i], out=packed(i))),
            "index_copy_": turn(lambda i: rows.index_copy_(0, flat[i], packed(i))),
        }
    )


def pinned_windows(nbytes: int, run_sizes: list[int]) -> list[Row]:
    """Between pages and a window in pinned host memory, against a plain copy of the same bytes."""
    window = torch.randint(0, 256, (nbytes,), dtype=torch.uint8).pin_memory()
    pool = random_bytes(2 * nbytes)
    rows = []
    for run in run_sizes:
        blocks = max(1, (256 << 10) // run)
        cache = tk.PagedCache([pool], [[tk.Plane(0, 0, run, 2 * nbytes // run, run)]])
        segments = nbytes // (run * blocks)
        ids = torch.randperm(2 * nbytes // run)[: segments * blocks].view(segments, blocks)
        slots = torch.randperm(segments)
        rows.append(
            {"run": run, "bytes": nbytes, "us": _pinned(cache, window, pool, ids, slots, run * blocks)}
        )
    return rows


def _pinned(
    cache: tk.PagedCache,
    window: torch.Tensor,
    pool: torch.Tensor,
    ids: torch.Tensor,
    slots: torch.Tensor,
    slot_bytes: int,
) -> dict[str, float]:
    transfer = tk.DeviceTransfer(cache, window, slot_bytes)
    few = tk.DeviceTransfer(cache, window, slot_bytes, num_sms=4)
    other = tk.DeviceTransfer(cache, window, slot_bytes)
    on_device = (ids.cuda(), slots.cuda())
    sums = torch.zeros(slots.numel(), dtype=torch.int64, device="cuda")
    transfer.gather(*on_device, checksums=sums)
    status = torch.zeros(slots.numel(), dtype=torch.int32, device="cuda")
    engine, none = tk.Mover.COPY_ENGINE, tk.Verify.NONE
    size = window.numel()
    side = torch.cuda.Stream()
    half = slots.numel() // 2

    def both(mover: tk.Mover) -> None:
        """Half of the slots are filled while the other half is emptied."""
        places = (ids, slots) if mover is engine else on_device
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other.scatter(places[0][half:], places[1][half:], verify=none, mover=mover)
        transfer.gather(places[0][:half], places[1][:half], mover=mover)
        torch.cuda.current_stream().wait_stream(side)

    checked = {"checksums": sums, "status": status, "verify": tk.Verify.FUSED}
    return on_stream_us(
        {
            "copy to host": lambda: window.copy_(pool[:size], non_blocking=True),
            "copy to device": lambda: pool[:size].copy_(window, non_blocking=True),
            "gather, kernel": lambda: transfer.gather(*on_device),
            "gather, kernel, checksum": lambda: transfer.gather(*on_device, checksums=sums),
            "gather, kernel on 4 SMs": lambda: few.gather(*on_device),
            "gather, engines": lambda: transfer.gather(ids, slots, mover=engine),
            "gather, engines, checksum": lambda: transfer.gather(ids, slots, checksums=sums, mover=engine),
            "gather, auto": lambda: transfer.gather(ids, slots),
            "scatter, kernel": lambda: transfer.scatter(*on_device, verify=none),
            "scatter, kernel, checksum": lambda: transfer.scatter(*on_device, **checked),
            "scatter, kernel on 4 SMs": lambda: few.scatter(*on_device, verify=none),
            "scatter, engines": lambda: transfer.scatter(ids, slots, verify=none, mover=engine),
            "scatter, engines, checksum": lambda: transfer.scatter(ids, slots, mover=engine, **checked),
            "scatter, auto": lambda: transfer.scatter(ids, slots, verify=none),
            "both ways, kernel": lambda: both(tk.Mover.KERNEL),
            "both ways, engines": lambda: both(engine),
            "checksum of the pages": lambda: transfer.checksums(*on_device, sums),
        }
    )


class Gemm:
    """Products of two bf16 matrices, one after the other on a stream of their own."""

    def __init__(self, n: int = 8192, stream: torch.cuda.Stream | None = None) -> None:
        self._a, self._b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._out = torch.empty_like(self._a)
        self._stream = torch.cuda.Stream() if stream is None else stream

    def milliseconds(self, count: int) -> float:
        with torch.cuda.stream(self._stream):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                torch.matmul(self._a, self._b, out=self._out)
            end.record()
        while not end.query():
            time.sleep(0.0005)
        return begin.elapsed_time(end) / count


def beside_gemm(sm_counts: list[int], paced_gbps: float = 30.0, products: int = 100) -> list[Row]:
    """Slowdown of a GEMM by transfers beside it, paced and as fast as they go, over multiprocessors used.

    The GEMM's blocks hold their multiprocessors until it ends, so a transfer starts between two products:
    a launch moves 64 MiB where the rate is given, and 256 MiB where it is to be large.
    """
    pool, window = random_bytes(1 << 30), random_bytes(1 << 30)
    shape = SHAPES[0]
    cache, slot_bytes = shape.cache(pool), 4 * shape.block
    ids = torch.randperm(cache.num_ids(0), device="cuda")[: 1024 * 4].view(1024, 4)
    slots = torch.randperm(window.numel() // slot_bytes, device="cuda")[:1024]
    sums = torch.zeros(1024, dtype=torch.int64, device="cuda")
    gemm = Gemm()
    gemm.milliseconds(products)
    rows = []
    for sms in sm_counts:
        transfer = tk.DeviceTransfer(cache, window, slot_bytes, num_sms=sms)
        row: Row = {"sms": sms}
        for name, gbps, n in (("paced", paced_gbps, 256), ("unpaced", 0.0, 1024)):
            work = partial(transfer.gather, ids[:n], slots[:n], checksums=sums[:n])
            alone, beside, rates = [], [], []
            for _ in range(3):
                alone.append(gemm.milliseconds(products))
                mover = Background(work, n * slot_bytes, gbps)
                with mover:
                    beside.append(gemm.milliseconds(products))
                rates.append(mover.gbps)
            slowdown = statistics.median(beside) / statistics.median(alone) - 1
            row |= {f"{name} GB/s": statistics.median(rates), f"{name} slowdown": slowdown}
            row["gemm ms"] = statistics.median(alone)
        rows.append(row)
    return rows


class Background:
    """Repeats a transfer from a thread: ``gbps`` a second, or one behind the other with two in flight."""

    def __init__(self, work: Any, nbytes: int, gbps: float) -> None:
        self._work = work
        self._nbytes = nbytes
        self._gap = nbytes / (gbps * 1e9) if gbps else 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.gbps = 0.0

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # Of high priority: its few blocks go first when a multiprocessor falls free.
        stream, count = torch.cuda.Stream(priority=-1), 0
        events: list[torch.cuda.Event] = []
        begin = time.perf_counter()
        with torch.cuda.stream(stream):
            while not self._stop.is_set():
                wait = begin + count * self._gap - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                self._work()
                count += 1
                events.append(torch.cuda.Event())
                events[-1].record()
                if len(events) > 2:
                    events.pop(0).synchronize()
        stream.synchronize()
        self.gbps = count * self._nbytes / (time.perf_counter() - begin) / 1e9


def host_costs() -> list[Row]:
    """The host's microseconds for one call that moves little."""
    rows = [{"call": "zero_ of 16 numbers (torch)", "us": host_us(torch.zeros(16, device="cuda").zero_)}]
    for layers in (1, 80, 126):
        rows += _launch_costs(layers)
    pool, window = random_bytes(MIB), random_bytes(MIB)
    transfer = tk.DeviceTransfer(tk.PagedCache([pool], [[tk.Plane(0, 0, 4096, 256, 4096)]]), window, 4096)
    many = torch.arange(64).flip(0).view(64, 1)
    with torch.cuda.stream(torch.cuda.Stream()):
        engines = host_us(lambda: transfer.gather(many, many.view(-1), mover=tk.Mover.COPY_ENGINE))
    rows.append({"call": "gather of 64 runs by copy engines", "us": engines})
    data = torch.randint(0, 256, (256 * MIB,), dtype=torch.uint8)
    begin = time.perf_counter()
    tk.checksum(data)
    per_mib = (time.perf_counter() - begin) / 256 * 1e6
    return [*rows, {"call": "checksum of 1 MiB on the CPU, one thread", "us": per_mib}]


def _launch_costs(layers: int) -> list[Row]:
    pool, window = random_bytes(64 * MIB), random_bytes(MIB)
    planes = [[tk.Plane(0, i * (1 << 18), 4096, 64, 4096)] for i in range(layers)]
    transfer = tk.DeviceTransfer(tk.PagedCache([pool], planes), window, 4096)
    ids, slots = torch.zeros(1, 1, dtype=torch.int64).cuda(), torch.arange(layers).cuda()
    sums = torch.zeros(layers, dtype=torch.int64).cuda()
    status = torch.zeros(layers, dtype=torch.int32).cuda()
    of = {"layers": slots} if layers > 1 else {}
    calls = {
        "gather": lambda: transfer.gather(ids, slots, **of),
        "gather, checksums": lambda: transfer.gather(ids, slots, checksums=sums, **of),
        "scatter, fused": lambda: transfer.scatter(
            ids, slots, checksums=sums, status=status, verify=tk.Verify.FUSED, **of
        ),
    }
    return [{"call": f"{name}, {layers} layers", "us": host_us(call)} for name, call in calls.items()]
