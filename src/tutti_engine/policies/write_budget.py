# SPDX-License-Identifier: Apache-2.0
"""Bytes that may be written a day: they are the drive's life."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WriteBudget"]

SECONDS_A_DAY = 86_400.0

BURST_SHARE = 0.25
"""Part of a day's budget that may be written at once; the rest flows in evenly: no 24 hours see more."""


class WriteBudget:
    """A bucket of bytes that fills with time.

    The clock may stand or go backwards: that adds nothing and takes nothing.

    Args:
        daily_bytes: most bytes in any 24 hours; None for no limit.
        fill: how full the bucket is at first, 0 to 1. A restart that found it full each time would be a way
            around the limit.
        clock: seconds, from any start.
    """

    def __init__(
        self, daily_bytes: int | None, *, fill: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._daily = daily_bytes
        self._clock = clock
        self._burst = BURST_SHARE * (daily_bytes or 0)
        self._left = fill * self._burst
        self._seen = clock()

    def take(self, num_bytes: int) -> bool:
        """Spend bytes if there are as many; return whether there were."""
        if self._daily is None:
            return True
        self._fill(self._daily)
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True

    def left(self) -> float | None:
        """Return the bytes that may be written at once now, None if there is no limit."""
        if self._daily is None:
            return None
        self._fill(self._daily)
        return self._left

    def put_back(self, num_bytes: int) -> None:
        """Return bytes that were not written after all."""
        if self._daily is not None:
            self._left = min(self._burst, self._left + num_bytes)

    def _fill(self, daily_bytes: int) -> None:
        now = self._clock()
        flow = (1.0 - BURST_SHARE) * daily_bytes / SECONDS_A_DAY
        self._left = min(self._burst, self._left + max(0.0, now - self._seen) * flow)
        self._seen = now
