# SPDX-License-Identifier: Apache-2.0
"""Counters that only grow."""

from __future__ import annotations

import threading

__all__ = ["Counters"]


class Counters:
    """A thread-safe set of named totals. Names are listed where they are counted, in the planner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, int] = {}
        self._changes = 0

    def add(self, name: str, amount: int = 1) -> None:
        """Raise a total. Raises ValueError for a negative amount."""
        if amount < 0:
            raise ValueError(f"counter {name} cannot go back by {-amount}")
        with self._lock:
            self._totals[name] = self._totals.get(name, 0) + amount
            self._changes += 1

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._totals.get(name, 0)

    @property
    def changes(self) -> int:
        """How often a total was raised: as long as it stays, a snapshot would show nothing new."""
        return self._changes

    def snapshot(self) -> dict[str, int]:
        """Return all totals."""
        with self._lock:
            return dict(self._totals)
