# SPDX-License-Identifier: Apache-2.0
"""All measurements: rounds that alternate between the data paths and fio, and the report of them."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tutti_runtime._progress import Progress
from tutti_runtime.bench import fio, machine
from tutti_runtime.bench.opening import measure_opening
from tutti_runtime.bench.settings import Settings, work_file
from tutti_runtime.bench.transfer import DIRECTIONS, Round, Worker, open_worker

__all__ = ["measure"]

FIO = "fio"


def measure(settings: Settings, *, quiet: bool = False) -> dict[str, Any]:
    """Measure everything and return the report, which is plain data.

    ``transfer``: a row for each data path, block and direction with ``gbs`` (10**9 bytes per second),
    ``cpu_s_per_gb``, and beside fio ``ratio`` and ``cpu_ratio``: medians over rounds of what the data path
    took in a round by what fio took in that round. ``latency``: microseconds of single reads. ``opening``:
    microseconds a file. Raises ``OSError`` for a data path or O_DIRECT that this machine refuses.
    """
    found = fio.version() if settings.fio else None
    names = [*settings.paths, *([FIO] if found else [])]
    rounds = len(settings.blocks) * len(DIRECTIONS) * settings.rounds * len(names)
    extra = len(names) * bool(settings.latency_requests) + settings.rounds * bool(settings.open_files)
    report: dict[str, Any] = {
        "machine": machine.describe(settings.folder),
        "fio": found,
        "settings": {
            "file_bytes": settings.file_bytes,
            "depth": settings.depth,
            "direct": settings.direct,
            "rounds": settings.rounds,
        },
    }
    with (
        work_file(settings.folder, settings.file_bytes) as path,
        Progress(rounds + extra, "bench", quiet=quiet) as progress,
    ):
        report["transfer"] = [
            row for block in settings.blocks for row in _block(settings, path, block, names, progress)
        ]
        if settings.latency_requests:
            report["latency"] = [_latency(settings, path, name, progress) for name in names]
    if settings.open_files:
        report["opening"] = {
            "files": settings.open_files,
            "us_per_file": measure_opening(
                settings.folder,
                settings.open_files,
                settings.rounds,
                tell=lambda text: progress.advance(1, f"opening, {text}"),
            ),
        }
    return report


def _block(
    settings: Settings, path: Path, block: int, names: list[str], progress: Progress
) -> list[dict[str, Any]]:
    taken: dict[tuple[str, str], list[Round]] = {(n, d): [] for d in DIRECTIONS for n in names}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {
            name: stack.enter_context(
                open_worker(name, path.as_uri(), direct=settings.direct, depth=settings.depth, block=block)
            )
            for name in settings.paths
        }
        for number in range(settings.rounds):
            turn = number % len(names)
            for direction in DIRECTIONS:
                for name in [*names[turn:], *names[:turn]]:  # nobody is always first
                    args = (direction, block, settings.depth, settings.file_bytes)
                    result = (
                        fio.transfer(path, *args, direct=settings.direct)
                        if name == FIO
                        else workers[name].transfer(*args)
                    )
                    taken[name, direction].append(result)
                    progress.advance(1, f"{name} {direction} {block >> 10} KiB")
    return [_row(name, direction, block, taken) for name, direction in taken]


def _row(name: str, direction: str, block: int, taken: dict[tuple[str, str], list[Round]]) -> dict[str, Any]:
    mine, beside = taken[name, direction], taken.get((FIO, direction))
    row: dict[str, Any] = {
        "path": name,
        "block": block,
        "direction": direction,
        "gbs": statistics.median(each.rate for each in mine),
        "cpu_s_per_gb": statistics.median(each.cpu for each in mine),
    }
    if beside is not None and name != FIO:
        pairs = list(zip(mine, beside, strict=True))
        row["ratio"] = statistics.median(a.rate / b.rate for a, b in pairs)
        row["cpu_ratio"] = (
            statistics.median(a.cpu / b.cpu for a, b in pairs if b.cpu)
            if any(b.cpu for b in beside)
            else None
        )
    return row


def _latency(settings: Settings, path: Path, name: str, progress: Progress) -> dict[str, Any]:
    block, count, size = settings.latency_block, settings.latency_requests, settings.file_bytes
    if name == FIO:
        median, high = fio.latency(path, block, count, size, direct=settings.direct)
    else:
        with open_worker(name, path.as_uri(), direct=settings.direct, depth=4, block=block) as worker:
            median, high = np.percentile(worker.latencies(block, count, size), [50, 99]).tolist()
    progress.advance(1, f"{name} latency")
    return {"path": name, "block": block, "p50_us": median * 1e6, "p99_us": high * 1e6}
