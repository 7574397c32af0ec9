# SPDX-License-Identifier: Apache-2.0
"""How much of a load is hidden behind computation, from a trace of torch's profiler.

    python packages/tutti-vllm/benchmarks/serving_gpu/overlap.py trace.json.gz watch.jsonl

The trace tells when the GPU computed and copied, and ``watched_connector``'s file, on the same clock, when
storage was read. A load lasts from its first read to its last copy to pages, but for time in which neither
went on. ``total / longer`` is the time from the first of all to the last of all, in ratio to the longer one
of load and computation: 1 is a perfect overlap.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Interval", "common", "length", "report", "union"]

Interval = tuple[float, float]

OURS = ("transfer_kernel", "page_kernel")
"""Parts of the names of tutti-kv-kernels' kernels."""

LARGE = 16 << 10
"""Bytes of a copy from host memory that is one of pages; vLLM's own inputs are smaller."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same time as intervals that do not touch, in order."""
    joined: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[1] > each[0]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def length(intervals: Iterable[Interval]) -> float:
    """Return how long intervals that do not touch are together."""
    return sum(end - begin for begin, end in intervals)


def common(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return what is in both of two unions."""
    found = []
    place = 0
    for begin, end in one:
        while place < len(other) and other[place][1] <= begin:
            place += 1
        at = place
        while at < len(other) and other[at][0] < end:
            found.append((max(begin, other[at][0]), min(end, other[at][1])))
            at += 1
    return found


def gpu_work(trace: dict[str, Any]) -> tuple[list[Interval], list[Interval]]:
    """Return when the GPU computed and when it copied loaded pages, in microseconds of the epoch."""
    base = trace.get("baseTimeNanoseconds", 0) / 1e3
    compute, copies = [], []
    for event in trace["traceEvents"]:
        kind, name = event.get("cat"), event.get("name", "")
        if event.get("ph") != "X" or kind not in ("kernel", "gpu_memcpy"):
            continue
        when = (base + event["ts"], base + event["ts"] + event.get("dur", 0))
        if kind == "kernel":
            (copies if any(each in name for each in OURS) else compute).append(when)
        elif "HtoD" in name and event.get("args", {}).get("bytes", 0) >= LARGE:
            copies.append(when)
    return union(compute), union(copies)


def reads(lines: Iterable[dict[str, Any]]) -> list[Interval]:
    """Return when storage was read: from a batch's start until it was there. Batches end in their order."""
    spans = sorted((span for line in lines for span in line["spans"]), key=lambda span: span[2])
    begins = [start for name, _, start, _ in spans if name == "submit reads"]
    ends = sorted(start + spent for name, _, start, spent in spans if name == "wait for reads")
    return union(zip(begins, ends, strict=False))


def report(trace: dict[str, Any], lines: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return times in milliseconds, and shares.

    Raises ValueError for a trace without work of a GPU, or where none of the load is within its time.
    """
    compute, copies = gpu_work(trace)
    if not compute:
        raise ValueError("the trace has no kernels of a GPU")
    found = reads(lines)
    load = union([*found, *copies])
    first, last = compute[0][0], compute[-1][1]
    if not load or load[-1][1] < first or load[0][0] > last:
        what = f"{load[0][0]:.0f} to {load[-1][1]:.0f} us" if load else "none"
        raise ValueError(
            f"no load is within the time of the trace ({first:.0f} to {last:.0f} us; loads: {what}): are they"
            " of one run and one clock?"
        )
    total = max(last, load[-1][1]) - min(first, load[0][0])
    busy = union([*compute, *copies])
    return {
        "total ms": total / 1e3,
        "computing ms": length(compute) / 1e3,
        "load ms": length(load) / 1e3,
        "storage reads ms": length(found) / 1e3,
        "copies to pages ms": length(copies) / 1e3,
        "share of the load that is hidden": length(common(load, compute)) / length(load),
        "share of the reads that is hidden": length(common(found, compute)) / max(length(found), 1e-9),
        "GPU idle share": 1 - length(busy) / total,
        "total / longer": total / max(length(load), length(compute)),
    }


def read_trace(path: Path) -> dict[str, Any]:
    """Return a trace, packed or not."""
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def main() -> int:
    """Print a report."""
    trace = read_trace(Path(sys.argv[1]))
    lines = [json.loads(line) for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
    for name, value in report(trace, lines).items():
        print(f"{name}: {value:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
