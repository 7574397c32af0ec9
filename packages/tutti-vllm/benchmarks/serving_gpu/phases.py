# SPDX-License-Identifier: Apache-2.0
"""What ``watched_connector`` wrote, as tables: where a load's time went, and what each callback costs.

python packages/tutti-vllm/benchmarks/serving_gpu/phases.py watch.jsonl
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["callbacks", "milestones", "read", "spans"]

Line = dict[str, Any]

EVENTS = (
    "load planned",
    "first read",
    "last read",
    "last copy",
    "load told by the worker",
    "load known to the scheduler",
    "computing",
    "second step",
    "finished",
)
"""Of a request that is loaded beside the steps, in the order in which they should be."""


def read(path: Path) -> list[Line]:
    """Return the lines of a file; none if nothing was written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def milestones(line: Line) -> dict[str, float]:
    """Return when each of ``EVENTS`` was, in milliseconds after the request's arrival."""
    events = dict(line["events"])
    ends = {
        name: [start + spent for what, _, start, spent in line["spans"] if what == name]
        for name in ("wait for reads", "wait for scatter", "start scatter")
    }
    starts = [start for what, _, start, _ in line["spans"] if what == "submit reads"]
    if starts:
        events["first read"] = min(starts)
    if ends["wait for reads"]:
        events["last read"] = max(ends["wait for reads"])
    copies = ends["wait for scatter"] or ends["start scatter"]
    if copies:
        events["last copy"] = max(copies)
    begin = events.get("arrived", 0.0)
    return {name: (events[name] - begin) / 1e3 for name in EVENTS if name in events}


def spans(lines: Iterable[Line]) -> dict[str, tuple[int, float, float]]:
    """Return for each kind of batch step how often it was made, and its median and total milliseconds."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for name, _, _, spent in line["spans"]:
            found.setdefault(name, []).append(spent / 1e3)
    return {name: (len(each), statistics.median(each), sum(each)) for name, each in found.items()}


def callbacks(lines: Sequence[Line], first: int = 0) -> dict[str, tuple[int, float]]:
    """Return each callback's calls and mean microseconds, after the first lines."""
    if len(lines) < first + 1:
        return {}
    before = lines[first - 1]["calls"] if first else {}
    found = {}
    for name, (count, total) in lines[-1]["calls"].items():
        less, spent = before.get(name, (0, 0.0))
        if count > less:
            found[name] = (count - less, (total - spent) / (count - less))
    return found


def table(lines: Sequence[Line]) -> str:
    """Return everything as text."""
    text = []
    for line in lines:
        found = milestones(line)
        if "load planned" in found:
            text.append(", ".join(f"{name} {spent:.1f}" for name, spent in found.items()))
    text += [f"{name}: {n} x, median {m:.2f} ms, all {s:.1f} ms" for name, (n, m, s) in spans(lines).items()]
    calls = callbacks(lines)
    steps = max(1, calls.get("build_connector_meta", (1, 0.0))[0])
    for name, (count, mean) in calls.items():
        text.append(f"{name}: {count} x {mean:.1f} us, {count * mean / steps:.1f} us a step")
    whole = sum(count * mean for count, mean in calls.values())
    text.append(f"all callbacks: {whole / steps:.1f} us a step, {steps} steps")
    return "\n".join(text)


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
