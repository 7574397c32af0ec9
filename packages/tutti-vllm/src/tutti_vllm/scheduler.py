# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: finds hits, plans loads and stores, takes the workers' reports."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tutti_engine import ChunkKey, LoadPlan, LoadResult, StorePlan, StoreResult, TuttiEngine
from tutti_engine.block_rows import ChunkBlocks, cut
from tutti_engine.chunk_key import keys_from_block_hashes
from tutti_engine.chunk_transfer import BlockIds
from tutti_engine.executor import Result
from tutti_engine.policies.eviction import Use
from tutti_engine.shared_tier import is_shared_plan
from tutti_engine.store_layout import StoreLayout
from tutti_vllm.adapters import Adapter, Adapters, mixed
from tutti_vllm.block_tables import NULL_BLOCK, BlockTables, LoadTable, stored_blocks, stored_chunks
from tutti_vllm.calm_steps import CalmSteps
from tutti_vllm.exposed_loads import ExposedLoads
from tutti_vllm.load_mode import Choice, LoadChooser, LoadRules
from tutti_vllm.messages import RequestLoad, StepOrders, StepReport
from tutti_vllm.meters import SchedulerMeter
from tutti_vllm.payload import Payload
from tutti_vllm.prefill_times import Prefill, PrefillTimes
from tutti_vllm.rewritten_blocks import rewritten_blocks
from tutti_vllm.shared_scheduler import SharedSide

if TYPE_CHECKING:
    from tutti_vllm.kv_events import KVEvents
    from tutti_vllm.transfer_spans import TransferSpans

__all__ = ["Request", "SchedulerSide"]

logger = logging.getLogger(__name__)

STATS_SECONDS = 0.25
"""How often statistics are looked at while requests only go on: nothing but states can have changed."""

GOING_ON = StepOrders()
"""Of a step in which nothing is loaded or stored."""


class Request(Protocol):
    """The part of ``vllm.v1.request.Request`` that is used."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int
    block_hashes: Sequence[bytes]
    cache_salt: str | None


@dataclass(slots=True)
class _Tracked:
    request: Request
    # vLLM tells the local hit only when it asks for the external one.
    local_tokens: int = 0
    next_store_chunk: int = 0
    # A prompt is noted once, whatever becomes of its request.
    use: Use | None = None
    # After a load that failed the rest is computed: asking again might fail again, without end.
    loads: bool = True
    # After a reset nobody knows whether what was computed before is still right.
    stores: bool = True
    # Stands until the request is admitted, or its hit is another one.
    choice: Choice | None = None
    # What vLLM was told last.
    layerwise: bool = False
    # Whether its first step is behind it, and what is measured of its prefill.
    started: bool = False
    prefill: Prefill | None = None
    # Of the prompt and of what was answered so far, and the block hash behind the last one.
    keys: list[ChunkKey] = field(default_factory=list)
    last_hash: bytes = b""
    adapter: Adapter | None = None
    # Of what vLLM was told last, the tokens that come from the shared store.
    shared_tokens: int = 0
    # Leading chunks that can be worth a write to the shared store.
    shared_worth: int = 0


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
        self._hashes_per_chunk = self._chunk_tokens // hash_tokens
        self._close = close
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[RequestLoad] = []
        self._loading: dict[int, str] = {}
        # Loads under way whose requests are gone, until the workers are told.
        self._unwanted: list[int] = []
        self.adapters = Adapters()
        self.exposed = ExposedLoads(hash_tokens)
        self._chooser = LoadChooser(engine.break_even, LoadRules() if rules is None else rules)
        self.meter = SchedulerMeter(engine, self._chooser.counters)
        self._prefills = PrefillTimes(self._note_compute)
        # Requests that the last step computed.
        self._computing = 0
        self._broken: str | None = None
        self._announced = False
        self._calm = CalmSteps()
        self._next_stats = 0.0
        self.shared: SharedSide | None = None

    def use_shared(self, shared: SharedSide) -> None:
        """Take a shared store's side, before the first request."""
        self.shared = shared
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
        tracked = self._tracked[request.request_id] = _Tracked(request, adapter=adapter)
        if self.shared is not None and self._may_share(tracked):
            # Until vLLM asks, the answer may be there.
            last = (request.num_tokens - 1) // self._chunk_tokens
            keys = self._keys_of(tracked)
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
            found = self.shared.beyond(request, self._keys_of(tracked), local_tokens, hit)
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

    def _choose(self, tracked: _Tracked, local_tokens: int, tokens: int) -> Choice:
        choice = tracked.choice
        if choice is None or choice.tokens != tokens:
            rest = tracked.request.num_tokens - local_tokens - tokens
            choice = tracked.choice = self._chooser.choose(tokens, rest, self._computing)
            logger.debug("Tutti: %s, %d tokens: %s", tracked.request.request_id, tokens, choice.why)
        return choice

    def _may_share(self, tracked: _Tracked) -> bool:
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
        if not self._is_as_keyed(tracked):
            return 0
        tracked.local_tokens = local_tokens
        first = local_tokens // self._chunk_tokens
        last = (request.num_tokens - 1) // self._chunk_tokens
        keys = self._keys_of(tracked)[first:last]
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
            prompt = self._keys_of(tracked)[: chunks.stop]
            keys, rows = prompt[chunks.start :], table.rows()
            use = self._use_of(tracked, external_tokens)
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
        if self._engine.complete_load(result, rank):
            self._loading.pop(result.plan_id, None)
            self._chooser.end(result.plan_id)

    def _is_as_keyed(self, tracked: _Tracked) -> bool:
        """Return whether what a request is computed with is what its keys stand for."""
        return tracked.adapter is None or self.adapters.is_unchanged(tracked.adapter)

    def _plan_stores(
        self,
        scheduled_tokens: dict[str, int],
        draft_tokens: Mapping[str, Sequence[int]],
        block_ids_of: Callable[[str], BlockTables | None],
    ) -> tuple[StorePlan, ...]:
        candidates: list[tuple[ChunkKey, BlockIds]] = []
        prefixes = []
        uses = []
        owners = []
        adapters: list[Adapter] = []
        calm = self._chunk_tokens if self.shared is None else 0
        for request_id, tokens in scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            left = self._left_in_chunk(tracked, tokens)
            calm = min(calm, left)
            if left:
                continue
            if tracked.prefill is not None or not tracked.started:
                self._time_prefill(tracked)
            use = self._use_of(tracked)
            if not tracked.stores:
                continue
            sure = tokens - len(draft_tokens.get(request_id, ()))
            completed, new = self._completed_chunks(tracked, sure, block_ids_of)
            if completed and self._is_as_keyed(tracked):
                uses.append(use)
                adapters += [tracked.adapter] if tracked.adapter is not None else []
                end = tracked.next_store_chunk
                owners.append((tracked.request, range(end - new, end)))
                candidates += completed
                prefixes.append(self._keys_of(tracked)[: tracked.next_store_chunk])
        self._calm.begin(scheduled_tokens, calm)
        plan = self._engine.plan_store(candidates, prefixes, uses) if candidates else None
        if plan is None:
            return self._plan_shared()
        if adapters:
            self.adapters.note_store(plan.plan_id, adapters)
        if self.spans is not None:
            self.spans.begin_store(plan, [request for request, _ in owners])
        if self.events is not None:
            self._note_events(plan, owners)
        return (plan, *self._plan_shared())

    def _plan_shared(self) -> tuple[StorePlan, ...]:
        """Return the plan for the shared store. Last of all, as workers have to hear of it."""
        return () if self.shared is None else self.shared.plan_stores(self.spans)

    def _left_in_chunk(self, tracked: _Tracked, tokens: int) -> int:
        """Return how many tokens complete the chunk after a step that only goes on within it; else 0."""
        if tracked.prefill is not None or tracked.use is None or not tracked.started:
            return 0
        size, computed = self._chunk_tokens, tracked.request.num_computed_tokens
        chunk = computed // size
        if tracked.next_store_chunk < chunk or chunk != (computed + tokens) // size:
            return 0
        return size - (computed + tokens) % size

    def _time_prefill(self, tracked: _Tracked) -> None:
        request = tracked.request
        tracked.started = True
        if tracked.prefill is not None:
            if self._prefills.end(tracked.prefill, request.num_tokens):
                tracked.prefill = None
        elif not tracked.layerwise:
            tracked.prefill = self._prefills.begin(request.num_computed_tokens, request.num_tokens)

    def _note_events(self, plan: StorePlan, owners: Sequence[tuple[Request, range]]) -> None:
        assert self.events is not None
        try:
            self.events.note(plan, owners)
        except Exception:
            # Not a reason to forget a plan that places were given to.
            logger.exception("Tutti: a router is not told of what this step stores.")

    def _keys_of(self, tracked: _Tracked) -> list[ChunkKey]:
        """Return the keys of a request's whole chunks; not to be changed."""
        keys, hashes, each = tracked.keys, tracked.request.block_hashes, self._hashes_per_chunk
        # A request that goes on with new input may lose tokens, and the hashes of their blocks.
        if keys and (len(hashes) < len(keys) * each or tracked.last_hash != hashes[len(keys) * each - 1]):
            keys.clear()
        if len(hashes) >= (len(keys) + 1) * each:
            more = keys_from_block_hashes(hashes, each, start=len(keys))
            tracked.last_hash = more[-1]
            keys += more if tracked.adapter is None else mixed(tracked.adapter.digest, more)
        return keys

    def _use_of(self, tracked: _Tracked, hit_tokens: int = 0) -> Use:
        """Return what the engine noted of a request's prompt, telling it when it is first scheduled."""
        if tracked.use is None:
            request = tracked.request
            self.meter.note_prompt(request.num_tokens, hit_tokens)
            keys = self._keys_of(tracked).copy()
            tracked.use = self._engine.note_prompt(keys, request.cache_salt)
            if self.shared is not None and tracked.adapter is None:
                tracked.shared_worth = self.shared.tier.note_prompt(keys)
        return tracked.use

    def _completed_chunks(
        self, tracked: _Tracked, tokens: int, block_ids_of: Callable[[str], BlockTables | None]
    ) -> tuple[list[tuple[ChunkKey, BlockIds]], int]:
        """Return the chunks that can be stored, and out of how many before ``next_store_chunk``."""
        request = tracked.request
        # After a failed load vLLM goes back and computes tokens again: what was counted then may never have
        # existed.
        first = min(tracked.next_store_chunk, request.num_computed_tokens // self._chunk_tokens)
        last = (request.num_computed_tokens + tokens) // self._chunk_tokens
        if last <= first:
            return [], 0
        keys = self._keys_of(tracked)[first:last]
        tracked.next_store_chunk = first + len(keys)
        unknown = self._engine.planner.unknown(keys)
        wanted: list[int] = []
        if self.shared is not None and first < tracked.shared_worth:
            wanted = self.shared.wants(self._keys_of(tracked), range(first, last))
        if not unknown and not wanted:
            return [], 0
        block_ids = block_ids_of(request.request_id)
        if block_ids is None:
            return [], 0
        if self.shared is not None and wanted:
            named = [keys[chunk - first] for chunk in wanted]
            self.shared.note_candidates(stored_chunks(self._engine.geometry, block_ids, named, wanted))
        completed: list[tuple[ChunkKey, BlockIds]] = []
        for position in unknown:
            blocks = stored_blocks(self._engine.geometry, block_ids, first + position)
            if blocks is not None:
                completed.append((keys[position], blocks))
        return completed, len(keys)
