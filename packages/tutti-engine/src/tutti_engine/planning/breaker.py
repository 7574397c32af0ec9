# SPDX-License-Identifier: Apache-2.0
"""Stops using a store that keeps failing, and tries it again later."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Opens after ``threshold`` failures in a row; every ``cooldown`` seconds it lets one attempt through.

    The cooldown doubles with each failed attempt up to ``max_cooldown``; one success closes the breaker.
    """

    def __init__(
        self,
        *,
        threshold: int = 3,
        cooldown: float = 5.0,
        max_cooldown: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_cooldown = cooldown
        self._max_cooldown = max_cooldown
        self._clock = clock
        self._failures = 0
        self._cooldown = cooldown
        self._retry_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether attempts are held back, apart from the occasional probe."""
        return self._failures >= self._threshold

    def would_allow(self) -> bool:
        """Return what ``allow`` would say, without using up the probe."""
        return not self.is_open or self._clock() >= self._retry_at

    def allow(self) -> bool:
        """Return whether to try now. While open this is True once a cooldown: that attempt is the probe."""
        allowed = self.would_allow()
        if allowed and self.is_open:
            self._retry_at = self._clock() + self._cooldown
        return allowed

    def succeeded(self) -> None:
        """Close the breaker."""
        self._failures = 0
        self._cooldown = self._first_cooldown

    def failed(self) -> bool:
        """Count a failure; return True if this one opened the breaker."""
        self._failures += 1
        if self._failures < self._threshold:
            return False
        self._retry_at = self._clock() + self._cooldown
        self._cooldown = min(2 * self._cooldown, self._max_cooldown)
        return self._failures == self._threshold
