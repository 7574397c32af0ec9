# SPDX-License-Identifier: Apache-2.0
"""How long a part of the engine had something to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["BusyTime"]


class BusyTime:
    """Time in which at least one thing of a kind is under way, however many there are at once.

    Bytes moved over this time are what the path achieved, where times summed over transfers that run side by
    side would say less.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def under_way(self) -> int:
        """How many have begun and not ended."""
        return self._under_way

    def begin(self) -> None:
        """Note that one more is under way."""
        with self._lock:
            if not self._under_way:
                self._since = self._clock()
            self._under_way += 1

    def end(self) -> None:
        """Note that one has ended."""
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self._seconds += max(0.0, self._clock() - self._since)

    def seconds(self) -> float:
        """Return the time so far, that of what is under way included; it never goes back."""
        with self._lock:
            if not self._under_way:
                return self._seconds
            return self._seconds + max(0.0, self._clock() - self._since)
