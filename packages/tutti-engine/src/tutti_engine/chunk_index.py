# SPDX-License-Identifier: Apache-2.0
"""Which chunk lies where: residents in order of use, places that are free, places that are being emptied."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tutti_engine.plan import ChunkId, ChunkKey

__all__ = ["ChunkIndex", "Entry"]


@dataclass(slots=True, eq=False)
class Entry:
    """One chunk that has a place.

    Attributes:
        key: identity of the chunk.
        chunk_id: its place.
        checksums: for each rank one 64-bit little-endian word a layer; empty until the chunk is stored.
        pins: loads that are reading it; a pinned chunk keeps its place.
        resident: whether the index still answers for it.
    """

    key: ChunkKey
    chunk_id: ChunkId
    checksums: tuple[bytes, ...] = ()
    pins: int = 0
    resident: bool = True


class ChunkIndex:
    """Maps keys to places and decides which chunk has to go, least recently used first.

    A place is always in exactly one state: free, pending (a store is under way), stored, or leaving (removed
    but not yet reusable, see ``take_leaving``). Not thread-safe; the planner is its only user.
    """

    def __init__(self, chunk_ids: Sequence[ChunkId], residents: Iterable[Entry] = ()) -> None:
        self.capacity: Final = len(chunk_ids)
        self._stored: OrderedDict[ChunkKey, Entry] = OrderedDict((e.key, e) for e in residents)
        self._pending: dict[ChunkKey, Entry] = {}
        self._leaving: list[Entry] = []
        taken = {entry.chunk_id for entry in self._stored.values()}
        self._free: deque[ChunkId] = deque(c for c in chunk_ids if c not in taken)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: ChunkKey) -> bool:
        """Whether the chunk is stored or about to be."""
        return key in self._stored or key in self._pending

    @property
    def free(self) -> int:
        """Number of places a store can use at once."""
        return len(self._free)

    def lookup_prefix(self, keys: Iterable[ChunkKey]) -> int:
        """Return how many leading keys are stored. A pending store is not a hit."""
        hits = 0
        for key in keys:
            if key not in self._stored:
                break
            hits += 1
        return hits

    def get(self, key: ChunkKey) -> Entry | None:
        """Return the stored chunk of that key."""
        return self._stored.get(key)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Mark a prefix as just used, its first chunk as the very last to go.

        A chunk is worthless once an earlier one of its prefix is gone, so tails have to leave first.
        """
        for key in reversed(keys):
            if key in self._stored:
                self._stored.move_to_end(key)

    def reserve(self, key: ChunkKey) -> Entry | None:
        """Give a new chunk a place; None if no place is free or the key has one already."""
        if key in self or not self._free:
            return None
        entry = Entry(key, self._free.popleft())
        self._pending[key] = entry
        return entry

    def commit(self, entry: Entry, checksums: tuple[bytes, ...]) -> bool:
        """Turn a pending chunk into a hit; False if it was forgotten in the meantime."""
        if self._pending.get(entry.key) is not entry:
            return False
        del self._pending[entry.key]
        entry.checksums = checksums
        self._stored[entry.key] = entry
        return True

    def abort(self, entry: Entry, *, reusable: bool) -> None:
        """Forget a pending chunk. Its place is free again unless something may still write to it."""
        if self._pending.get(entry.key) is entry:
            del self._pending[entry.key]
        entry.resident = False
        if reusable:
            self._free.append(entry.chunk_id)

    def drop(self, entry: Entry) -> None:
        """Forget a stored chunk. Its place leaves as soon as nobody reads it."""
        if self._stored.get(entry.key) is entry:
            del self._stored[entry.key]
            entry.resident = False
            self._leave_if_unread(entry)

    def pin(self, entry: Entry) -> None:
        """Keep a chunk's place while a load reads it."""
        entry.pins += 1

    def unpin(self, entry: Entry) -> None:
        """End one load's hold."""
        entry.pins -= 1
        if not entry.resident:
            self._leave_if_unread(entry)

    def evict(self, count: int) -> int:
        """Drop up to ``count`` of the least recently used chunks that nobody reads; return how many."""
        victims: list[Entry] = []
        for entry in self._stored.values():
            if len(victims) == count:
                break
            if not entry.pins:
                victims.append(entry)
        for entry in victims:
            self.drop(entry)
        return len(victims)

    def clear(self) -> None:
        """Forget every chunk. Pending stores end as failures; places being read leave later."""
        for entry in list(self._stored.values()):
            self.drop(entry)
        for entry in self._pending.values():
            entry.resident = False
        self._pending.clear()

    def take_leaving(self) -> list[Entry]:
        """Return the chunks removed since the last call; each place comes back through ``give_back``."""
        leaving, self._leaving = self._leaving, []
        return leaving

    def take_free(self, count: int) -> list[ChunkId]:
        """Take up to ``count`` free places out of use; ``give_back`` brings them in again."""
        return [self._free.pop() for _ in range(min(count, len(self._free)))]

    def give_back(self, chunk_ids: Iterable[ChunkId]) -> None:
        """Make places reusable, after the removal of their chunks has become durable."""
        self._free.extend(chunk_ids)

    def _leave_if_unread(self, entry: Entry) -> None:
        if not entry.pins:
            self._leaving.append(entry)
