# SPDX-License-Identifier: Apache-2.0
"""The planning side: decides what is loaded, what is stored and what has to go.

No device, no I/O of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from tutti_engine.block_rows import ChunkBlocks
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.chunk_transfer import BlockIds
from tutti_engine.plan import ChunkKey, LoadPlan, StorePlan
from tutti_engine.planning.chunk_index import Entry
from tutti_engine.planning.journal import PlannerJournal
from tutti_engine.planning.plans_under_way import Load, Store, serial
from tutti_engine.planning.prefix_hits import longest_hit
from tutti_engine.planning.reports import PlannerReports
from tutti_engine.planning.store_gate import Candidate, place_in_prompts
from tutti_engine.policies.eviction import Use
from tutti_engine.policies.tenants import tenant_tag
from tutti_engine.transfers import Transfers, as_column

__all__ = ["Planner", "PlannerJournal"]

logger = logging.getLogger(__name__)


class Planner(PlannerReports):
    """Owns the index of one namespace.

    Calls may come from any thread and wait for each other. A server's come from one; what they promise each
    other (a hit that is then loaded) holds beside ``keep_up``, or ends as a load that is seen to fail.

    Its counters are ``load_chunks``, ``load_failed_chunks``, ``read_bytes``, ``load_microseconds``,
    ``store_chunks``, ``store_failed_chunks``, ``store_dropped_chunks``, ``written_bytes``,
    ``evicted_chunks``, ``expired_chunks``, ``lost_chunks`` (a load failed, and what goes on from such a
    chunk), ``reset_chunks``, ``corrupt_chunks`` and ``quarantined_chunks``, and those of ``StoreGate``. Bytes
    and times are summed over ranks. What was resident at first and what was stored is resident now or was
    evicted, expired, lost or reset.
    """

    @serial
    def lookup_prefix(self, keys: Sequence[ChunkKey], *, first_chunk: int = 0) -> int:
        """Return how many leading chunks could be loaded. Changes nothing.

        Args:
            keys: the keys of a prompt's chunks from ``first_chunk`` on.
            first_chunk: number of the first one; the server has what lies before.
        """
        if not self.load_breaker.would_allow():
            return 0
        stored = self._index.lookup_prefix(keys)
        if not stored or not self.geometry.is_partial:
            return stored
        return longest_hit(
            self.geometry,
            stored,
            lambda chunk, group: self._has_group(keys[chunk], group),
            first_chunk=first_chunk,
        )

    def _has_group(self, key: ChunkKey, group: int) -> bool:
        """Return whether a stored chunk has the pages of a group.

        Segments that were never stored have the checksum zero, here and after a restart. Of those that were,
        one in 2**64 has it too, and is then not used.
        """
        layers = self.geometry.groups[group].layers
        entry = self._index.get(key)
        if entry is None or not layers:
            return False
        word = self._index.checksums(entry)[0][8 * layers[0] : 8 * layers[0] + 8]
        return word != bytes(8)

    @serial
    def note_prompt(self, keys: Sequence[ChunkKey], tenant: str | None = None) -> Use:
        """Take note of a new prompt; its stored prefix counts as used now. Call it once a prompt.

        Args:
            keys: all its whole chunks, from the first one on.
            tenant: who sent it (a cache salt, say), for ``tenant_quota``.

        Returns what ``plan_load`` and ``plan_store`` want to know of the prompt.
        """
        tag = tenant_tag(tenant)
        self._gate.begin(keys)
        use = self._index.begin(keys, tag)
        if self._journal is not None:
            self._journal.touch(keys[: use.stored])
        return use

    @serial
    def keep_prefix(self, keys: Sequence[ChunkKey]) -> None:
        """Let the chunks of a prefix, stored now or later, stay until ``let_prefix_go``, over no restart.

        Args:
            keys: from the prompt's first chunk on.

        Raises ValueError when more than half of the places would be kept.
        """
        most = self._index.capacity // 2
        more = self._index.not_kept(keys)
        if self._index.kept + more > most:
            raise ValueError(
                f"cannot keep {more} more chunks beside {self._index.kept}: at most {most}, half of all"
            )
        self._index.keep(keys)

    @serial
    def let_prefix_go(self, keys: Sequence[ChunkKey]) -> None:
        """Let the policies decide on these chunks again."""
        self._index.let_go(keys)

    @serial
    def unknown(self, keys: Sequence[ChunkKey]) -> list[int]:
        """Return the positions of chunks that are neither stored nor on their way."""
        return self._index.missing(keys)

    @serial
    def is_known(self, key: ChunkKey) -> bool:
        """Whether a chunk is stored or on its way."""
        return key in self._index

    @serial
    def plan_load(self, wanted: Sequence[tuple[ChunkKey, BlockIds]], use: Use | None = None) -> LoadPlan:
        """Pin chunks and return the plan to load them.

        Args:
            wanted: for each chunk its key and, for each KV cache group, its block ids; none for a group that
                needs nothing of this chunk. ``ChunkBlocks`` where there are thousands.
            use: what ``note_prompt`` returned; without it this call counts as a use.

        A chunk that is gone stays in the plan without a place: it was promised, so its load must be seen to
        fail.
        """
        self.load_breaker.allow()
        index = self._index
        chunks = ChunkBlocks.of(wanted)
        pinned = index.pin_all(chunks.keys)
        try:
            if use is None:
                index.touch(chunks.keys)
                if self._journal is not None:
                    self._journal.touch(chunks.keys)
            plan = LoadPlan(
                self._new_plan_id(), Transfers(chunks, index.places_of(pinned), index.checksums_of(pinned))
            )
        except BaseException:
            index.unpin_all(pinned)
            raise
        self._loads[plan.plan_id] = Load(pinned, self._load_ranks)
        return plan

    @serial
    def plan_store(
        self,
        candidates: Sequence[tuple[ChunkKey, BlockIds]],
        prefixes: Sequence[Sequence[ChunkKey]] = (),
        uses: Sequence[Use] = (),
    ) -> StorePlan | None:
        """Find places for the chunks that are not known yet; None if there is nothing to do.

        Args:
            candidates: for each chunk its key and, for each KV cache group, its block ids; none for a group
                whose pages the server does not have any more. Such a chunk is no hit's end for that group,
                for as long as it is stored.
            prefixes: the prompts that the chunks belong to, each the keys from its first chunk on. A chunk is
                stored only where the one before it is, and goes before it.
            uses: for each prefix what ``note_prompt`` returned; without them this call notes the prompts.
        """
        self._expire()
        fresh: dict[ChunkKey, BlockIds] = {}
        for key, blocks in candidates:
            if key not in self._index:
                fresh.setdefault(key, blocks)
        if not fresh or self._read_only or not self.store_breaker.allow():
            return None
        if prefixes and not uses:
            uses = [self.note_prompt(prefix) for prefix in prefixes]
        elif not prefixes:
            self._gate.begin(list(fresh))
        entries = self._reserve(fresh, place_in_prompts(fresh, prefixes, uses).values())
        try:
            self._room.retire()
            if not entries:
                return None
            chunks = ChunkBlocks.of([(entry.key, fresh[entry.key]) for entry in entries])
            plan = StorePlan(
                self._new_plan_id(), Transfers(chunks, as_column([entry.chunk_id for entry in entries]))
            )
        except BaseException:
            self._abort(entries)
            raise
        self._stores[plan.plan_id] = Store(tuple(entries), self._ranks)
        return plan

    def _reserve(self, fresh: Collection[ChunkKey], placed: Collection[Candidate]) -> list[Entry]:
        """Give places to those of some new chunks that are worth one. What it raises leaves none taken."""
        # What the new chunks go on from must not be what goes for them.
        ends = {each.parent for each in placed if each.parent is not None and each.parent not in fresh}
        pinned = [entry for end in ends if (entry := self._index.get(end)) is not None]
        entries: list[Entry] = []
        for entry in pinned:
            self._index.pin(entry)
        try:
            self._room.settle(len(fresh))
            chosen = self._gate.choose(placed, full=self._room.is_full(len(fresh)))
            self._room.make(len(chosen))
            for each in chosen:
                lost = each.parent is not None and each.parent not in self._index
                reserved = None if lost else self._index.reserve(each.key, each.parent, each.use)
                if reserved is not None:
                    entries.append(reserved)
            self._count("store_dropped_chunks", len(chosen) - len(entries))
            self._gate.put_back(len(chosen) - len(entries))
        except BaseException:
            self._abort(entries)
            raise
        finally:
            for entry in pinned:
                self._index.unpin(entry)
        return entries

    def _abort(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._index.abort(entry, reusable=True)

    @serial
    def reset(self, timeout: float = 5.0) -> bool:
        """Forget every chunk; return whether that is durable within ``timeout`` seconds.

        Transfers under way end as if their chunks had never been known. A server resets its cache when the
        weights have changed, and nothing tells the new ones from the old ones after a restart: from now on
        chunks are kept for the life of this process only.
        """
        self._count("reset_chunks", len(self._index))
        self._index.clear()
        if self._journal is None:
            self._room.retire()
            return True
        self._journal.clear(lambda slots: None)
        self._room.retire()
        if self._keeps_records:
            logger.info("Tutti: the cache was reset; what is stored from now on is not kept over a restart.")
        self._keeps_records = False
        return self._journal.flush(timeout)

    @serial
    def watch(self, stored: Callable[[ChunkKey], None], gone: Callable[[ChunkKey], None]) -> None:
        """Have each chunk told that becomes a hit here, and each that is none any more.

        Calls come in the order of what happens, from whatever thread causes it; they must be short and not
        fail. A chunk too old for ``ttl_seconds`` is told when it is removed. What was resident before, or is
        adopted from the owner of a store that is only read, is told when it goes.
        """
        self._on_stored = stored
        self._index.on_gone = gone

    @serial
    def write_budget_left(self) -> float | None:
        """Return the bytes that may be written at once now, None without ``daily_write_bytes``."""
        return self._gate.budget_left()

    @serial
    def settle_places(self, wanted: int = 0) -> None:
        """Take places that have become usable and give up those that must not be used any more.

        Called with each plan; a server calls it as well now and then while it plans nothing.
        """
        self._room.settle(wanted)

    @serial
    def keep_up(self) -> bool:
        """Do a short piece of the work that no request has to wait for; return whether there is more.

        That is ``settle_places``, chunks that are too old, and room ahead of need: see ``Room.ahead``. Any
        thread may call it, see ``Upkeep``.
        """
        if self._read_only:
            return False
        self._room.settle()
        self._expire()
        self._room.retire()
        return self._room.ahead()

    @serial
    def adopt(self, changes: Iterable[tuple[int, Record | None]]) -> list[int]:
        """Show what the owner of a store that is only read has put into places, or taken out of them.

        Args:
            changes: for each place its chunk of now, None for an empty one.

        Returns the places that have to be told again later. Raises RuntimeError unless ``read_only``.
        """
        if not self._read_only:
            raise RuntimeError("only a planner that is read_only adopts what others store")
        later = []
        for slot, record in changes:
            if record is None:
                self._index.adopt(slot, None, 0, ())
            elif not self._index.adopt(slot, record.key, record.last_used, record.checksums):
                later.append(slot)
        return later

    @serial
    def leave_room_to(self, on_low: Callable[[], None] | None) -> None:
        """Let plans evict no more than they need at once, where the store is not a small one.

        ``on_low`` is called when few places are left, and has to cause ``keep_up`` from another thread soon.
        None: plans make room for the next ones again.
        """
        self._room.call_on_low(on_low)

    def _expire(self) -> None:
        self._count("expired_chunks", self._index.expire())

    def _new_plan_id(self) -> int:
        plan_id = self._next_plan_id
        self._next_plan_id += 1
        return plan_id
