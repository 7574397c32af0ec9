# SPDX-License-Identifier: Apache-2.0
"""Book-keeping of plans under way, used by the executor."""

from __future__ import annotations

import errno
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tutti_engine.backend import SegmentBatch, SegmentHandle
from tutti_engine.plan import LoadPlan, LoadResult, StorePlan, StoreResult
from tutti_engine.ring_window import SlotBank

__all__ = ["LoadJob", "Run", "StoreJob", "Transfer", "Wave"]


class Transfer:
    """A load under way, for callers that wait for single layers."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._ok = False

    def finish(self, *, ok: bool) -> None:
        """Mark the transfer as ended."""
        self._ok = ok
        self._done.set()

    def poll(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def wait(self, deadline: float) -> bool:
        """Wait for the end until ``time.monotonic()`` reaches ``deadline``; return ``poll()``."""
        return self._done.wait(max(0.0, deadline - time.monotonic()))

    @property
    def ok(self) -> bool:
        """Whether every chunk arrived and verified; False before the end."""
        return self._ok


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring slots that hold some layers of the chunk at ``position`` of a plan."""

    position: int
    slot: int


class Wave:
    """Runs that travel in one batch."""

    def __init__(self, bank: SlotBank, runs: list[Run], layers: Sequence[int]) -> None:
        self.runs = runs
        self.layers = layers
        self.handle: SegmentHandle | None = None
        self._bank = bank
        # What the current handle stands for, as indices into runs x layers.
        self._segments: Sequence[int] = range(len(runs) * len(layers))

    def batch(self, plan: LoadPlan | StorePlan) -> SegmentBatch:
        """Return the segments that are still to be moved."""
        width = len(self.layers)
        runs = [self.runs[segment // width] for segment in self._segments]
        places = [segment % width for segment in self._segments]
        return SegmentBatch(
            chunk_ids=[plan.transfers[run.position].chunk_id for run in runs],
            layers=[self.layers[place] for place in places],
            slots=[run.slot + place for run, place in zip(runs, places, strict=True)],
        )

    def collect(self, errors: dict[int, int]) -> list[int]:
        """Add the finished handle's failures to ``errors``.

        Return the segments that were refused for lack of room.
        """
        assert self.handle is not None
        refused = []
        for segment, code in zip(self._segments, self.handle.status(), strict=True):
            if code == errno.EAGAIN:
                refused.append(segment)
            elif code:
                errors.setdefault(self.runs[segment // len(self.layers)].position, code)
        return refused

    def positions(self, segments: Sequence[int]) -> list[int]:
        """Return the plan positions that segments belong to."""
        return [self.runs[segment // len(self.layers)].position for segment in segments]

    def resubmit(self, plan: LoadPlan | StorePlan, segments: list[int], submit: Callable[..., Any]) -> None:
        """Try refused segments again."""
        self._segments = segments
        self.handle = submit(self.batch(plan))

    def quiet(self) -> bool:
        """Whether no I/O can reach the slots."""
        return self.handle is None or self.handle.poll()

    def release(self) -> None:
        """Give all slots back."""
        for run in self.runs:
            self._bank.release(run.slot, len(self.layers))


class _Job:
    """What is common to a plan's load and a plan's store."""

    def __init__(self, num_layers: int) -> None:
        self.layers_left = num_layers
        self.errors: dict[int, int] = {}
        self._first_error = 0

    def fail(self, position: int, code: int) -> None:
        """Note the first reason why a chunk failed."""
        self._first_error = self._first_error or code
        self.errors.setdefault(position, code)


class LoadJob(_Job):
    """A load plan under way."""

    def __init__(self, plan: LoadPlan, num_layers: int) -> None:
        super().__init__(num_layers)
        self.plan = plan
        self.bytes_read = 0
        self.seconds = 0.0

    def fail_all(self, code: int) -> None:
        """Note that nothing of the plan can be relied on."""
        for position in range(len(self.plan.transfers)):
            self.fail(position, code)

    def result(self) -> LoadResult:
        """Return what the planning side is told."""
        return LoadResult(
            self.plan.plan_id, tuple(sorted(self.errors)), self._first_error, self.bytes_read, self.seconds
        )


class StoreJob(_Job):
    """A store plan under way."""

    def __init__(self, plan: StorePlan, num_layers: int) -> None:
        super().__init__(num_layers)
        self.plan = plan
        self.waves_left = 0
        self.unsettled: set[int] = set()
        self.bytes_written = 0
        self._sums = [[0] * num_layers for _ in plan.transfers]

    def note(self, layer: int, positions: Sequence[int], sums: Sequence[int]) -> None:
        """Keep the checksums of one layer."""
        for position, value in zip(positions, sums, strict=True):
            self._sums[position][layer] = value

    def result(self) -> StoreResult:
        """Return what the planning side is told."""
        checksums = tuple(
            None if position in self.errors else struct.pack(f"<{len(sums)}Q", *sums)
            for position, sums in enumerate(self._sums)
        )
        return StoreResult(
            self.plan.plan_id, checksums, tuple(sorted(self.unsettled)), self._first_error, self.bytes_written
        )
