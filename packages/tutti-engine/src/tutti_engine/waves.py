# SPDX-License-Identifier: Apache-2.0
"""Segments that travel together, and the staging slots they hold until nothing can touch them any more."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tutti_engine.backend import SegmentBatch, SegmentHandle
from tutti_engine.plan import LoadPlan, StorePlan
from tutti_engine.ring_window import SlotBank

__all__ = ["Run", "Wave", "WaveKeeper"]

_RETRY_PAUSE = 0.001
_RECLAIM_INTERVAL = 0.05

Plan: TypeAlias = LoadPlan | StorePlan
Submit: TypeAlias = Callable[[SegmentBatch], SegmentHandle]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring slots that hold some layers of the chunk at ``position`` of a plan."""

    position: int
    slot: int


class Wave:
    """Runs of one plan that travel in one batch.

    Attributes:
        started: when the wave was made, in ``time.monotonic()`` seconds.
    """

    def __init__(self, plan: Plan, bank: SlotBank, runs: list[Run], layers: Sequence[int]) -> None:
        self.plan = plan
        self.runs = runs
        self.layers = layers
        self.started = time.monotonic()
        self._bank = bank
        self._handle: SegmentHandle | None = None
        # What the current handle stands for, as indices into runs x layers.
        self._segments: Sequence[int] = range(len(runs) * len(layers))

    @property
    def positions(self) -> list[int]:
        """Positions in the plan of the chunks that travel."""
        return [run.position for run in self.runs]

    def submit(self, submit: Submit) -> None:
        """Start what is still to be moved."""
        self._handle = submit(self._batch())

    def finish(self, submit: Submit, deadline: float) -> dict[int, int]:
        """Wait for the end and repeat what the backend had no room for; return each failed position's errno.

        All positions have failed when ``time.monotonic()`` reaches ``deadline`` first.
        """
        errors: dict[int, int] = {}
        while True:
            assert self._handle is not None
            if not self._handle.wait(deadline):
                return dict.fromkeys(self.positions, errno.ETIMEDOUT)
            refused = self._collect(errors)
            if not refused:
                return errors
            if time.monotonic() >= deadline:
                for segment in refused:
                    errors.setdefault(self._position(segment), errno.EAGAIN)
                return errors
            time.sleep(_RETRY_PAUSE)
            self._segments = refused
            self.submit(submit)

    def quiet(self) -> bool:
        """Whether no I/O can reach the slots; a backend that cannot say is taken at its worst."""
        try:
            return self._handle is None or self._handle.poll()
        except Exception:
            return False

    def release(self) -> None:
        """Give all slots back."""
        for run in self.runs:
            self._bank.release(run.slot, len(self.layers))

    def _batch(self) -> SegmentBatch:
        width = len(self.layers)
        runs = [self.runs[segment // width] for segment in self._segments]
        places = [segment % width for segment in self._segments]
        return SegmentBatch(
            chunk_ids=[self.plan.transfers[run.position].chunk_id for run in runs],
            layers=[self.layers[place] for place in places],
            slots=[run.slot + place for run, place in zip(runs, places, strict=True)],
        )

    def _collect(self, errors: dict[int, int]) -> list[int]:
        """Add the finished handle's failures to ``errors``; return the segments that found no room."""
        assert self._handle is not None
        refused = []
        for segment, code in zip(self._segments, self._handle.status(), strict=True):
            if code == errno.EAGAIN:
                refused.append(segment)
            elif code:
                errors.setdefault(self._position(segment), code)
        return refused

    def _position(self, segment: int) -> int:
        return self.runs[segment // len(self.layers)].position


class WaveKeeper:
    """Gives slots back when their waves are over, also those of waves that nobody waits for any more."""

    def __init__(self, on_late_end: Callable[[Plan, list[int]], None]) -> None:
        """``on_late_end`` is told of positions that were in flight when dismissed and no longer are."""
        self._on_late_end = on_late_end
        self._lock = threading.Lock()
        self._stuck: list[Wave] = []

    def acquire(self, bank: SlotBank, count: int, deadline: float) -> int | None:
        """Take a run of slots as ``SlotBank.acquire`` does, also from waves that end while this waits."""
        while True:
            self.reclaim()
            slot = bank.acquire(count, min(deadline, time.monotonic() + _RECLAIM_INTERVAL))
            if slot is not None or time.monotonic() >= deadline:
                return slot

    def dismiss(self, wave: Wave) -> bool:
        """Give a wave's slots back, now or, while I/O may still reach them, later.

        Return whether it was now.
        """
        if wave.quiet():
            wave.release()
            return True
        with self._lock:
            self._stuck.append(wave)
        return False

    def reclaim(self) -> None:
        """Look after the waves that were in flight when they were dismissed."""
        if not self._stuck:
            return
        with self._lock:
            late = [wave for wave in self._stuck if wave.quiet()]
            self._stuck = [wave for wave in self._stuck if wave not in late]
            busy = {(wave.plan.plan_id, position) for wave in self._stuck for position in wave.positions}
        for wave in late:
            wave.release()
            ended = [p for p in wave.positions if (wave.plan.plan_id, p) not in busy]
            if ended:
                self._on_late_end(wave.plan, ended)
