# SPDX-License-Identifier: Apache-2.0
"""What the planning side holds, and what ranks' reports make of it: hits, losses, places to use again."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from tutti_engine.catalogue.catalogue import Record
from tutti_engine.counters import Counters
from tutti_engine.geometry import Geometry
from tutti_engine.plan import ChunkId, ChunkKey, LoadResult, StoreResult, StoreSettled
from tutti_engine.planning.breaker import Breaker
from tutti_engine.planning.chunk_index import ChunkIndex, Entry
from tutti_engine.planning.chunk_state import generation_of, restore
from tutti_engine.planning.journal import PlannerJournal
from tutti_engine.planning.places import Places
from tutti_engine.planning.plans_under_way import Load, Quarantine, Store, serial
from tutti_engine.planning.room import Room
from tutti_engine.planning.store_gate import StoreGate
from tutti_engine.policies.settings import PolicySettings
from tutti_engine.policies.write_budget import WriteBudget
from tutti_engine.severity import DATA_ERRORS, NO_ROOM_ERRORS, worse

__all__ = ["PlannerReports"]

logger = logging.getLogger(__name__)


def wall_clock() -> float:
    """Return the seconds since 1970."""
    return time.time()


class PlannerReports:
    """The part of ``Planner`` that takes reports, and its state."""

    def __init__(
        self,
        geometry: Geometry,
        chunk_ids: Sequence[ChunkId],
        *,
        ranks: int = 1,
        load_ranks: int | None = None,
        records: Iterable[Record] = (),
        journal: PlannerJournal | None = None,
        places: Places | None = None,
        read_only: bool = False,
        policies: PolicySettings | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Make a planner.

        Args:
            geometry: shape of a chunk.
            chunk_ids: every place.
            ranks: how many ranks store, each its own part, and report on each store.
            load_ranks: how many ranks load and report on each load, if several load the same part.
            records: what is resident.
            journal: where to write down what is resident.
            places: who decides which free places may be used; None allows all of them.
            read_only: never plan a store. Nothing is ever evicted then.
            policies: who is stored, who stays and who goes.
            clock: seconds since 1970, which ages and the write budget go by.
        """
        policies = PolicySettings() if policies is None else policies
        clock = wall_clock if clock is None else clock
        self._turn = threading.RLock()
        self.geometry = geometry
        self.counters = Counters()
        self.load_breaker = Breaker()
        self.store_breaker = Breaker()
        self._ranks = ranks
        self._load_ranks = ranks if load_ranks is None else load_ranks
        self._journal = journal
        self._read_only = read_only
        self._index = ChunkIndex(
            chunk_ids,
            policy=policies.make_eviction(),
            quota_chunks=policies.quota_chunks(len(chunk_ids)),
            ttl_seconds=policies.ttl_seconds,
            clock=clock,
        )
        self._number = restore(self._index, records)
        self._gate = StoreGate(
            self._index,
            policies,
            self.counters,
            write_bytes=self.chunk_bytes,
            # A restart must not be a way around the limit.
            budget=WriteBudget(policies.daily_write_bytes, fill=0.5 if self._number else 1.0, clock=clock),
        )
        self._room = Room(self._index, journal, places, self._count)
        self._quarantined: dict[tuple[int, int], Quarantine] = {}
        self._keeps_records = journal is not None
        self._next_plan_id = 1
        self._on_stored: Callable[[ChunkKey], None] = lambda key: None
        # Told of a load that no rank failed: how many chunks, and the seconds of the slowest rank.
        self.on_loaded: Callable[[int, float], None] = lambda chunks, seconds: None
        self._loads: dict[int, Load] = {}
        self._stores: dict[int, Store] = {}

    @property
    def resident_chunks(self) -> int:
        """Chunks that answer lookups now."""
        return len(self._index)

    @property
    def capacity_chunks(self) -> int:
        """Chunks that fit."""
        return self._index.capacity

    @property
    def chunk_bytes(self) -> int:
        """Bytes that one chunk takes in storage, over all ranks."""
        return self._ranks * self.geometry.chunk_bytes

    @property
    def pending_loads(self) -> int:
        """Load plans that some rank has not reported yet."""
        return len(self._loads)

    @property
    def pending_stores(self) -> int:
        """Store plans that some rank has not reported yet."""
        return len(self._stores)

    @serial
    def in_use(self) -> dict[str, int]:
        """Return what plans hold, by name; all 0 when idle."""
        return {
            "load_plans": len(self._loads),
            "store_plans": len(self._stores),
            "pins": self._index.pinned,
            "pending_chunks": self._index.pending,
            "quarantined_places": len(self._quarantined),
        }

    @serial
    def complete_load(self, result: LoadResult, rank: int | None = None) -> bool:
        """Take one rank's report; return True once every rank has reported that plan.

        A report that comes twice counts once, where ``rank`` says whose it is; without it each call is
        another rank's.
        """
        load = self._loads.get(result.plan_id)
        if load is None or rank in load.ranks:
            return False
        if rank is not None:
            load.ranks.add(rank)
        self._count("read_bytes", result.bytes_read)
        self._count("load_microseconds", int(result.seconds * 1e6))
        load.failed.update(result.failed)
        load.guilty.update(set(result.failed) - set(result.untried))
        load.corrupt.update(result.corrupt)
        load.errno = worse(load.errno, result.errno)
        load.bytes_read += result.bytes_read
        load.seconds = max(load.seconds, result.seconds)
        load.ranks_left -= 1
        if load.ranks_left:
            return False
        del self._loads[result.plan_id]
        pinned = load.pinned
        # All of them first: the first one's loss takes along what goes on from it.
        self._suspect(self._index.entry_at(pinned, position) for position in load.guilty & load.corrupt)
        for position in sorted(load.guilty):
            entry = self._index.entry_at(pinned, position)
            if entry is not None:
                self._count("lost_chunks", self._index.drop(entry))
        self._index.unpin_all(pinned)
        self._count("load_chunks", len(pinned) - len(load.failed))
        self._count("load_failed_chunks", len(load.failed))
        self._room.retire()
        if load.errno not in NO_ROOM_ERRORS:
            self._judge(self.load_breaker, "load", len(load.failed), load.errno)
        if load.bytes_read and not load.failed:
            self.on_loaded(len(pinned), load.seconds)
        return True

    @serial
    def complete_store(self, rank: int, result: StoreResult) -> bool:
        """Take one rank's report; a chunk becomes a hit once every rank has made it durable.

        A report that comes twice counts once.
        """
        store = self._stores.get(result.plan_id)
        if store is None or rank in store.checksums:
            return False
        self._count("written_bytes", result.bytes_written)
        store.checksums[rank] = result.checksums
        store.unsettled.update((rank, position) for position in result.unsettled)
        store.errno = worse(store.errno, result.errno)
        store.ranks_left -= 1
        if store.ranks_left:
            return False
        del self._stores[result.plan_id]
        for rank_, position in store.unsettled - store.settled:
            chunk_id = store.entries[position].chunk_id
            where = self._quarantined.setdefault((result.plan_id, position), Quarantine(chunk_id, set()))
            where.ranks.add(rank_)
        failed = sum(
            not self._settle(store, result.plan_id, position) for position in range(len(store.entries))
        )
        if store.errno in NO_ROOM_ERRORS:
            self._count("store_dropped_chunks", failed)
        else:
            self._count("store_failed_chunks", failed)
            self._judge(self.store_breaker, "store", failed, store.errno)
        return True

    @serial
    def note_settled(self, rank: int, settled: StoreSettled) -> None:
        """Take one rank's word that late writes have ended.

        Their places can be used again after the last one.
        """
        store = self._stores.get(settled.plan_id)
        if store is not None:
            store.settled.update((rank, position) for position in settled.positions)
            return
        for position in settled.positions:
            where = self._quarantined.get((settled.plan_id, position))
            if where is None:
                continue
            where.ranks.discard(rank)
            if not where.ranks:
                del self._quarantined[settled.plan_id, position]
                self._index.give_back([where.chunk_id])

    def _suspect(self, entries: Iterable[Entry | None]) -> None:
        """Note places whose chunks did not verify."""
        for entry in entries:
            if entry is not None and self._index.holds(entry):
                self._room.suspect(entry.chunk_id)
                self._count("corrupt_chunks", 1)

    def _settle(self, store: Store, plan_id: int, position: int) -> bool:
        """Make one chunk a hit or give it up; return whether every rank made it durable."""
        entry = store.entries[position]
        parts = [store.checksums[rank][position] for rank in sorted(store.checksums)]
        checksums = tuple(part for part in parts if part is not None)
        durable = len(checksums) == len(parts)
        if durable and self._index.commit(entry, checksums):
            self._count("store_chunks", 1)
            self._record(entry)
            self._on_stored(entry.key)
            return True
        quarantined = (plan_id, position) in self._quarantined
        resident = len(self._index)
        self._index.abort(entry, reusable=not quarantined)
        self._count("lost_chunks", resident - len(self._index))
        self._count("quarantined_chunks", int(quarantined))
        return durable

    def _record(self, entry: Entry) -> None:
        if self._journal is None or not self._keeps_records or not isinstance(entry.chunk_id, int):
            return
        self._number += 1
        columns = self._index.columns
        generation = generation_of(self._number, columns.marks[entry.slot], columns.tenants[entry.slot])
        used = self._index.last_used(entry)
        try:
            self._journal.put(
                Record(entry.key, entry.chunk_id, generation, self._index.checksums(entry), used)
            )
        except Exception:
            logger.exception("Tutti: a chunk is kept for the life of this process only.")

    def _judge(self, breaker: Breaker, what: str, failed: int, code: int) -> None:
        if not failed:
            breaker.succeeded()
        elif code in DATA_ERRORS:
            logger.warning(
                "Tutti: %d chunks could not be loaded (%s); they are dropped and computed again.",
                failed,
                "checksum differs" if code == errno.EBADMSG else "gone",
            )
        elif breaker.failed():
            logger.warning(
                "Tutti: the cache cannot %s now (%s); the server goes on without and tries again later.",
                what,
                os.strerror(code),
            )

    def _count(self, name: str, amount: int) -> None:
        if amount:
            self.counters.add(name, amount)
            if self._journal is not None:
                self._journal.add(name, amount)
