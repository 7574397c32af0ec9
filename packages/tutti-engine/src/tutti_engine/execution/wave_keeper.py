# SPDX-License-Identifier: Apache-2.0
"""Looks after waves that nobody waits for any more, until no I/O can reach their slots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tutti_engine.execution.ring_window import SlotBank
from tutti_engine.execution.waves import Plan, Wave

__all__ = ["WaveKeeper"]

_PATIENCE = 3600.0
"""Seconds of one wait for an overdue wave; some clocks of backends cannot express for ever."""


class WaveKeeper:
    """Gives slots back when their waves are over, also those of waves whose deadline has passed.

    Each of those has a thread that sleeps in the backend's ``wait``; the staging slots that they hold bound
    their number.
    """

    def __init__(self, on_late_end: Callable[[Plan, Sequence[int]], None]) -> None:
        """``on_late_end`` is told of positions that were in flight when dismissed and no longer are."""
        self._on_late_end = on_late_end
        self._lock = threading.Lock()
        self._overdue: list[Wave] = []
        # Waves whose handles raise: they may be written to for ever, and cannot be waited for.
        self._lost: list[Wave] = []

    @property
    def overdue(self) -> int:
        """Number of waves that are in flight although nobody waits for them."""
        return len(self._overdue) + len(self._lost)

    def acquire(self, bank: SlotBank, count: int, deadline: float) -> int | None:
        """Take a run of slots as ``SlotBank.acquire`` does, also from waves that have ended meanwhile."""
        self.reclaim()
        return bank.acquire(count, deadline)

    def acquire_free(self, bank: SlotBank, count: int, runs: int) -> list[int]:
        """Take runs of slots that are free now, see ``SlotBank.acquire_free``."""
        self.reclaim()
        return bank.acquire_free(count, runs)

    def dismiss(self, wave: Wave) -> bool:
        """Give a wave's slots back, now or, while I/O may still reach them, later.

        Return whether it was now.
        """
        if wave.quiet():
            wave.release()
            return True
        with self._lock:
            self._overdue.append(wave)
        threading.Thread(target=self._await, args=(wave,), name="tutti-overdue", daemon=True).start()
        return False

    def look_at(self, plan_id: int, then: Callable[[set[int]], None]) -> None:
        """Call ``then`` with the positions of a plan that are overdue; none of them ends while it runs."""
        with self._lock:
            waves = self._overdue + self._lost
            then({p for wave in waves if wave.plan.plan_id == plan_id for p in wave.positions})

    def reclaim(self) -> None:
        """Take back what has ended."""
        if not self._overdue:
            return
        with self._lock:
            late = [wave for wave in self._overdue if wave.quiet()]
            self._overdue = [wave for wave in self._overdue if wave not in late]
            still = self._overdue + self._lost
            busy = {(wave.plan.plan_id, position) for wave in still for position in wave.positions}
            # Told under the lock: who reclaims at the same time goes on only when all is told.
            for wave in late:
                wave.release()
                ended = [p for p in wave.positions if (wave.plan.plan_id, p) not in busy]
                if ended:
                    self._on_late_end(wave.plan, ended)

    def _await(self, wave: Wave) -> None:
        assert wave.handle is not None
        try:
            while not wave.handle.wait(deadline := time.monotonic() + _PATIENCE):
                if time.monotonic() < deadline:
                    # Not a wait: whoever takes results or slots next has a look instead.
                    return
        except Exception:
            with self._lock:
                if wave in self._overdue:
                    self._overdue.remove(wave)
                    self._lost.append(wave)
        self.reclaim()
