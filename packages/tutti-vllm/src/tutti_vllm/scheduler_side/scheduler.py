# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: finds hits, plans loads and stores, takes the workers' reports."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tutti_engine import ChunkKey, LoadPlan, LoadResult, StorePlan, StoreResult, TuttiEngine
from tutti_engine.block_rows import ChunkBlocks, cut
from tutti_engine.execution.executor import Result
from tutti_engine.shared.tier import is_shared_plan
from tutti_engine.store.layout import StoreLayout
from tutti_vllm.messages import RequestLoad, StepOrders, StepReport
from tutti_vllm.metrics.meters import SchedulerMeter
from tutti_vllm.payload import Payload
from tutti_vllm.scheduler_side.adapters import Adapter, Adapters
from tutti_vllm.scheduler_side.block_tables import NULL_BLOCK, BlockTables, LoadTable
from tutti_vllm.scheduler_side.calm_steps import CalmSteps
from tutti_vllm.scheduler_side.exposed_loads import ExposedLoads
from tutti_vllm.scheduler_side.load_mode import Choice, LoadChooser, LoadRules
from tutti_vllm.scheduler_side.prefill_times import PrefillTimes
from tutti_vllm.scheduler_side.rewritten_blocks import rewritten_blocks
from tutti_vllm.scheduler_side.shared_side import SharedSide
from tutti_vllm.scheduler_side.step_chunks import StepChunks
from tutti_vllm.scheduler_side.tracked import Request, Tracked, TrackedRequests

if TYPE_CHECKING:
    from tutti_vllm.metrics.transfer_spans import TransferSpans
    from tutti_vllm.scheduler_side.kv_events import KVEvents

__all__ = ["SchedulerSide"]

logger = logging.getLogger(__name__)

STATS_SECONDS = 0.25
"""How often statistics are looked at while requests only go on: nothing but states can have changed."""

GOING_ON = StepOrders()
"""Of a step in which nothing is loaded or stored."""


class SchedulerSide:
    """One engine's planning side behind vLLM's scheduler callbacks."""

    def __init__(
        self,
        engine: TuttiEngine,
        layout: StoreLayout | None,
        *,
        hash_tokens: int,
        close: Callable[[], None] = lambda: None,
        rules: LoadRules | None = None,
        names_rewritten: bool = False,
    ) -> None:
        """Make the scheduler's side.

        Args:
            engine: an engine that plans.
            layout: where workers find the store; sent to them with their first orders.
            hash_tokens: tokens that one of a request's block hashes stands for.
            close: called once at shutdown.
            rules: how hits are loaded; by default as ``LoadRules`` says.
            names_rewritten: whether workers copy pages behind the steps' back, so that they must be told
                which blocks are given to somebody else.
        """
        self._engine = engine
        self.events: KVEvents | None = None
        self.spans: TransferSpans | None = None
        self._layout = layout
        self.names_rewritten = names_rewritten
        self._chunk_tokens = engine.geometry.chunk_tokens
        self._close = close
        self._loads: list[RequestLoad] = []
        self._loading: dict[int, str] = {}
        # Loads under way whose requests are gone, until the workers are told.
        self._unwanted: list[int] = []
        self.adapters = Adapters()
        self.exposed = ExposedLoads(hash_tokens)
        self._chooser = LoadChooser(engine.break_even, LoadRules() if rules is None else rules)
        self.meter = SchedulerMeter(engine, self._chooser.counters)
        self._prefills = PrefillTimes(self._note_compute, note_rest=self._note_rest)
        self._tracked = TrackedRequests(engine, self.meter, hash_tokens)
        self._chunks = StepChunks(engine, self._tracked, self.adapters, self._prefills)
        # Requests that the last step computed.
        self._computing = 0
        self._broken: str | None = None
        self._announced = False
        self._calm = CalmSteps()
        self._next_stats = 0.0

    @property
    def shared(self) -> SharedSide | None:
        """A shared store's side, if there is one."""
        return self._tracked.shared

    def use_shared(self, shared: SharedSide) -> None:
        """Take a shared store's side, before the first request."""
        self._tracked.shared = shared
        self.meter.watch_shared(shared)

    @property
    def engine(self) -> TuttiEngine:
        """The engine that plans."""
        return self._engine

    def counters(self) -> dict[str, int]:
        """Return this process's totals: the planner's, ``BreakEven``'s and ``LoadChooser``'s."""
        return self.meter.totals()

    def add_request(self, request: Request, adapter: Adapter | None = None) -> None:
        """Start to look after a request, and the LoRA adapter that it is computed with."""
        self._calm.end()
        tracked = self._tracked[request.request_id] = Tracked(request, adapter=adapter)
        if self.shared is not None and self._may_share(tracked):
            # Until vLLM asks, the answer may be there.
            last = (request.num_tokens - 1) // self._chunk_tokens
            keys = self._tracked.keys_of(tracked)
            # No chunk is stored without those before it.
            known = 0
            if keys and not self._is_unknown(keys[0]):
                known = bisect_left(keys, True, 0, min(last, len(keys)), key=self._is_unknown)
            self.shared.tier.look(keys, known, last)

    def _is_unknown(self, key: ChunkKey) -> bool:
        return not self._engine.planner.is_known(key)

    def remove_request(self, request_id: str) -> None:
        """Stop looking after a request. Its stores end by themselves; a load is given up."""
        self._calm.end()
        tracked = self._tracked.pop(request_id, None)
        if self.shared is not None:
            self.shared.forget(request_id)
        if tracked is not None and tracked.prefill is not None:
            self._prefills.end(tracked.prefill, tracked.request.num_tokens)
        self._unwanted += [plan_id for plan_id, owner in self._loading.items() if owner == request_id]

    def promise(self, request: Request, local_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens beyond ``local_tokens`` will be loaded, and whether beside the steps.

        None stands for a hit that has to wait, because enough loads are on their way, because its local part
        is still being loaded, or because the shared store has not said yet what it holds. vLLM may ask as
        often as it likes: a request's answer changes only with what is stored and what is being loaded.
        """
        if self.exposed.shared_by(request, local_tokens):
            return None, False
        tokens = self.matched_tokens(request, local_tokens)
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0, False
        choice = self._choose(tracked, local_tokens, tokens) if tokens else None
        hit = tokens if choice is not None and choice.load else 0
        tracked.shared_tokens = 0
        if self.shared is not None and self._may_share(tracked):
            found = self.shared.beyond(request, self._tracked.keys_of(tracked), local_tokens, hit)
            if found is None:
                return None, False
            hit, tracked.shared_tokens = found
        if not hit and not tracked.shared_tokens:
            return 0, False
        if hit and self._chooser.is_full(hit):
            return None, False
        # Reads go in order: a step behind others' loads would wait for those as well. Shared chunks are read
        # whole.
        by_layers = choice is not None and choice.layerwise and not tracked.shared_tokens
        tracked.layerwise = by_layers and not self._chooser.parked
        return hit + tracked.shared_tokens, not tracked.layerwise

    def _note_compute(self, tokens: int, seconds: float) -> None:
        self._engine.note_compute(tokens, seconds)
        if self.shared is not None:
            self.shared.tier.break_even.note_compute(tokens, seconds)

    def _note_rest(self, tokens: int, context: int, seconds: float) -> None:
        self._engine.break_even.note_rest(tokens, context, seconds)
        if self.shared is not None:
            self.shared.tier.break_even.note_rest(tokens, context, seconds)

    def _choose(self, tracked: Tracked, local_tokens: int, tokens: int) -> Choice:
        choice = tracked.choice
        if choice is None or choice.tokens != tokens:
            rest = tracked.request.num_tokens - local_tokens - tokens
            choice = tracked.choice = self._chooser.choose(tokens, rest, self._computing, held=local_tokens)
            logger.debug("Tutti: %s, %d tokens: %s", tracked.request.request_id, tokens, choice.why)
        return choice

    def _may_share(self, tracked: Tracked) -> bool:
        """Whether a request's chunks may come from the shared store.

        Those of adapters may not: an adapter that is replaced while its chunks are written would leave them
        there, and nobody could tell.
        """
        return tracked.adapter is None and tracked.loads and self._broken is None

    def matched_tokens(self, request: Request, local_tokens: int) -> int:
        """Return how many tokens beyond ``local_tokens`` can be loaded.

        The last token is never among them, as something has to be computed. Changes nothing but the note of
        ``local_tokens``, so vLLM may ask as often as it likes.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not tracked.loads or self._broken is not None:
            return 0
        if not self.adapters.is_as_keyed(tracked.adapter):
            return 0
        tracked.local_tokens = local_tokens
        first = local_tokens // self._chunk_tokens
        last = (request.num_tokens - 1) // self._chunk_tokens
        keys = self._tracked.keys_of(tracked)[first:last]
        hits = self._engine.planner.lookup_prefix(keys, first_chunk=first)
        return max(0, (first + hits) * self._chunk_tokens - local_tokens)

    def plan_load(self, request: Request, block_ids: BlockTables, external_tokens: int) -> None:
        """Plan to load what vLLM now counts as computed.

        Args:
            request: the request.
            block_ids: its whole block table of each group; the local hit comes first.
            external_tokens: tokens that were promised and accepted.
        """
        self._calm.end()
        tracked = self._tracked[request.request_id]
        # The next admission, after a preemption, is another matter.
        tracked.choice = None
        held = tracked.local_tokens
        shared_tokens = min(tracked.shared_tokens, external_tokens) if self.shared is not None else 0
        table: LoadTable | None = None
        lost: tuple[int, ...] = ()
        plan: LoadPlan | None = None
        shared_plan: LoadPlan | None = None
        try:
            table = LoadTable(self._engine.geometry, block_ids, held, held + external_tokens)
            chunks = table.chunks
            prompt = self._tracked.keys_of(tracked)[: chunks.stop]
            keys, rows = prompt[chunks.start :], table.rows()
            use = self._tracked.use_of(tracked, external_tokens)
            if shared_tokens and self.shared is not None:
                border = (held + external_tokens - shared_tokens) // self._chunk_tokens - chunks.start
                # A copy of thousands of keys that are all to be loaded would take longer than the rest.
                own = keys[border:] if border else keys
                shared = ChunkBlocks(own, cut(rows, border, len(keys)) if border else rows)
                shared_plan = self.shared.plan_load(request.request_id, shared, shared_tokens, prompt)
                chunks = range(chunks.start, chunks.start + border)
                keys, rows = keys[:border], cut(rows, 0, border)
            if keys:
                plan = self._engine.plan_load(ChunkBlocks(keys, rows), use)
        except Exception as error:
            # The tokens were promised: the workers have to report them as failed.
            logger.warning("Tutti: a load could not be planned, its tokens are computed again: %s", error)
            plan = None
            if shared_plan is not None and self.shared is not None:
                self.shared.drop_load(shared_plan)
                shared_plan = None
            # It would not be planned the next time either, and vLLM would ask for ever.
            tracked.loads = False
            if table is not None:
                lost = table.promised()
            else:
                # Too much, which is safe.
                lost = tuple(block for each in block_ids for block in each if block != NULL_BLOCK)
        if plan is not None:
            self._loading[plan.plan_id] = request.request_id
            self._chooser.begin(plan.plan_id, external_tokens - shared_tokens, parked=not tracked.layerwise)
        if tracked.layerwise:
            self.exposed.begin(request, held, block_ids[0])
        if shared_plan is not None and self.shared is not None:
            self._loading[shared_plan.plan_id] = request.request_id
            patience = self.shared.patience(shared_tokens)
            self._loads.append(RequestLoad(request.request_id, (), shared_plan, patience=patience))
        if plan is not None or shared_plan is None:
            self._loads.append(RequestLoad(request.request_id, lost, plan, tracked.layerwise))
        if self.spans is not None:
            for each, tokens in ((plan, external_tokens - shared_tokens), (shared_plan, shared_tokens)):
                if each is not None:
                    self.spans.begin_load(each, request, tokens=tokens, layerwise=tracked.layerwise)
        # Last: whatever happens to an event, the load is ordered.
        if plan is not None and self.events is not None:
            self.events.note(plan, [(request, chunks)])

    def build_orders(
        self,
        scheduled_tokens: dict[str, int],
        draft_tokens: Mapping[str, Sequence[int]],
        block_ids_of: Callable[[str], BlockTables | None],
    ) -> StepOrders:
        """Return this step's orders: loads planned since the last one, and chunks that it completes.

        Args:
            scheduled_tokens: for each scheduled request the number of tokens that this step computes.
            draft_tokens: for some requests the speculated tokens among them, which may be rejected.
            block_ids_of: returns a scheduled request's block table of each group.
        """
        if self._calm.goes_on(scheduled_tokens, draft_tokens):
            return GOING_ON
        self.exposed.end_planning()
        first, self._announced = not self._announced, True
        self._computing = len(scheduled_tokens)
        loads, self._loads = tuple(self._loads), []
        unwanted, self._unwanted = tuple(self._unwanted), []
        stores: tuple[StorePlan, ...] = ()
        try:
            self._engine.planner.settle_places()
            if self._broken is None:
                stores = self._plan_stores(scheduled_tokens, draft_tokens, block_ids_of)
        except Exception:
            # Not a reason to lose the loads, which requests are waiting for.
            logger.exception("Tutti: this step stores nothing.")
        finally:
            if self.shared is not None:
                self.shared.drop_candidates()
        layout = self._layout if loads or stores or first else None
        digest = "" if layout is None or self.shared is None else self.shared.tier.namespace
        return StepOrders(layout, loads, stores, unwanted, shared=digest, idle=not scheduled_tokens)

    def add_rewritten(self, orders: StepOrders, scheduler_output: Any) -> StepOrders:
        """Return orders that also name the blocks to which their step may write, where workers want that."""
        pending = self._engine.planner.pending_stores
        if self.shared is not None:
            pending += self.shared.tier.pending_stores
        if not self.names_rewritten or not pending:
            return orders
        sizes = [group.block_tokens for group in self._engine.geometry.groups]
        try:
            blocks = rewritten_blocks(scheduler_output, sizes, [load.block_ids for load in orders.loads])
        except Exception:
            # Not a reason to lose the orders, nor to store what somebody else has written.
            logger.exception("Tutti: stores whose pages were not copied yet are given up.")
            return replace(orders, rewritten=None)
        return replace(orders, rewritten=tuple(blocks))

    def take_report(self, report: StepReport) -> None:
        """Take what the workers say has ended."""
        self._calm.end()
        for rank, results in report.results.items():
            for result in results:
                if self.spans is not None:
                    self.spans.take(rank, result)
                try:
                    self._take(rank, result)
                except Exception:
                    # Not a reason to lose the other results, which pins and places wait for.
                    logger.exception("Tutti: a report of rank %d could not be taken.", rank)
        for rank, reason in report.unusable.items():
            if self._broken is None:
                self._broken = reason
                logger.warning(
                    "Tutti: rank %d cannot use the cache, the server goes on without: %s", rank, reason
                )

    def has_pending_work(self) -> bool:
        """Whether the engine must go on stepping although no request needs it.

        Stores, or loads that nobody waits for any more, are still to be reported; or no step has told the
        workers yet where the store is, and they had better open it before the first request waits for that.
        """
        planner = self._engine.planner
        pending = planner.pending_stores + planner.pending_loads
        if self.shared is not None:
            pending += self.shared.tier.pending_stores + self.shared.tier.pending_loads
        return pending > 0 or not self._announced

    def degraded(self) -> dict[str, str]:
        """Return what the server does without at present, and why; empty when all is well.

        Keys: ``load`` and ``store`` (a breaker is open: after repeated errors only a probe now and then goes
        through), ``cache`` (a rank cannot use it at all), ``shared`` (the shared store, or a part of it).
        """
        planner = self._engine.planner
        state = {}
        if planner.load_breaker.is_open:
            state["load"] = "loads failed repeatedly"
        if planner.store_breaker.is_open:
            state["store"] = "stores failed repeatedly"
        if self._broken is not None:
            state["cache"] = self._broken
        shared = None if self.shared is None else self.shared.tier.degraded()
        if shared is not None:
            state["shared"] = shared
        return state

    def in_use(self) -> dict[str, int]:
        """Return what is held for requests and transfers, by name; all 0 when idle."""
        own = {
            "requests": len(self._tracked),
            "unordered_loads": len(self._loads) + len(self._unwanted),
            "unreported_loads": len(self._loading),
        }
        shared = {} if self.shared is None else self.shared.tier.in_use()
        return own | shared | self._engine.planner.in_use()

    def take_stats(self) -> Payload | None:
        """Return what happened since the last call, None if nothing did or it can wait a little."""
        now = time.monotonic()
        if self._calm.lasts and now < self._next_stats:
            return None
        self._next_stats = now + STATS_SECONDS
        return self.meter.take(broken=self._broken is not None)

    def reset(self) -> bool:
        """Forget every chunk; return whether that is durable."""
        for tracked in self._tracked.values():
            tracked.stores = False
        if self.shared is not None:
            self.shared.tier.retire("the cache was reset, and nothing tells new weights from those before")
        return self._engine.reset()

    def shutdown(self) -> None:
        """Close the store."""
        if self.spans is not None:
            self.spans.close()
        close, self._close = self._close, lambda: None
        close()

    def _take_shared(self, rank: int, result: Result) -> None:
        assert self.shared is not None
        tracked = self._tracked.get(self._loading.get(result.plan_id, ""))
        if tracked is not None and isinstance(result, LoadResult) and result.failed:
            tracked.loads = False
        if self.shared.take(rank, result):
            self._loading.pop(result.plan_id, None)

    def _take(self, rank: int, result: Result) -> None:
        if is_shared_plan(result.plan_id):
            self._take_shared(rank, result)
            return
        if not isinstance(result, LoadResult):
            if isinstance(result, StoreResult):
                result = self.adapters.believed(result)
            self._engine.take(rank, result)
            return
        tracked = self._tracked.get(self._loading.get(result.plan_id, ""))
        if tracked is not None and result.failed:
            tracked.loads = False
        self._chooser.note_part(result.plan_id, result.seconds, failed=bool(result.failed))
        if self._engine.complete_load(result, rank):
            self._loading.pop(result.plan_id, None)
            self._chooser.end(result.plan_id)

    def _plan_stores(
        self,
        scheduled_tokens: dict[str, int],
        draft_tokens: Mapping[str, Sequence[int]],
        block_ids_of: Callable[[str], BlockTables | None],
    ) -> tuple[StorePlan, ...]:
        found = self._chunks.look(scheduled_tokens, draft_tokens, block_ids_of)
        self._calm.begin(scheduled_tokens, found.calm)
        plan = self._engine.plan_store(found.chunks, found.prefixes, found.uses) if found.chunks else None
        if plan is None:
            return self._plan_shared()
        if found.adapters:
            self.adapters.note_store(plan.plan_id, found.adapters)
        if self.spans is not None:
            self.spans.begin_store(plan, [request for request, _ in found.owners])
        if self.events is not None:
            self._note_events(plan, found.owners)
        return (plan, *self._plan_shared())

    def _plan_shared(self) -> tuple[StorePlan, ...]:
        """Return the plan for the shared store. Last of all, as workers have to hear of it."""
        return () if self.shared is None else self.shared.plan_stores(self.spans)

    def _note_events(self, plan: StorePlan, owners: Sequence[tuple[Request, range]]) -> None:
        assert self.events is not None
        try:
            self.events.note(plan, owners)
        except Exception:
            # Not a reason to forget a plan that places were given to.
            logger.exception("Tutti: a router is not told of what this step stores.")
