# SPDX-License-Identifier: Apache-2.0
"""What each place of an index holds, and how that is taken over at a start.

A chunk costs two words of a dictionary and some bytes in arrays, no object of its own.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import eq
from typing import Final, cast

from tutti_engine.catalogue.checksum_table import ChecksumTable
from tutti_engine.catalogue.slot_runs import SlotRuns, scatter
from tutti_engine.columns import numbers
from tutti_engine.plan import ChunkId, ChunkKey
from tutti_engine.planning.chunk_tree import ChunkTree
from tutti_engine.policies.eviction import EvictionPolicy, SlotColumns
from tutti_engine.policies.lru import Lru
from tutti_engine.policies.tenants import Tenants
from tutti_engine.transfers import SumRows, as_column

__all__ = ["FREE", "LEAVING", "PENDING", "STORED", "ChunkPlaces", "Entry", "Pinned"]

FREE, PENDING, STORED, LEAVING = range(4)

MAX_SECONDS = 0xFFFFFFFF

_IS_FREE = bytes(state == FREE for state in range(256))


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk in one place, for as long as it is there.

    Attributes:
        key: identity of the chunk.
        chunk_id: its place.
        slot: the index's own number of that place.
        filling: tells fillings of one place apart.
    """

    key: ChunkKey
    chunk_id: ChunkId
    slot: int
    filling: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """Chunks that a load reads, in columns.

    Attributes:
        keys: the chunks.
        runs: where they lie, -1 for those that are not stored.
        fillings: tells fillings of one place apart.
    """

    keys: Sequence[ChunkKey]
    runs: SlotRuns
    fillings: Sequence[int]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def slots(self) -> list[int]:
        """The slots of ``runs``."""
        return self.runs.slots

    def there(self) -> list[int]:
        """Return the slots of those that are stored."""
        return [slot for slot in self.slots if slot >= 0] if -1 in self.slots else self.slots


class ChunkPlaces:
    """Knows what each place holds, and takes over what was stored before.

    The part of ``ChunkIndex`` that decides nothing; arguments are documented there.
    """

    def __init__(
        self,
        chunk_ids: Sequence[ChunkId],
        *,
        policy: EvictionPolicy | None = None,
        quota_chunks: int | None = None,
        ttl_seconds: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.capacity: Final = len(chunk_ids)
        self._chunk_ids = chunk_ids
        self._slots: dict[ChunkId, int] | None = None  # None where both are equal
        if not (isinstance(chunk_ids, range) and chunk_ids == range(len(chunk_ids))):
            self._slots = {chunk_id: slot for slot, chunk_id in enumerate(chunk_ids)}
        self.columns = SlotColumns(self.capacity)
        self._policy = Lru() if policy is None else policy
        self._policy.attach(self.columns)
        self._tenants = None if quota_chunks is None else Tenants(self.columns, quota_chunks)
        self._ttl = ttl_seconds
        self._clock = clock
        self._tick = 0
        self._stored: dict[bytes, int] = {}
        self._pending: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * self.capacity
        self._state = bytearray(self.capacity)
        self._fillings = array("I", bytes(4 * self.capacity))
        self._tree = ChunkTree(self.capacity)
        self._checksums: ChecksumTable | None = None
        self._sums_by_id = False
        # The keys of the last lookup, as far as they are stored, and their slots; until something is removed.
        self._looked_up: tuple[Sequence[bytes], SlotRuns] = ((), SlotRuns([]))
        self._pins: Counter[int] = Counter()
        self._kept: set[bytes] = set()
        self._leaving: list[Entry] = []
        # Told of every stored chunk that is removed, whatever for.
        self.on_gone: Callable[[ChunkKey], None] | None = None
        # Places that were never used are not listed one by one.
        self._unused: Iterator[int] = iter(range(self.capacity))
        self._free: deque[int] = deque()
        self._num_free = self.capacity
        self._sweep_from = 0

    def restore(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        seconds: Sequence[int],
        marks: bytes,
        tenants: array[int],
        order: list[int],
        checksums: ChecksumTable,
    ) -> None:
        """Take over what was stored before this process: equally long columns, and the slots in order of use.

        Called at most once, while the index is empty. ``slots`` are positions in ``chunk_ids``; ``order`` has
        them once more, least recently used first; ``checksums`` is by chunk id, and is the index's from now
        on. A key that comes twice keeps its later place.
        """
        columns, now = self.columns, self._now()
        self._adopt(checksums, slots)
        stored = self._stored = dict(zip(keys, slots))
        if max(seconds, default=0) > now:
            seconds = [min(second, now) for second in seconds]
        if len(slots) == self.capacity and all(map(eq, slots, range(self.capacity))):
            self._keys[:] = keys
            columns.seconds[:] = array("I", seconds)
            columns.marks[:], columns.tenants[:] = marks, tenants
            self._state[:] = bytes((STORED,)) * self.capacity
        else:
            scatter(self._keys, slots, keys)
            scatter(columns.seconds, slots, seconds)
            scatter(columns.marks, slots, marks)
            scatter(columns.tenants, slots, tenants)
            scatter(self._state, slots, repeat(STORED))
        if len(stored) < len(keys):
            for key, slot in zip(keys, slots):
                if stored[key] != slot:
                    self._keys[slot], self._state[slot] = None, FREE
            order = [slot for slot in order if self._state[slot] == STORED]
        scatter(columns.ticks, order, range(len(order)))
        self._tick = len(keys)
        self._num_free -= len(order)
        self._unused = compress(range(self.capacity), self._state.translate(_IS_FREE))
        self._policy.restore(order)
        if self._tenants is not None:
            self._tenants.restore(order)

    def _adopt(self, checksums: ChecksumTable, slots: Sequence[int]) -> None:
        rows = range(checksums.num_slots)
        self._sums_by_id = self._slots is not None and all(
            isinstance(chunk_id, int) and chunk_id in rows for chunk_id in self._chunk_ids
        )
        self._checksums = checksums
        if self._slots is not None and not self._sums_by_id:
            self._checksums = ChecksumTable(self.capacity, checksums.ranks, checksums.part_bytes)
            for slot in slots:
                chunk_id = self._chunk_ids[slot]
                assert isinstance(chunk_id, int)
                self._checksums.set(slot, checksums.get(chunk_id))

    def slots_of(self, chunk_ids: list[int]) -> list[int]:
        """Return the positions of places; the list itself when they are equal to it."""
        plain = self._slots is None and chunk_ids and min(chunk_ids) >= 0 and max(chunk_ids) < self.capacity
        return chunk_ids if plain else [self.slot_of(chunk_id) for chunk_id in chunk_ids]

    def slot_of(self, chunk_id: ChunkId) -> int:
        """Return the position of a place in the list of places; -1 if it is not there."""
        if self._slots is not None:
            return self._slots.get(chunk_id, -1)
        return chunk_id if isinstance(chunk_id, int) and 0 <= chunk_id < self.capacity else -1

    # What is there.

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: ChunkKey) -> bool:
        """Whether the chunk is stored or about to be."""
        return key in self._stored or key in self._pending

    @property
    def free(self) -> int:
        """Number of places a store can use at once."""
        return self._num_free

    @property
    def pinned(self) -> int:
        """Number of places that loads read."""
        return len(self._pins)

    @property
    def pending(self) -> int:
        """Number of chunks whose store is under way."""
        return len(self._pending)

    @property
    def leaving(self) -> int:
        """Number of places that are neither used nor usable yet."""
        return self._state.count(LEAVING)

    def checksums(self, entry: Entry) -> tuple[bytes, ...]:
        """Return the checksums of a stored chunk, for each rank one 64-bit little-endian word a layer."""
        return () if self._checksums is None else self._checksums.get(self._row(entry.slot))

    def places_of(self, pinned: Pinned) -> Sequence[ChunkId | None]:
        """Return the places of chunks, as a column if possible; None for those that are not stored."""
        slots = pinned.slots
        if -1 in slots:
            return tuple([self._chunk_ids[slot] if slot >= 0 else None for slot in slots])
        if self._slots is None:
            return numbers(slots)
        return as_column([*map(self._chunk_ids.__getitem__, slots)])

    def checksums_of(self, pinned: Pinned) -> Sequence[tuple[bytes, ...]]:
        """Return the checksums of chunks; of those that are not stored zeros."""
        table, slots = self._checksums, pinned.slots
        if table is None or not slots:
            return ((),) * len(slots)
        rows = list(map(self._row, slots)) if self._sums_by_id else slots
        if -1 not in slots:
            joined = table.rows(SlotRuns(rows) if self._sums_by_id else pinned.runs)
        else:
            nothing = bytes(table.width)
            joined = b"".join([table.row(row) if slot >= 0 else nothing for row, slot in zip(rows, slots)])
        return SumRows(joined, table.ranks, table.part_bytes)

    def _row(self, slot: int) -> int:
        """Return where the table has a slot's checksums."""
        if not self._sums_by_id:
            return slot
        return cast("int", self._chunk_ids[slot])

    def _entry(self, slot: int) -> Entry:
        key = self._keys[slot]
        assert key is not None
        return Entry(ChunkKey(key), self._chunk_ids[slot], slot, self._fillings[slot])

    def _now(self) -> int:
        return min(max(0, int(self._clock())), MAX_SECONDS)
