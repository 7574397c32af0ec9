# SPDX-License-Identifier: Apache-2.0
"""What each side measures of itself: counters moved, states of now, and how long loads took.

A step in which nothing happened is told from the counters' numbers of changes and costs no more than that.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tutti_engine import LoadResult, StoreResult, TuttiEngine
from tutti_engine.counters import Counters
from tutti_engine.execution.executor import Executor, Result
from tutti_engine.execution.ring_window import SlotBank
from tutti_vllm.payload import Deltas, Payload, make_payload

__all__ = ["ERROR_KINDS", "SchedulerMeter", "WorkerMeter"]

if TYPE_CHECKING:
    from tutti_vllm.scheduler_side.shared_side import SharedSide

logger = logging.getLogger(__name__)


class CounterSource(Protocol):
    """Totals that only grow."""

    @property
    def changes(self) -> int:
        """Stays the same as long as no total has moved."""

    def snapshot(self) -> dict[str, int]:
        """Return all totals."""


ERROR_KINDS = {
    errno.EBADMSG: "checksum",
    errno.ENOENT: "gone",
    errno.ETIMEDOUT: "timeout",
    errno.ECANCELED: "canceled",
    errno.ENOBUFS: "queue_full",
    errno.ENOSPC: "no_space",
}
"""Names of what goes wrong with transfers; anything else goes by its errno's own name."""


class SchedulerMeter:
    """The scheduler's side: hits, what became of plans, what is resident.

    Its own counters are ``prompts``, ``prompt_tokens``, ``hits`` and ``hit_tokens``.
    """

    def __init__(self, engine: TuttiEngine, *more: CounterSource) -> None:
        """Watch a planning engine's counters, and others of the same side."""
        self.counters = Counters()
        self._engine = engine
        self._sources: list[CounterSource] = [
            engine.planner.counters,
            engine.break_even.counters,
            self.counters,
            *more,
        ]
        self._shared: SharedSide | None = None
        self._deltas = Deltas()
        self._last: object = None
        self._open = (False, False)

    def watch_shared(self, shared: SharedSide) -> None:
        """Watch a shared store's side as well."""
        self._shared = shared
        self._sources += [shared.tier.counters, shared.counters, shared.sums]

    def note_prompt(self, tokens: int, hit_tokens: int) -> None:
        """Take note of a prompt when it is first scheduled, and of how much of it the cache promised."""
        self.counters.add("prompts")
        self.counters.add("prompt_tokens", tokens)
        if hit_tokens:
            self.counters.add("hits")
            self.counters.add("hit_tokens", hit_tokens)

    @property
    def changes(self) -> int:
        """Stays the same as long as no total has moved."""
        return sum(source.changes for source in self._sources)

    def totals(self) -> dict[str, int]:
        """Return every counter of this side."""
        totals: dict[str, int] = {}
        for source in self._sources:
            totals |= source.snapshot()
        totals["load_tokens"] = totals.get("load_chunks", 0) * self._engine.geometry.chunk_tokens
        return totals

    def gauges(self, *, broken: bool) -> dict[str, float]:
        """Return the states of now; ``broken`` if the cache cannot be used at all."""
        planner = self._engine.planner
        load_open, store_open = planner.load_breaker.is_open, planner.store_breaker.is_open
        gauges: dict[str, float] = {
            "resident_chunks": planner.resident_chunks,
            "resident_bytes": planner.resident_chunks * planner.chunk_bytes,
            "capacity_chunks": planner.capacity_chunks,
            "capacity_bytes": planner.capacity_chunks * planner.chunk_bytes,
            "pending_loads": planner.pending_loads,
            "pending_stores": planner.pending_stores,
            "load_breaker": load_open,
            "store_breaker": store_open,
            "degraded": broken or load_open or store_open,
        }
        if self._shared is not None:
            gauges |= self._shared.gauges()
        left = planner.write_budget_left()
        if left is not None:
            gauges["write_budget_left"] = left
        return {key: float(value) for key, value in gauges.items()}

    def take(self, *, broken: bool) -> Payload | None:
        """Return what happened since the last call, None if nothing did."""
        planner = self._engine.planner
        opened = planner.load_breaker.is_open, planner.store_breaker.is_open
        if opened != self._open:
            self._tell_recovery(opened)
        now = (
            self.changes,
            planner.resident_chunks,
            planner.capacity_chunks,
            planner.pending_loads,
            planner.pending_stores,
            *opened,
            broken,
            None if self._shared is None else tuple(self._shared.gauges().values()),
        )
        if now == self._last:
            return None
        self._last = now
        return make_payload(self._deltas.take(self.totals()), self.gauges(broken=broken))

    def _tell_recovery(self, opened: tuple[bool, bool]) -> None:
        for what, before, after in zip(("load", "store"), self._open, opened):
            if before and not after:
                logger.info("Tutti: the cache can %s again.", what)
        self._open = opened


class WorkerMeter:
    """One rank's side: bytes, times and errors of transfers, and what they hold."""

    def __init__(self, rank: int, clock: Callable[[], float] = time.monotonic, *, tier: str = "") -> None:
        """Watch a rank; ``tier`` names the transfers that are not the local store's."""
        self._rank = f"{rank} {tier}" if tier else str(rank)
        self._prefix = f"{tier}_" if tier else ""
        self._side = tier or "worker"
        self._clock = clock
        self._begun: dict[int, float] = {}
        self._bytes = {"load": 0, "store": 0}
        # Seconds of a direction when its bandwidth was last worked out.
        self._rated = {"load": 0.0, "store": 0.0}
        self._counts: dict[str, float] = {}
        self._waits: list[float] = []
        self._executor: Executor | None = None
        self._deltas = Deltas()
        self._last: tuple[int, ...] = ()

    def begin_load(self, plan_id: int) -> None:
        """Take note that a load was asked for."""
        self._begun[plan_id] = self._clock()

    def end(self, result: Result) -> None:
        """Take note of how a plan ended."""
        if isinstance(result, LoadResult):
            begun = self._begun.pop(result.plan_id, None)
            if begun is not None:
                self._waits.append(max(0.0, self._clock() - begun))
            self._bytes["load"] += result.bytes_read
            self._note_error("load", result.errno)
        elif isinstance(result, StoreResult):
            self._bytes["store"] += result.bytes_written
            self._note_error("store", result.errno)

    def take(self, executor: Executor | None) -> Payload | None:
        """Return what happened since the last call, None if nothing did.

        Args:
            executor: this rank's execution side, None before it is opened.
        """
        now = () if executor is None else _state(executor)
        if now == self._last and executor is self._executor and not self._counts and not self._waits:
            return None
        if executor is not self._executor:
            self._executor, self._deltas = executor, Deltas()
            self._rated = {"load": 0.0, "store": 0.0}
        self._last = now
        counts, self._counts = self._counts, {}
        waits, self._waits = self._waits, []
        gauges = {} if executor is None else self._measure(executor, counts)
        return make_payload(counts, gauges, {f"{self._prefix}load_wait": waits} if waits else {})

    def _measure(self, executor: Executor, counts: dict[str, float]) -> dict[str, float]:
        """Add what the executor counted to ``counts``; return its states."""
        path, rank = executor.data_path, self._rank
        seconds = {"load": executor.load_time.seconds(), "store": executor.store_time.seconds()}
        moved = self._deltas.take(
            {f"{direction}_seconds@{path}": spent for direction, spent in seconds.items()}
            | {f"{self._side}.{name}": total for name, total in executor.counters.snapshot().items()}
        )
        counts.update(moved)
        gauges: dict[str, float] = {f"queued_loads@{rank}": executor.queued_loads}
        for direction, spent in seconds.items():
            size, self._bytes[direction] = self._bytes[direction], 0
            if size:
                counts[f"{direction}_bytes@{path}"] = size
                if spent > self._rated[direction]:
                    gauges[f"{direction}_rate@{path}@{rank}"] = size / (spent - self._rated[direction])
                self._rated[direction] = spent
        window = executor.window
        for direction, bank, busy in (
            ("load", window.loads, executor.load_time.under_way),
            ("store", window.stores, executor.store_time.under_way),
        ):
            gauges |= _bank_gauges(direction, bank, window.slot_bytes, rank)
            gauges[f"{direction}s_under_way@{rank}"] = busy
        return {key: float(value) for key, value in gauges.items()}

    def _note_error(self, direction: str, code: int) -> None:
        if code:
            kind = ERROR_KINDS.get(code) or errno.errorcode.get(code, str(code))
            key = f"{self._prefix}{direction}_errors@{kind}"
            self._counts[key] = self._counts.get(key, 0) + 1


def _state(executor: Executor) -> tuple[int, ...]:
    window = executor.window
    return (
        executor.counters.changes,
        executor.load_time.under_way,
        executor.store_time.under_way,
        executor.queued_loads,
        window.loads.busy,
        window.stores.busy,
    )


def _bank_gauges(direction: str, bank: SlotBank, slot_bytes: int, rank: str) -> dict[str, float]:
    return {
        f"{direction}_staging_used@{rank}": bank.busy * slot_bytes,
        f"{direction}_staging@{rank}": bank.count * slot_bytes,
    }
