# SPDX-License-Identifier: Apache-2.0
"""What the two sides tell of a step's events, as plain values that every process can read.

``counts`` are growths since the last payload and are added up, ``gauges`` are states of which the newest
counts, ``samples`` are single observations. Keys are those of ``metric_table``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["Deltas", "Payload", "is_empty", "make_payload", "merge"]

Payload: TypeAlias = dict[str, dict[str, Any]]


def make_payload(
    counts: Mapping[str, float] | None = None,
    gauges: Mapping[str, float] | None = None,
    samples: Mapping[str, list[float]] | None = None,
) -> Payload:
    """Return a payload; parts that are left out are empty."""
    return {"counts": dict(counts or {}), "gauges": dict(gauges or {}), "samples": dict(samples or {})}


def is_empty(payload: Payload) -> bool:
    """Whether a payload says nothing."""
    return not any(payload.values())


def merge(into: Payload, other: Payload) -> None:
    """Add what a later payload, or one of another rank, says."""
    counts = into["counts"]
    for key, amount in other["counts"].items():
        counts[key] = counts.get(key, 0) + amount
    into["gauges"].update(other["gauges"])
    for key, values in other["samples"].items():
        into["samples"][key] = [*into["samples"].get(key, ()), *values]


class Deltas:
    """How far totals have moved since they were last looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def take(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the totals that moved, and how far.

        One that went back began anew, so all of it is new: what is added up from these never goes back.
        """
        moved = {}
        for name, total in totals.items():
            before = self._seen.get(name, 0)
            if total != before:
                moved[name] = total - before if total > before else total
        self._seen = dict(totals)
        return {name: amount for name, amount in moved.items() if amount}
