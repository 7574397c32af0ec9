# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of a shared store: what of a prompt it has beyond the local hit, and at what price."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from tutti_engine import ChunkKey, LoadPlan, LoadResult, StorePlan, StoreResult
from tutti_engine.block_rows import ChunkBlocks
from tutti_engine.counters import Counters
from tutti_engine.execution.executor import Result
from tutti_engine.shared.tier import SharedTier
from tutti_vllm.scheduler_side.load_mode import Choice, LoadChooser, LoadRules

if TYPE_CHECKING:
    from tutti_vllm.metrics.transfer_spans import TransferSpans

__all__ = ["SharedRules", "SharedSide", "SharedSums"]

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""A load may take so many times what computing was expected to take; then it is given up and computed."""

LEAST_PATIENCE = 0.25
"""Seconds that any load may take: shorter ones are not measured well."""

QUEUE_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class SharedRules:
    """What a request may wait for.

    Attributes:
        lookup_seconds: longest time that a request waits to hear what the store holds.
        lookup_asks: most steps that it waits for that.
        load_seconds: longest time of a load.
        break_even: whether a hit that takes longer to load than to compute is left alone.
        max_tokens: tokens that may be on their way at a time; a request that finds more goes without.
    """

    lookup_seconds: float = 0.05
    lookup_asks: int = 1000
    load_seconds: float = 5.0
    break_even: bool = True
    max_tokens: int = 1 << 62


class _Prompt(Protocol):
    """The part of vLLM's request that is used."""

    request_id: str
    num_tokens: int


@dataclass(slots=True)
class _Asked:
    began: float
    asks: int = 0
    is_late: bool = False
    choice: Choice | None = None


_OWN_NAMES = {
    "break_even_loads": "shared_break_even_loads",
    "break_even_refused": "shared_break_even_refused",
    "break_even_probes": "shared_break_even_probes",
}
"""Those that a metric shows."""


class SharedSums:
    """Counters of this tier that the local one has as well, under names of their own."""

    def __init__(self, *sources: Counters) -> None:
        self._sources = sources

    @property
    def changes(self) -> int:
        """Stays the same as long as no total has moved."""
        return sum(source.changes for source in self._sources)

    def snapshot(self) -> dict[str, int]:
        """Return all totals."""
        return {
            _OWN_NAMES.get(name, f"shared_{name}"): total
            for each in self._sources
            for name, total in each.snapshot().items()
        }


class SharedSide:
    """Decides on hits of the shared store, one request after another; nothing here waits for it.

    Its counters: ``shared_hits``, ``shared_hit_tokens`` (promised), ``shared_lookup_waits`` (answers that a
    verdict is to come), ``shared_lookup_timeouts`` (requests that went on without), ``shared_turn_refusals``
    (as much as may be was on its way, or the queue was longer than computing).
    """

    def __init__(
        self,
        tier: SharedTier,
        rules: SharedRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tier = tier
        self.rules = SharedRules() if rules is None else rules
        self._clock = clock
        self.chooser = LoadChooser(
            tier.break_even,
            LoadRules("async", self.rules.break_even, layerwise=False, max_tokens=self.rules.max_tokens),
            clock,
        )
        self.counters = Counters()
        self.sums = SharedSums(tier.break_even.counters, self.chooser.counters)
        self._asked: dict[str, _Asked] = {}
        self._candidates: list[ChunkBlocks] = []
        self._tokens: dict[int, int] = {}

    def beyond(
        self, request: _Prompt, keys: Sequence[ChunkKey], local_tokens: int, hit: int
    ) -> tuple[int, int] | None:
        """Return the tokens to load from the local and from this store; None to be asked again.

        Args:
            request: who asks.
            keys: its whole chunks, from the first one on.
            local_tokens: tokens that vLLM has itself.
            hit: tokens behind them that the local store would bring.
        """
        size, partial = self.tier.geometry.chunk_tokens, self.tier.geometry.is_partial
        last = (request.num_tokens - 1) // size
        # Where groups keep the end of a prefix only, the beginning of a hit is loaded for the hit's own end:
        # it comes from one store.
        start = (local_tokens + (0 if partial else hit)) // size
        chunks = self.match(request.request_id, keys, start, last)
        if chunks is None:
            return None
        tokens = (start + chunks) * size - local_tokens
        if not chunks or tokens <= hit:
            return hit, 0
        wanted = tokens if partial else tokens - hit
        # Behind a hit of the local store the request waits, and computes a rest, in any case.
        rest = 0 if wanted < tokens else request.num_tokens - local_tokens - tokens
        if not self.allows(request.request_id, wanted, rest, held=local_tokens + tokens - wanted):
            return hit, 0
        return tokens - wanted, wanted

    def match(self, request_id: str, keys: Sequence[ChunkKey], start: int, stop: int) -> int | None:
        """Return how many chunks the store has of a prompt, from ``start`` on; None to ask again.

        Args:
            request_id: whose prompt it is.
            keys: its chunks from the first one on.
            start: the first one that is asked about.
            stop: the first one that may not be loaded.
        """
        if min(stop, len(keys)) <= start:
            return 0
        seen = self.tier.look(keys, start, stop)
        if seen.decided:
            return seen.chunks
        asked = self._asked.get(request_id)
        if asked is None:
            asked = self._asked[request_id] = _Asked(self._clock())
        asked.asks += 1
        late = self._clock() - asked.began > self.rules.lookup_seconds
        if asked.asks <= self.rules.lookup_asks and not late:
            self.counters.add("shared_lookup_waits")
            return None
        if not asked.is_late:
            asked.is_late = True
            self.counters.add("shared_lookup_timeouts")
        return seen.chunks

    def allows(self, request_id: str, tokens: int, rest: int, *, held: int) -> bool:
        """Return whether so many tokens are to be loaded: faster than computing, and not too much at once.

        ``rest`` and ``held`` as ``LoadChooser.choose`` has them; ``rest`` is 0 if another load is waited for.
        """
        asked = self._asked.setdefault(request_id, _Asked(self._clock()))
        if asked.choice is None or asked.choice.tokens != tokens:
            asked.choice = self.chooser.choose(tokens, rest, 0, held=held)
            logger.debug("Tutti: %s, %d tokens of the shared store: %s", request_id, tokens, asked.choice.why)
        if not asked.choice.load:
            return False
        if self.chooser.is_full(tokens) or self._waits_too_long(tokens):
            self.counters.add("shared_turn_refusals")
            return False
        return True

    def plan_load(
        self, request_id: str, chunks: ChunkBlocks, tokens: int, prompt: Sequence[ChunkKey]
    ) -> LoadPlan:
        """Return the plan to load what was promised to a request; ``prompt`` are its keys up to the last."""
        plan = self.tier.plan_load(chunks, prompt)
        self._asked.pop(request_id, None)
        self._tokens[plan.plan_id] = tokens
        self.chooser.begin(plan.plan_id, tokens, parked=True)
        self.counters.add("shared_hits")
        self.counters.add("shared_hit_tokens", tokens)
        return plan

    def drop_load(self, plan: LoadPlan) -> None:
        """Forget a plan that no worker will hear of."""
        self.tier.drop_load(plan.plan_id)
        self._end(plan.plan_id)

    def patience(self, tokens: int) -> float:
        """Return the seconds after which a load of so many tokens is given up."""
        compute = self.tier.break_even.compute_seconds(tokens)
        if compute is None or not self.rules.break_even:
            return self.rules.load_seconds
        return min(self.rules.load_seconds, max(LEAST_PATIENCE, PATIENCE * compute))

    def wants(self, keys: Sequence[ChunkKey], places: range) -> list[int]:
        """Return those of some of a prompt's chunks that are worth a write, beside those of this step."""
        return self.tier.wants(
            keys, start=places.start, stop=places.stop, beside=sum(map(len, self._candidates))
        )

    def note_candidates(self, chunks: ChunkBlocks) -> None:
        """Take chunks that this step completes."""
        if chunks:
            self._candidates.append(chunks)

    def plan_stores(self, spans: TransferSpans | None = None) -> tuple[StorePlan, ...]:
        """Return the plan to write what was noted in this step; nothing if there is none. Never raises."""
        candidates, self._candidates = self._candidates, []
        if not candidates:
            return ()
        try:
            plan = self.tier.plan_store(candidates[0] if len(candidates) == 1 else [*chain(*candidates)])
        except Exception:
            # Not a reason to store nothing here.
            logger.exception("Tutti: this step writes nothing to the shared store.")
            return ()
        if plan is None:
            return ()
        if spans is not None:
            try:
                spans.begin_store(plan, ())
            except Exception:
                # Not a reason to forget a plan that waits for its report.
                logger.exception("Tutti: a write to the shared store is not traced.")
        return (plan,)

    def drop_candidates(self) -> None:
        """Forget what was noted in this step: its blocks may hold something else in the next one."""
        self._candidates = []

    def take(self, rank: int, result: Result) -> bool:
        """Take one rank's report; return True for the last one of a load."""
        if isinstance(result, LoadResult):
            self.chooser.note_part(result.plan_id, result.seconds, failed=bool(result.failed))
            if self.tier.complete_load(rank, result):
                self._end(result.plan_id)
                return True
        elif isinstance(result, StoreResult):
            self.tier.complete_store(rank, result)
        return False

    def forget(self, request_id: str) -> None:
        """Stop looking after a request."""
        self._asked.pop(request_id, None)

    def gauges(self) -> dict[str, float]:
        """Return the states of now."""
        tier = self.tier
        return {
            "shared_up": float(tier.degraded() is None),
            "shared_pending_loads": float(tier.pending_loads),
            "shared_pending_stores": float(tier.pending_stores),
            "shared_load_breaker": float(tier.load_breaker.is_open),
            "shared_store_breaker": float(tier.store_breaker.is_open),
            "shared_lookup_breaker": float(tier.lookup.breaker.is_open),
        }

    def _waits_too_long(self, tokens: int) -> bool:
        """Whether what is before a load makes it slower than computing: reads go in order."""
        ahead = sum(self._tokens.values())
        if not ahead or not self.rules.break_even:
            return False
        load = self.tier.break_even.load_seconds(ahead + tokens)
        compute = self.tier.break_even.compute_seconds(tokens)
        return load is not None and compute is not None and load > QUEUE_MARGIN * compute

    def _end(self, plan_id: int) -> None:
        self._tokens.pop(plan_id, None)
        self.chooser.end(plan_id)
