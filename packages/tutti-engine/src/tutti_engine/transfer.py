# SPDX-License-Identifier: Apache-2.0
"""Book-keeping of plans under way, used by the executor."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence

from tutti_engine.plan import LoadPlan, LoadResult, StorePlan, StoreResult
from tutti_engine.severity import worse

__all__ = ["LoadJob", "StoreJob", "Transfer"]


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


class _Job:
    """What is common to a plan's load and a plan's store."""

    def __init__(self, num_layers: int) -> None:
        self.layers_left = num_layers
        self.errors: dict[int, int] = {}
        self._worst_error = 0

    def fail(self, position: int, code: int) -> None:
        """Note why a chunk failed; its first reason stays."""
        self._worst_error = worse(self._worst_error, code)
        self.errors.setdefault(position, code)


class LoadJob(_Job):
    """A load plan under way."""

    def __init__(self, plan: LoadPlan, num_layers: int) -> None:
        super().__init__(num_layers)
        self.plan = plan
        self.bytes_read = 0
        self.seconds = 0.0
        self._untried: set[int] = set()

    @property
    def positions(self) -> range:
        """Positions of the plan."""
        return range(len(self.plan.transfers))

    def skip(self, position: int, code: int) -> None:
        """Note that a chunk was not even looked at."""
        if position not in self.errors:
            self._untried.add(position)
            self.fail(position, code)

    def result(self) -> LoadResult:
        """Return what the planning side is told."""
        return LoadResult(
            self.plan.plan_id,
            tuple(sorted(self.errors)),
            self._worst_error,
            self.bytes_read,
            self.seconds,
            tuple(sorted(self._untried)),
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
            self.plan.plan_id,
            checksums,
            tuple(sorted(self.unsettled)),
            self._worst_error,
            self.bytes_written,
        )
