# SPDX-License-Identifier: Apache-2.0
"""A worker's side of a shared store: an engine of its own, with staging, threads and deadlines of its own.

Whatever happens there, the local store's transfers neither wait for it nor fail with it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable

from tutti_engine import ExecutionSettings, LoadPlan, LoadResult, Mover, StorePlan, TuttiEngine
from tutti_engine.execution.executor import Result
from tutti_engine.store.layout import StoreLayout
from tutti_vllm.metrics.meters import WorkerMeter
from tutti_vllm.payload import Payload

__all__ = ["OpenShared", "SharedWorker"]

logger = logging.getLogger(__name__)

OpenShared = Callable[[StoreLayout, str], TuttiEngine]
"""Makes an engine on this rank's part of the shared store, from the layout and the namespace's digest."""


class SharedWorker:
    """One rank's transfers from and to a shared store."""

    def __init__(
        self, rank: int, open_engine: OpenShared, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make it; ``open_engine`` must not wait for the store."""
        self._open_engine = open_engine
        self._clock = clock
        self.meter = WorkerMeter(rank, tier="shared")
        self._mover: Mover | None = None
        self._settings: ExecutionSettings | None = None
        self._engine: TuttiEngine | None = None
        # Until when a load may take, and since when it does.
        self._deadlines: dict[int, tuple[LoadPlan, float, float]] = {}
        # Loads that were told to have failed before their reads had ended.
        self._told: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether there is an engine."""
        return self._engine is not None

    def register(self, mover: Mover, settings: ExecutionSettings) -> None:
        """Take a way to reach the pages that nobody else uses, and the bounds of transfers."""
        self._mover = mover
        self._settings = settings

    def open(self, layout: StoreLayout, namespace: str) -> None:
        """Open the store, if that was not done. Raises what keeps it from being opened."""
        if self._engine is not None or self._mover is None:
            return
        engine = self._open_engine(layout, namespace)
        try:
            engine.bind(self._mover, self._settings)
        except BaseException:
            engine.shutdown(0.0)
            raise
        self._engine = engine

    def load(self, plan: LoadPlan, patience: float) -> None:
        """Start a load, which has failed after ``patience`` seconds. Raises OSError where nothing is open."""
        engine = self._opened()
        now = self._clock()
        self.meter.begin_load(plan.plan_id)
        engine.load(plan)
        self._deadlines[plan.plan_id] = plan, now, now + patience

    def store(self, plan: StorePlan) -> None:
        """Copy a plan's pages and start to write them. Raises OSError where nothing is open."""
        self._opened().store(plan)

    def give_up(self, plan: LoadPlan) -> None:
        """End a load early; nothing writes to its pages once this returns. Its result still comes."""
        self._deadlines.pop(plan.plan_id, None)
        if self._engine is not None:
            self._engine.give_up_load(plan)

    def take_results(self) -> list[Result]:
        """Return what has ended since the last call, loads that took too long as failed."""
        if self._engine is None:
            return []
        found = [result for result in self._engine.take_results() if not self._was_told(result)]
        for result in found:
            if isinstance(result, LoadResult):
                self._deadlines.pop(result.plan_id, None)
        found += self._late()
        for result in found:
            self.meter.end(result)
        return found

    def reuse_blocks(self, blocks: Iterable[int]) -> None:
        """Leave blocks alone that the server is about to write to."""
        if self._engine is not None:
            self._engine.reuse_blocks(blocks)

    def leave_pages(self) -> None:
        """Give up stores whose pages were not copied."""
        if self._engine is not None:
            self._engine.leave_pages()

    def in_use(self) -> dict[str, int]:
        """Return what transfers hold, by name; all 0 when idle."""
        if self._engine is None:
            return {}
        return {f"shared_{name}": count for name, count in self._engine.executor.in_use().items()}

    def take_stats(self) -> Payload | None:
        """Return what happened since the last call, None if nothing did."""
        return self.meter.take(None if self._engine is None else self._engine.executor)

    def shutdown(self, timeout: float) -> None:
        """Finish or abandon what is under way."""
        engine, self._engine = self._engine, None
        if engine is not None and not engine.shutdown(timeout):
            logger.warning("Tutti: transfers of the shared store are given up after %.0f s.", timeout)

    def _opened(self) -> TuttiEngine:
        if self._engine is None:
            raise OSError(errno.ENOTCONN, "the shared store is not open on this rank")
        return self._engine

    def _was_told(self, result: Result) -> bool:
        if isinstance(result, LoadResult) and result.plan_id in self._told:
            self._told.discard(result.plan_id)
            return True
        return False

    def _late(self) -> list[Result]:
        now = self._clock()
        late = [each for each in self._deadlines.values() if each[2] <= now]
        found: list[Result] = []
        for plan, began, _ in late:
            self.give_up(plan)
            self._told.add(plan.plan_id)
            everything = tuple(range(len(plan.transfers)))
            found.append(
                LoadResult(plan.plan_id, everything, errno.ETIMEDOUT, seconds=now - began, untried=everything)
            )
        return found
