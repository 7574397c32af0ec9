# SPDX-License-Identifier: Apache-2.0
"""What transfers take of a GPU that computes: few thread blocks, copy engines, green contexts.

    python benchmarks/gpu_sm.py [--gbps 20] [--json FILE]

Pages of 64 KiB go to and from pinned memory, 64 MiB a transfer, at a given rate beside products of large
matrices. ``share`` is the share of the device's multiprocessors times the share of the time in which the
transfers hold them or wait for them, as they do until a product ends. ``GEMM slower`` compares with the same
products alone, in the same round; with green contexts, with products that have the whole device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_cases import Gemm, random_bytes
from gpu_green import GreenContexts

import tutti_kv_kernels as tk

__all__ = ["Pages", "busy_share", "table"]

PAGE = 64 << 10
BLOCKS = 4
SEGMENTS = 256
SUM_SMS = 4
"""Multiprocessors that take checksums where copy engines move the bytes, as in tutti-engine."""
NBYTES = SEGMENTS * BLOCKS * PAGE
Row = dict[str, Any]


class Pages:
    """Pages on the device, a pinned window, and transfers between them."""

    def __init__(self, sms: int, mover: tk.Mover) -> None:
        self.sms, self.mover = sms, mover
        pool = random_bytes(4 * NBYTES)
        self._window = torch.randint(0, 256, (NBYTES,), dtype=torch.uint8).pin_memory()
        blocks = pool.numel() // PAGE
        cache = tk.PagedCache([pool], [[tk.Plane(0, 0, PAGE, blocks, PAGE)]])
        self._transfer = tk.DeviceTransfer(cache, self._window, BLOCKS * PAGE, num_sms=sms)
        ids = torch.randperm(blocks)[: SEGMENTS * BLOCKS].view(SEGMENTS, BLOCKS).contiguous()
        slots = torch.randperm(SEGMENTS)
        if mover is tk.Mover.KERNEL:
            ids, slots = ids.pin_memory(), slots.pin_memory()
        self._ids, self._slots = ids, slots
        self._sums = torch.zeros(SEGMENTS, dtype=torch.int64, pin_memory=True)
        self._status = torch.zeros(SEGMENTS, dtype=torch.int32, pin_memory=True)

    def gather(self) -> None:
        """Pages to the window, with checksums."""
        self._transfer.gather(self._ids, self._slots, checksums=self._sums, mover=self.mover)

    def scatter(self) -> None:
        """The window to pages, compared with checksums on the way, as a load does it."""
        self._transfer.scatter(
            self._ids,
            self._slots,
            checksums=self._sums,
            status=self._status,
            verify=tk.Verify.FUSED,
            mover=self.mover,
        )


class Paced:
    """Repeats a transfer from a thread at a rate, and adds up how long the device was at it."""

    def __init__(
        self,
        work: Callable[[], None],
        gbps: float,
        stream: Callable[[], torch.cuda.Stream],
        where: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._work, self._gap = work, NBYTES / (gbps * 1e9)
        self._stream, self._where = stream, where
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.gbps = self.busy = 0.0
        self.error: Exception | None = None

    def __enter__(self) -> Paced:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with self._where():
                self._repeat()
        except Exception as error:
            self.error = error

    def _repeat(self) -> None:
        stream, count, spent = self._stream(), 0, 0.0
        begin = time.perf_counter()
        with torch.cuda.stream(stream):
            while not self._stop.is_set():
                wait = begin + count * self._gap - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                self._work()
                last.record()
                last.synchronize()
                spent += first.elapsed_time(last) / 1e3
                count += 1
        passed = time.perf_counter() - begin
        self.gbps, self.busy = count * NBYTES / passed / 1e9, spent / passed


def busy_share(sms: int, of: int, busy: float) -> float:
    """Return what ``sms`` of a device's multiprocessors are of it, held for a share of the time."""
    return sms / of * busy


def measure(
    name: str,
    gemms: tuple[Gemm, Gemm],
    pages: Pages,
    options: argparse.Namespace,
    *,
    green: GreenContexts | None = None,
) -> list[Row]:
    """Measure both directions; ``gemms`` are one alone, with the whole device, and one beside."""
    rows = []
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    stream: Callable[[], torch.cuda.Stream] = partial(torch.cuda.Stream, priority=-1)
    if green is not None:
        stream = partial(torch.cuda.ExternalStream, green.streams[0])
    for what, work in (("gather", pages.gather), ("scatter", pages.scatter)):
        alone, beside, rates, busy = [], [], [], []
        for _ in range(options.rounds):
            alone.append(gemms[0].milliseconds(options.products))
            where = contextlib.nullcontext if green is None else partial(green.current, 0)
            with Paced(work, options.gbps, stream, where) as mover, current(green, 1):
                beside.append(gemms[1].milliseconds(options.products))
            rates.append(mover.gbps)
            busy.append(mover.busy)
        rows.append(
            {
                "method": name,
                "direction": what,
                "GB/s": statistics.median(rates),
                "share": busy_share(pages.sms, whole, statistics.median(busy)),
                "GEMM slower": statistics.median(beside) / statistics.median(alone) - 1,
            }
        )
    return rows


@contextlib.contextmanager
def current(green: GreenContexts | None, which: int) -> Iterator[None]:
    """Make one of two green contexts the thread's own, if there are any."""
    with contextlib.nullcontext() if green is None else green.current(which):
        yield


def run(options: argparse.Namespace, rows: list[Row]) -> None:
    """Measure all methods, and add to ``rows``; one that fails is a row with its error."""
    gemm = Gemm()
    gemm.milliseconds(options.products)

    def attempt(name: str, make: Callable[[], list[Row]]) -> None:
        print(name, file=sys.stderr, flush=True)
        try:
            rows.extend(make())
        except Exception as error:
            rows.append({"method": name, "error": f"{type(error).__name__}: {error}"})

    for sms in options.sms:
        kernel = partial(Pages, sms, tk.Mover.KERNEL)
        name = f"kernel, {sms} multiprocessors"
        attempt(name, lambda name=name, kernel=kernel: measure(name, (gemm, gemm), kernel(), options))
    # Their kernel takes checksums only: the share is more than it holds, as it does not run while bytes move.
    engines = partial(Pages, SUM_SMS, tk.Mover.COPY_ENGINE)
    name = f"copy engines, checksums by {SUM_SMS} multiprocessors"
    attempt(name, lambda: measure(name, (gemm, gemm), engines(), options))
    for sms in options.green:
        attempt(f"green context, {sms}", partial(_green, sms, gemm, options))


def _green(sms: int, gemm: Gemm, options: argparse.Namespace) -> list[Row]:
    green = GreenContexts(sms)
    own, rest = green.sms
    name = f"green contexts, {own} and {rest} multiprocessors"
    with green.current(1):
        other = Gemm(stream=torch.cuda.ExternalStream(green.streams[1]))
        other.milliseconds(options.products)
        cut = statistics.median(other.milliseconds(options.products) for _ in range(options.rounds))
    whole = statistics.median(gemm.milliseconds(options.products) for _ in range(options.rounds))
    rows: list[Row] = [{"method": f"{name}, no transfers", "GEMM slower": cut / whole - 1}]
    return rows + measure(name, (gemm, other), Pages(own, tk.Mover.KERNEL), options, green=green)


def table(rows: list[Row]) -> str:
    """Return rows as Markdown."""
    text = ["| method | direction | GB/s | share of multiprocessors | GEMM slower |"]
    text.append("| --- | --- | ---: | ---: | ---: |")
    for row in rows:
        if "error" in row:
            text.append(f"| {row['method']} | {row['error'][:160]} | | | |")
            continue
        share = f"{row['share']:.1%}" if "share" in row else ""
        rate = f"{row['GB/s']:.1f}" if "GB/s" in row else ""
        text.append(
            f"| {row['method']} | {row.get('direction', '')} | {rate} | {share} | {row['GEMM slower']:.1%} |"
        )
    return "\n".join(text)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--gbps", type=float, default=20.0)
    parser.add_argument("--sms", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--green", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--products", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    rows: list[Row] = []
    try:
        run(options, rows)
    finally:
        print(table(rows))
        if options.json:
            options.json.write_text(json.dumps({"rows": rows, "settings": vars(options)}, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
