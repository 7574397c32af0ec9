# SPDX-License-Identifier: Apache-2.0
"""The planning side of a shared store: what is loaded from it behind the local store, what is written to it.

Its plans have negative numbers and name chunks by their keys, so that they and the local store's never mix.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tutti_engine.block_rows import ChunkBlocks, pick_columns
from tutti_engine.chunk_transfer import BlockIds
from tutti_engine.counters import Counters
from tutti_engine.geometry import Geometry
from tutti_engine.plan import ChunkKey, LoadPlan, LoadResult, StorePlan, StoreResult
from tutti_engine.planning.break_even import BreakEven
from tutti_engine.planning.breaker import Breaker
from tutti_engine.planning.prefix_hits import longest_hit
from tutti_engine.severity import DATA_ERRORS, NO_ROOM_ERRORS, worse
from tutti_engine.shared.lookup import LookupSettings, Seen, SharedLookup
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.shared.prompt_tree import PromptTree, Run
from tutti_engine.shared.store import SharedStore
from tutti_engine.shared.verdicts import keep, leading_fresh
from tutti_engine.transfers import Transfers

__all__ = ["WRITE_POLICIES", "SharedTier", "SharedTierSettings", "is_shared_plan"]

logger = logging.getLogger(__name__)

WRITE_POLICIES = {"never": 0, "always": 1, "second_sight": 2, "hot": 4}
"""From how many prompts on a chunk is written."""

REMEMBERED = 1 << 17
"""Chunks of prompts that are counted at a time, in each of two generations."""

WRITTEN_SECONDS = 600.0
"""A chunk that was written or seen so lately is not written again, although nobody asked for it since."""


def is_shared_plan(plan_id: int) -> bool:
    """Whether a plan is the shared tier's."""
    return plan_id < 0


@dataclass(frozen=True, slots=True)
class SharedTierSettings:
    """What is written, and how much at a time.

    Attributes:
        write: one of ``WRITE_POLICIES``.
        max_writing_bytes: bytes a rank that may be on their way to the store; more is not written.
        lookup: of ``SharedLookup``.
    """

    write: str = "second_sight"
    max_writing_bytes: int = 256 << 20
    lookup: LookupSettings = field(default_factory=LookupSettings)

    def __post_init__(self) -> None:
        if self.write not in WRITE_POLICIES:
            raise ValueError(f"write must be one of {', '.join(WRITE_POLICIES)}, not {self.write!r}")


@dataclass(slots=True)
class _Load:
    keys: Sequence[ChunkKey]
    # Those of its prompt up to the last one of these.
    prompt: Sequence[ChunkKey]
    num_ranks: int
    ranks: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    guilty: set[int] = field(default_factory=set)
    errno: int = 0
    damaged: bool = False
    # Of the slowest rank.
    seconds: float = 0.0


@dataclass(slots=True)
class _Store:
    keys: Sequence[ChunkKey]
    groups: Sequence[frozenset[int]]
    num_ranks: int
    ranks: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    errno: int = 0


class SharedTier:
    """Hits, loads and writes of a store that many servers share. Nothing here waits for it.

    All calls but ``close`` come from one thread, the scheduler's.

    Its counters, beside ``SharedLookup``'s: ``shared_load_chunks``, ``shared_load_failed_chunks``,
    ``shared_read_bytes``, ``shared_store_chunks``, ``shared_store_failed_chunks``, ``shared_written_bytes``,
    ``shared_dropped_chunks`` (as much as may be was on its way; of those that a step of a request had not
    even planned, one is counted), ``shared_lost_chunks`` (seen, and gone when they were read),
    ``shared_damaged_chunks`` (did not verify). Bytes are summed over ranks.
    """

    def __init__(
        self,
        geometry: Geometry,
        store: SharedStore,
        namespace: str,
        *,
        ranks: int = 1,
        load_ranks: int | None = None,
        settings: SharedTierSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to look into a store.

        Args:
            geometry: shape of a chunk.
            store: a client of the store; ``close`` shuts it down.
            namespace: digest of the namespace.
            ranks: how many ranks store, each its own part.
            load_ranks: how many ranks load; by default as many.
            settings: what is written, and for how long verdicts count.
            clock: seconds, monotonic.
        """
        self.geometry = geometry
        self.namespace = namespace
        self.settings = SharedTierSettings() if settings is None else settings
        self.counters = Counters()
        self.break_even = BreakEven()
        self.load_breaker = Breaker(max_cooldown=15.0, clock=clock)
        self.store_breaker = Breaker(max_cooldown=15.0, clock=clock)
        self._clock = clock
        self._store = store
        self._ranks = ranks
        self._load_ranks = ranks if load_ranks is None else load_ranks
        self.lookup = SharedLookup(
            store,
            ObjectNames(namespace),
            ranks,
            geometry,
            self.settings.lookup,
            counters=self.counters,
            clock=clock,
        )
        self._sights = WRITE_POLICIES[self.settings.write]
        self._prompts = PromptTree(max(1, self._sights), REMEMBERED, self.lookup.let_go)
        self._written: dict[ChunkKey, float] = {}
        self._writing: set[ChunkKey] = set()
        self._loads: dict[int, _Load] = {}
        self._stores: dict[int, _Store] = {}
        self._next_plan_id = -1
        self._retired: str | None = None

    @property
    def pending_loads(self) -> int:
        """Load plans that some rank has not reported yet."""
        return len(self._loads)

    @property
    def pending_stores(self) -> int:
        """Store plans that some rank has not reported yet."""
        return len(self._stores)

    @property
    def writing_bytes(self) -> int:
        """Bytes a rank that are on their way to the store."""
        return len(self._writing) * self.geometry.chunk_bytes

    def in_use(self) -> dict[str, int]:
        """Return what plans hold, by name; all 0 when idle."""
        return {
            "shared_load_plans": len(self._loads),
            "shared_store_plans": len(self._stores),
            "shared_writing_chunks": len(self._writing),
        }

    def degraded(self) -> str | None:
        """Return why the tier is not used at present, None if it is."""
        if self._retired is not None:
            return self._retired
        why_not = getattr(self._store, "why_not", None)
        if why_not is not None:
            return f"no connection: {why_not}"
        if self.load_breaker.is_open:
            return "loads failed repeatedly"
        if not self.lookup.is_available() or self.lookup.breaker.is_open:
            return "it does not say what it holds"
        return "writes failed repeatedly" if self.store_breaker.is_open else None

    def look(self, keys: Sequence[ChunkKey], start: int = 0, stop: int | None = None) -> Seen:
        """Return how many leading chunks could be loaded, as far as is known; ask for what is not.

        Args:
            keys: a prompt's chunks from the first one on.
            start: the first one that is asked about; what lies before comes from elsewhere.
            stop: the first one behind them; by default all are asked about.
        """
        if self._retired is not None or len(keys) <= start or not self.load_breaker.would_allow():
            return Seen(0, True)
        seen = self.lookup.look(keys, start, stop)
        if not self.geometry.is_partial or not seen.chunks:
            return seen
        has_group = self.lookup.has_group
        hit = longest_hit(
            self.geometry,
            seen.chunks,
            lambda chunk, group: has_group(keys[start + chunk], group),
            first_chunk=start,
        )
        return Seen(hit, seen.decided)

    def note_prompt(self, keys: Sequence[ChunkKey]) -> int:
        """Count a new prompt's chunks, from the first one on. Call it once a prompt.

        Returns how many leading chunks of its request can be worth a write: there is no need to ask ``wants``
        for those behind them.
        """
        if not self._sights:
            return 0
        self._prompts.note(keys, self._clock())
        if self._sights == 1:
            # Also those of the answer.
            return sys.maxsize
        enough = 0
        for run in self._prompts.runs(keys):
            if run.prompts < self._sights:
                break
            enough = run.end
        return enough

    def plan_load(
        self, wanted: Sequence[tuple[ChunkKey, BlockIds]], prompt: Sequence[ChunkKey] = ()
    ) -> LoadPlan:
        """Return the plan to load neighbouring chunks, each given with its block ids by KV cache group.

        Nothing holds them in the store: one that is gone fails when it is read.

        Args:
            wanted: the chunks.
            prompt: the keys of their prompt's chunks from the first one to the last of these; without them
                these are taken for the first ones.
        """
        self.load_breaker.allow()
        chunks = ChunkBlocks.of(wanted)
        keys = chunks.keys
        plan = LoadPlan(self._new_plan_id(), Transfers(chunks, keys))
        self._loads[plan.plan_id] = _Load(keys, prompt or keys, self._load_ranks)
        return plan

    def drop_load(self, plan_id: int) -> None:
        """Forget a load plan that no rank will ever hear of."""
        self._loads.pop(plan_id, None)

    def wants(
        self, keys: Sequence[ChunkKey], *, start: int = 0, stop: int | None = None, beside: int = 0
    ) -> list[int]:
        """Return the positions of chunks that are worth a write and are not there, as far as is known.

        Args:
            keys: a prompt's chunks from the first one on. The first one that too few prompts had ends the
                look: those behind it were in no more of them.
            start: the first one that is asked about.
            stop: the first one behind them; by default all are asked about.
            beside: chunks that are about to be planned already. Not more are returned than may be on their
                way beside those.
        """
        if not self._sights or self._retired is not None or not self.store_breaker.would_allow():
            return []
        now, room = self._clock(), self._room() - beside
        stop = len(keys) if stop is None else min(stop, len(keys))
        wanted: list[int] = []
        # Chunks of answers are of no prompt that was noted, and are written where that is no condition.
        for run in (*self._prompts.runs(keys), Run(stop, 0, 0.0)):
            if start >= stop or (self._sights > 1 and run.prompts < self._sights):
                break
            end = min(run.end, stop)
            if end <= start:
                continue
            if run.held_until <= now and not self._pick(wanted, keys, range(start, end), room):
                self._count("shared_dropped_chunks", 1)
                break
            start = end
        return wanted

    def _pick(self, wanted: list[int], keys: Sequence[ChunkKey], places: range, room: int) -> bool:
        """Add chunks that are neither there nor on their way; return whether there was room for all."""
        now, written, writing, is_there = self._clock(), self._written, self._writing, self.lookup.is_there
        fresh, _ = leading_fresh(written, keys, now, start=places.start, stop=places.stop)
        for at in places[fresh:]:
            key = keys[at]
            if key in writing or written.get(key, 0.0) > now or is_there(key, now):
                continue
            if len(wanted) >= room:
                return False
            wanted.append(at)
        return True

    def _room(self) -> int:
        """Return how many more chunks may be on their way to the store."""
        return self.settings.max_writing_bytes // self.geometry.chunk_bytes - len(self._writing)

    def plan_store(self, candidates: Sequence[tuple[ChunkKey, BlockIds]]) -> StorePlan | None:
        """Return the plan to write chunks of ``wants``, as many as may be on their way; None for none."""
        offered = ChunkBlocks.of(candidates)
        fresh = self._unplanned(offered.keys)
        chosen = fresh[: max(0, self._room())]
        self._count("shared_dropped_chunks", len(fresh) - len(chosen))
        if not chosen or not self.store_breaker.allow():
            return None
        keys = tuple(offered.keys[at] for at in chosen)
        chunks = ChunkBlocks(keys, [pick_columns(rows, chosen) for rows in offered.groups])
        plan = StorePlan(self._new_plan_id(), Transfers(chunks, keys))
        groups: list[frozenset[int]] = []
        if self.geometry.is_partial:
            groups = [frozenset(n for n, blocks in enumerate(each) if blocks) for _, each in chunks]
        self._stores[plan.plan_id] = _Store(keys, groups, self._ranks)
        self._writing.update(keys)
        return plan

    def _unplanned(self, keys: Sequence[ChunkKey]) -> Sequence[int]:
        """Return the positions of chunks that are not on their way, each once."""
        if len(set(keys)) == len(keys) and self._writing.isdisjoint(keys):
            return range(len(keys))
        first: dict[ChunkKey, int] = {}
        for at, key in enumerate(keys):
            if key not in self._writing:
                first.setdefault(key, at)
        return list(first.values())

    def complete_load(self, rank: int, result: LoadResult) -> bool:
        """Take one rank's report; return True once every rank has reported that plan."""
        load = self._loads.get(result.plan_id)
        if load is None or rank in load.ranks:
            return False
        load.ranks.add(rank)
        self._count("shared_read_bytes", result.bytes_read)
        load.seconds = max(load.seconds, result.seconds)
        load.failed.update(result.failed)
        load.guilty.update(set(result.failed) - set(result.untried))
        load.errno = worse(load.errno, result.errno)
        load.damaged |= bool(result.corrupt) or result.errno == errno.EBADMSG
        if len(load.ranks) < load.num_ranks:
            return False
        del self._loads[result.plan_id]
        if load.seconds and (not load.failed or load.errno == errno.ETIMEDOUT):
            # One that was too late took at least as long.
            self.break_even.note_load(len(load.keys) * self.geometry.chunk_tokens, load.seconds)
        self._count("shared_load_chunks", len(load.keys) - len(load.failed))
        self._count("shared_load_failed_chunks", len(load.failed))
        self._settle_load(load)
        if load.errno not in NO_ROOM_ERRORS:
            self._judge(self.load_breaker, "loads", len(load.failed), load.errno)
        return True

    def complete_store(self, rank: int, result: StoreResult) -> bool:
        """Take one rank's report; a chunk is there once every rank has written its part."""
        store = self._stores.get(result.plan_id)
        if store is None or rank in store.ranks:
            return False
        self._count("shared_written_bytes", result.bytes_written)
        store.ranks.add(rank)
        store.failed.update(at for at, sums in enumerate(result.checksums) if sums is None)
        store.errno = worse(store.errno, result.errno)
        if len(store.ranks) < store.num_ranks:
            return False
        del self._stores[result.plan_id]
        self._writing.difference_update(store.keys)
        done = [at for at in range(len(store.keys)) if at not in store.failed]
        keys = [store.keys[at] for at in done]
        self.lookup.note_there(keys, [store.groups[at] for at in done] if store.groups else ())
        self._remember_written(keys)
        self._count("shared_store_chunks", len(done))
        if store.errno in NO_ROOM_ERRORS:
            self._count("shared_dropped_chunks", len(store.failed))
        else:
            self._count("shared_store_failed_chunks", len(store.failed))
            self._judge(self.store_breaker, "writes", len(store.failed), store.errno)
        return True

    def retire(self, why: str) -> None:
        """Never use the store again: what it holds is not known to be right any more."""
        if self._retired is None:
            logger.info("Tutti: the shared store is not used any more: %s.", why)
        self._retired = why
        self.lookup.forget()

    def close(self) -> None:
        """Let the store go, within a bounded time."""
        self.lookup.close()
        self._store.shutdown()

    def _settle_load(self, load: _Load) -> None:
        first = len(load.prompt) - len(load.keys)
        if not load.failed:
            if not self.geometry.is_partial:
                # A long prompt has thousands, and a scheduler that waits.
                self.lookup.note_read(load.keys)
                self._prompts.hold(load.prompt, first, self._clock() + WRITTEN_SECONDS)
            return
        good = [key for at, key in enumerate(load.keys) if at not in load.failed]
        if not self.geometry.is_partial:
            self.lookup.note_there(good)
            self._remember_written(good)
        bad = [load.keys[at] for at in sorted(load.guilty)]
        if bad and load.errno in DATA_ERRORS:
            self._count("shared_damaged_chunks" if load.damaged else "shared_lost_chunks", len(bad))
            self.lookup.note_gone(bad, damaged=load.damaged)
            for key in bad:
                self._written.pop(key, None)
            self._prompts.hold(load.prompt, first + min(load.guilty), 0.0)

    def _remember_written(self, keys: Sequence[ChunkKey]) -> None:
        end = self._clock() + WRITTEN_SECONDS
        for key in keys:
            keep(self._written, key, end, REMEMBERED)

    def _judge(self, breaker: Breaker, what: str, failed: int, code: int) -> None:
        if not failed:
            if breaker.is_open:
                logger.info("Tutti: %s of the shared store work again.", what)
            breaker.succeeded()
        elif code in DATA_ERRORS:
            logger.info(
                "Tutti: %d chunks of the shared store were gone or damaged; they are computed.", failed
            )
        elif breaker.failed():
            logger.warning(
                "Tutti: %s of the shared store fail (%s); the server goes on without and tries again later.",
                what,
                os.strerror(code),
            )

    def _new_plan_id(self) -> int:
        plan_id = self._next_plan_id
        self._next_plan_id -= 1
        return plan_id

    def _count(self, name: str, amount: int) -> None:
        if amount:
            self.counters.add(name, amount)
