# SPDX-License-Identifier: Apache-2.0
"""Which chunk lies where: what is stored, places that are free, places that are being emptied."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise, repeat

from tutti_engine.catalogue.checksum_table import ChecksumTable
from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.plan import ChunkId, ChunkKey
from tutti_engine.planning.chunk_places import FREE, LEAVING, PENDING, STORED, ChunkPlaces, Entry, Pinned
from tutti_engine.policies.eviction import NO_USE, Use

__all__ = ["ChunkIndex", "Entry", "Pinned"]

SWEEP_SLOTS = 1024
"""Slots that one call looks at for chunks that are too old."""

FIRST_LOOK = 32
"""Keys that a lookup takes at once at first; then twice as many each time, so misses cost little."""


class ChunkIndex(ChunkPlaces):
    """Maps keys to places.

    A place is always in exactly one state: free, pending (a store is under way), stored, or leaving (removed
    but not yet reusable, see ``take_leaving``). Which chunk has to go a policy decides, but always one
    without a child: no chunk is kept whose ancestor went. Not thread-safe; the planner is its only user.

    Args:
        chunk_ids: the places, as the backend names them.
        policy: who has to go; by default the least recently used.
        quota_chunks: most chunks of one tenant; None for no limit.
        ttl_seconds: age since the last use from which a chunk is no hit and goes; None for no limit.
        clock: seconds since 1970.
    """

    def lookup_prefix(self, keys: Sequence[ChunkKey]) -> int:
        """Return how many leading keys are stored. A pending store is not a hit. Takes O(hits)."""
        return len(self._fresh_prefix(keys))

    def missing(self, keys: Sequence[ChunkKey]) -> list[int]:
        """Return the positions of keys that are neither stored nor pending."""
        there = list(map(self._stored.__contains__, keys))
        if False not in there:
            return []
        return [at for at, found in enumerate(there) if not found and keys[at] not in self._pending]

    def last_used(self, entry: Entry) -> int:
        """Return the last use of a stored chunk, in seconds since 1970."""
        return self.columns.seconds[entry.slot]

    def get(self, key: ChunkKey) -> Entry | None:
        """Return the stored chunk of that key."""
        slot = self._stored.get(key)
        return None if slot is None else self._entry(slot)

    def holds(self, entry: Entry) -> bool:
        """Return whether that chunk is still stored in that place."""
        return self._stored.get(entry.key) == entry.slot and self._fillings[entry.slot] == entry.filling

    # Use.

    def begin(self, keys: Sequence[ChunkKey], tenant: int = 0) -> Use:
        """Take note of a prompt, given by all its whole chunks; its stored prefix counts as used now.

        Returns what ``reserve`` needs to know of it.
        """
        runs = self._fresh_prefix(keys)
        slots = runs.slots
        self._join(runs)
        hits = len(slots)
        last = slots[-1] if slots else -1
        # A child that is pending under the next key is this prompt's own, of a request beside it.
        branches = bool(slots) and self._tree.child[last] >= 0
        if branches and hits < len(keys) and keys[hits] in self._pending:
            branches = False
        mark, shared_mark, shared = self._policy.begin(keys, slots, branches, self._now())
        shared = min(shared, hits)
        runs.set(self.columns.marks, bytes((shared_mark,)) * shared + bytes((mark,)) * (hits - shared))
        self._touch(runs)
        return Use(tenant, mark, keys, hits)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Mark part of a prefix as used now, its first chunk as the very last to go."""
        self._touch(SlotRuns([self._stored[key] for key in keys if key in self._stored]))

    def _touch(self, runs: SlotRuns) -> None:
        count, tick = len(runs), self._tick
        runs.set(self.columns.ticks, array("Q", range(tick + count, tick, -1)))
        runs.set(self.columns.seconds, array("I", (self._now(),)) * count)
        self._tick = tick + count
        self._policy.touch(runs)
        if self._tenants is not None:
            self._tenants.touch(runs)

    def _prefix(self, keys: Sequence[ChunkKey]) -> SlotRuns:
        """Return the slots of the leading keys that are stored."""
        known, runs = self._looked_up
        # A request is looked up, noted and pinned in a row: its keys are the same objects.
        if len(keys) <= len(known) and known[: len(keys)] == keys:
            return runs.first(len(keys))
        slots: list[int] = []
        if 0 < len(known) < len(keys) and keys[: len(known)] == known:
            if keys[len(known)] not in self._stored:
                return runs
            slots = runs.slots.copy()
        get, size = self._stored.get, FIRST_LOOK
        while len(slots) < len(keys):
            more = list(map(get, keys[len(slots) : len(slots) + size], repeat(-1)))
            if -1 in more:
                slots += more[: more.index(-1)]
                break
            slots += more
            size *= 2
        runs = SlotRuns(slots)
        self._looked_up = keys[: len(slots)], runs
        return runs

    def _fresh_prefix(self, keys: Sequence[ChunkKey]) -> SlotRuns:
        """Return the slots of the leading keys that are stored and not too old."""
        runs = self._prefix(keys)
        if self._ttl is None:
            return runs
        oldest, seconds, keys_at = self._now() - self._ttl, self.columns.seconds, self._keys
        slots, left = runs.slots, len(runs)
        # A use of a chunk is one of all before it: only the last ones can be too old.
        while left and seconds[slots[left - 1]] < oldest and keys_at[slots[left - 1]] not in self._kept:
            left -= 1
        return runs.first(left)

    def _join(self, runs: SlotRuns) -> None:
        """Link chunks that were stored before this process, whose parents show only now."""
        if -1 not in runs.take(self._tree.parent)[1:]:
            return
        parent = self._tree.parent
        for above, slot in pairwise(runs.slots):
            if parent[slot] < 0:
                self._attach(slot, above)

    # Stores.

    def reserve(self, key: ChunkKey, parent: ChunkKey | None = None, use: Use = NO_USE) -> Entry | None:
        """Give a new chunk a place; None if no place is free or the key has one already.

        Args:
            key: the chunk.
            parent: the chunk that it goes on from, which must be stored or pending; None for a first one.
            use: what ``begin`` returned for its prompt.

        Raises ValueError for a parent that is not there.
        """
        if not self._num_free or key in self._stored or key in self._pending:
            return None
        above = -1
        if parent is not None:
            found = self._stored.get(parent, self._pending.get(parent))
            if found is None:
                raise ValueError(f"chunk {key.hex()} cannot be kept without {parent.hex()}, which is gone")
            above = found
        slot = self._free.popleft() if self._free else next(self._unused)
        self._num_free -= 1
        self._keys[slot] = key
        self._state[slot] = PENDING
        self._fillings[slot] += 1
        self._pending[key] = slot
        self.columns.marks[slot] = use.mark
        self.columns.tenants[slot] = use.tenant
        if self._tenants is not None:
            self._tenants.hold(slot)
        if above >= 0:
            self._attach(slot, above)
        return Entry(key, self._chunk_ids[slot], slot, self._fillings[slot])

    def commit(self, entry: Entry, checksums: tuple[bytes, ...]) -> bool:
        """Turn a pending chunk into a hit; False if it was forgotten in the meantime."""
        slot = entry.slot
        if self._pending.get(entry.key) != slot or self._fillings[slot] != entry.filling:
            return False
        del self._pending[entry.key]
        if checksums:
            if self._checksums is None:
                self._checksums = ChecksumTable(self.capacity, len(checksums), len(checksums[0]))
            self._checksums.set(self._row(slot), checksums)
        self._stored[entry.key] = slot
        self._state[slot] = STORED
        self._tick += 1
        self.columns.ticks[slot] = self._tick
        # Not later than its parent's: whatever goes by time then takes the child first.
        parent = self._tree.parent[slot]
        self.columns.seconds[slot] = self._now() if parent < 0 else self.columns.seconds[parent]
        self._policy.insert(slot, entry.key)
        if self._tenants is not None:
            self._tenants.insert(slot)
        if self._tree.child[slot] >= 0 or entry.key in self._kept:
            self._cover(slot)
        return True

    def abort(self, entry: Entry, *, reusable: bool) -> None:
        """Forget a pending chunk, and what was stored beyond it.

        Its place is free again unless something may still write to it.
        """
        slot = entry.slot
        if self._fillings[slot] != entry.filling or self._state[slot] != PENDING:
            return
        if self._pending.get(entry.key) == slot:
            self._forget_pending(slot)
        if reusable:
            self._release([slot])
        else:
            self._state[slot] = LEAVING

    def _forget_pending(self, slot: int) -> None:
        key = self._keys[slot]
        assert key is not None
        del self._pending[key]
        self._drop_below(slot)
        self._detach(slot)
        if self._tenants is not None:
            self._tenants.release(slot)
        self._keys[slot] = None

    # Removal.

    def drop(self, entry: Entry) -> int:
        """Forget a stored chunk and all that goes on from it; return how many were stored.

        Their places leave as soon as nobody reads them.
        """
        if not self.holds(entry):
            return 0
        before = len(self._stored)
        self._drop_below(entry.slot)
        self._remove(entry.slot, evicted=False)
        return before - len(self._stored)

    def _drop_below(self, slot: int) -> None:
        for below in self._tree.below(slot):
            if self._state[below] == STORED:
                self._remove(below, evicted=False)
            else:
                # Its store goes on and ends as a failure, which gives the place back.
                self._forget_pending(below)

    def pin(self, entry: Entry) -> None:
        """Keep a chunk's place while a load reads it."""
        self._pins[entry.slot] = self._pins.get(entry.slot, 0) + 1

    def unpin(self, entry: Entry) -> None:
        """End one load's hold."""
        left = self._pins.pop(entry.slot) - 1
        if left:
            self._pins[entry.slot] = left
        elif self._state[entry.slot] == LEAVING:
            self._leaving.append(entry)

    def pin_all(self, keys: Sequence[ChunkKey]) -> Pinned:
        """Keep the places of those chunks that are stored while a load reads them."""
        runs = self._prefix(keys)
        fillings: Sequence[int]
        if len(runs) == len(keys):
            fillings = runs.take(self._fillings)
        else:
            runs = SlotRuns(list(map(self._stored.get, keys, repeat(-1))))
            fillings = [self._fillings[slot] if slot >= 0 else 0 for slot in runs.slots]
        pinned = Pinned(keys, runs, fillings)
        self._pins.update(pinned.there())
        return pinned

    def unpin_all(self, pinned: Pinned) -> None:
        """End one load's hold on all its chunks."""
        slots = pinned.there()
        if len(set(slots)) == len(slots):
            holds = list(map(self._pins.pop, slots))
            if holds.count(1) < len(holds):
                self._pins.update({slot: number - 1 for slot, number in zip(slots, holds) if number > 1})
            runs = pinned.runs if len(slots) == len(pinned) else SlotRuns(slots)
            if LEAVING not in runs.take(self._state):
                return
            self._pins.update(slots)
        for position in range(len(pinned)):
            entry = self.entry_at(pinned, position)
            if entry is not None:
                self.unpin(entry)

    def entry_at(self, pinned: Pinned, position: int) -> Entry | None:
        """Return one of the chunks that a load has pinned, None if it was not stored."""
        slot = pinned.slots[position]
        if slot < 0:
            return None
        return Entry(pinned.keys[position], self._chunk_ids[slot], slot, pinned.fillings[position])

    def keep(self, keys: Sequence[ChunkKey]) -> None:
        """Let chunks, stored now or later, stay whatever the policy says, until ``let_go``."""
        for key in keys:
            if key not in self._kept:
                self._kept.add(key)
                slot = self._stored.get(key)
                if slot is not None:
                    self._cover(slot)

    def let_go(self, keys: Sequence[ChunkKey]) -> None:
        """Let the policy decide on chunks again."""
        for key in keys:
            if key in self._kept:
                self._kept.discard(key)
                slot = self._stored.get(key)
                if slot is not None and self._tree.child[slot] < 0:
                    self._uncover(slot)

    @property
    def kept(self) -> int:
        """Number of keys that are to stay."""
        return len(self._kept)

    def not_kept(self, keys: Iterable[ChunkKey]) -> int:
        """Return how many of some keys are not among those that are to stay."""
        return len(set(keys) - self._kept)

    def admits(self, use: Use) -> bool:
        """Return whether the policy finds new chunks of a prompt worth the room of those that would go."""
        return self._policy.admits(use.mark, self._now(), self._pins)

    def next_victim(self) -> ChunkKey | None:
        """Return the key of the chunk that would go next."""
        slot = next(self._policy.victims(self._now(), self._pins), -1)
        key = self._keys[slot] if slot >= 0 else None
        return None if key is None else ChunkKey(key)

    def evict(self, count: int) -> int:
        """Remove up to ``count`` chunks that nobody reads, as the policy says; return how many."""
        return self._evict(count, self._policy.victims(self._now(), self._pins))

    def _evict(self, count: int, victims: Iterator[int]) -> int:
        gone = 0
        while gone < count and (slot := next(victims, -1)) >= 0:
            self._remove(slot, evicted=True)
            gone += 1
        return gone

    def evict_excess(self, tenant: int, wanted: int) -> tuple[int, int]:
        """Remove a tenant's chunks until it may have ``wanted`` more.

        Returns how many went, and how many more it may have now.
        """
        if self._tenants is None or not tenant:
            return 0, wanted
        excess = self._tenants.excess(tenant, wanted)
        gone = self._evict(max(0, excess), self._tenants.victims(tenant, self._pins))
        return gone, max(0, min(wanted, wanted - excess + gone))

    def expire(self) -> int:
        """Remove chunks that are too old among the next ones in turn; return how many."""
        if self._ttl is None:
            return 0
        oldest = self._now() - self._ttl
        start, self._sweep_from = self._sweep_from, self._sweep_from + SWEEP_SLOTS
        if self._sweep_from >= self.capacity:
            self._sweep_from = 0
        before = len(self._stored)
        seconds, state = self.columns.seconds, self._state
        for slot in range(start, min(start + SWEEP_SLOTS, self.capacity)):
            if state[slot] != STORED or seconds[slot] >= oldest or slot in self._pins:
                continue
            if self._keys[slot] not in self._kept:
                self.drop(self._entry(slot))
        return before - len(self._stored)

    def adopt(self, slot: int, key: bytes | None, seconds: int, checksums: tuple[bytes, ...]) -> bool:
        """Show what somebody else has put into a place, or with ``key`` None that nothing is there.

        For an index that stores nothing itself. What goes on from the chunk that was there stays: its place
        is told by itself. Returns False while loads read what was dropped there: it has to be told
        again then.
        """
        where = [slot] if key is None or key not in self._stored else [slot, self._stored[key]]
        for each in where:
            if self._state[each] == STORED:
                while (below := self._tree.child[each]) >= 0:
                    self._detach(below)
                self._remove(each, evicted=False)
                self._leaving.clear()
                self._state[each] = FREE
                self._num_free += 1
        if key is None:
            return True
        if self._state[slot] != FREE:
            return False
        self._fillings[slot] += 1
        self._keys[slot], self._state[slot], self._stored[key] = key, STORED, slot
        self._num_free -= 1
        if self._checksums is not None:
            self._checksums.set(self._row(slot), checksums)
        self._tick += 1
        self.columns.ticks[slot] = self._tick
        self.columns.seconds[slot] = min(seconds, self._now())
        self.columns.marks[slot] = self.columns.tenants[slot] = 0
        self._policy.insert(slot, key)
        return True

    def clear(self) -> None:
        """Forget every chunk. Pending stores end as failures; places being read leave later."""
        for slot in list(self._stored.values()):
            self._remove(slot, evicted=False)
        for slot in list(self._pending.values()):
            if self._keys[slot] is not None:
                self._forget_pending(slot)

    def take_leaving(self) -> list[Entry]:
        """Return the chunks removed since the last call; each place comes back through ``give_back``."""
        leaving, self._leaving = self._leaving, []
        return leaving

    def take_free(self, count: int) -> list[ChunkId]:
        """Take up to ``count`` free places out of use; ``give_back`` brings them in again."""
        taken = min(count, self._num_free)
        self._num_free -= taken
        listed = [self._free.pop() for _ in range(min(taken, len(self._free)))]
        listed += islice(self._unused, taken - len(listed))
        return [self._chunk_ids[slot] for slot in listed]

    def give_back(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Make places reusable, after the removal of their chunks has become durable."""
        # A prompt's chunks leave from its end on: in order again, the next one finds neighbours.
        self._release(sorted(map(self.slot_of, chunk_ids)))

    def _release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._state[slot] = FREE
            self._free.append(slot)
            self._num_free += 1

    def _remove(self, slot: int, *, evicted: bool) -> None:
        key = self._keys[slot]
        assert key is not None
        self._looked_up = ((), SlotRuns([]))
        del self._stored[key]
        self._policy.remove(slot, key, evicted)
        if self.on_gone is not None:
            self.on_gone(ChunkKey(key))
        if self._tenants is not None:
            self._tenants.release(slot)
        self._detach(slot)
        self._state[slot] = LEAVING
        self._keys[slot] = None
        if self._checksums is not None:
            self._checksums.forget(self._row(slot))
        if slot not in self._pins:
            entry = Entry(ChunkKey(key), self._chunk_ids[slot], slot, self._fillings[slot])
            self._leaving.append(entry)

    # Parents and candidates.

    def _attach(self, slot: int, parent: int) -> None:
        if self._tree.attach(slot, parent) and self._state[parent] == STORED:
            self._cover(parent)

    def _detach(self, slot: int) -> None:
        parent = self._tree.detach(slot)
        if parent >= 0 and self._state[parent] == STORED and self._keys[parent] not in self._kept:
            self._uncover(parent)

    def _cover(self, slot: int) -> None:
        self._policy.cover(slot)
        if self._tenants is not None:
            self._tenants.cover(slot)

    def _uncover(self, slot: int) -> None:
        self._policy.uncover(slot)
        if self._tenants is not None:
            self._tenants.uncover(slot)
