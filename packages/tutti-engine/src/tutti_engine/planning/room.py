# SPDX-License-Identifier: Apache-2.0
"""Places for new chunks: who goes for them, when, and how their places come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tutti_engine.plan import ChunkId
from tutti_engine.planning.chunk_index import ChunkIndex
from tutti_engine.planning.journal import PlannerJournal
from tutti_engine.planning.places import Places

__all__ = ["Room"]

AHEAD_CHUNKS = 32
"""Chunks that go in one piece ahead of need: some tenths of a millisecond in which nobody else plans."""


class Room:
    """Makes room in an index by evicting, and follows places until they can be used again.

    Places are kept free ahead of need, as one is reusable only once its chunk's removal is durable. Where
    somebody calls ``ahead`` this happens between two marks: once fewer places than the low number are free,
    chunks go until the high number is. Else, and in a small store, each store makes room for the next one.
    All calls but those of the journal come in turn.

    Args:
        index: what is stored where.
        journal: where removals are written down; None for nowhere.
        places: who decides which free places may be used; None allows all of them.
        count: raises a counter.
    """

    def __init__(
        self,
        index: ChunkIndex,
        journal: PlannerJournal | None,
        places: Places | None,
        count: Callable[[str, int], None],
    ) -> None:
        self._index = index
        self._journal = journal
        self._places = places
        self._count = count
        capacity = index.capacity
        # Of a small store at most a quarter.
        self._spare = 0 if journal is None else max(1, min(8, capacity // 4), capacity // 32)
        self._wanted = 0
        self._in_transit = 0
        self._evicting = False
        # A small store has no part to spare for two marks.
        self._has_marks = self._spare > 0 and self._spare + max(self._spare, capacity // 16) <= capacity // 4
        self._on_low: Callable[[], None] | None = None
        # Places of chunks that did not verify and still leave.
        self._suspects: set[ChunkId] = set()
        self._reusable: deque[ChunkId] = deque()
        # Places whose chunk did not verify, and that may be used again nevertheless.
        self._cleared: deque[ChunkId] = deque()
        if places is not None:
            index.take_free(index.free)

    def suspect(self, chunk_id: ChunkId) -> None:
        """Note that the chunk in a place did not verify, before it is dropped."""
        self._suspects.add(chunk_id)

    def settle(self, wanted: int = 0) -> None:
        """Take places that have become usable and give up those that must not be used any more."""
        # Others append meanwhile.
        back = [self._reusable.popleft() for _ in range(len(self._reusable))]
        self._in_transit -= len(back)
        back += [self._cleared.popleft() for _ in range(len(self._cleared))]
        if back:
            self._index.give_back(back)
        if self._places is None:
            return
        excess = self._places.take_excess()
        if excess > 0:
            free = self._index.take_free(excess)
            self._places.let_go(free)
            self._count("evicted_chunks", self._index.evict(excess - len(free)))
            self.retire(self._places.let_go)
        else:
            missing = wanted + self._spare - self._index.free
            if missing > 0:
                self._index.give_back(self._places.ready(missing))

    def is_full(self, wanted: int) -> bool:
        """Return whether others have to go for so many new chunks, now or soon.

        What went ahead of need leaves room, and still a new chunk has to be worth more than who goes next.
        """
        if self._missing(wanted) > 0:
            return True
        return self._is_made_ahead and self._short_of(self._high_number(), wanted) > 0

    def call_on_low(self, on_low: Callable[[], None] | None) -> None:
        """Leave it to ``ahead``, which ``on_low`` causes to be called soon; None takes it back."""
        self._on_low = on_low

    @property
    def _is_made_ahead(self) -> bool:
        return self._on_low is not None and self._has_marks

    def make(self, wanted: int) -> None:
        """Evict so that so many new chunks find room, now and, if nobody does it ahead, next time."""
        self._wanted = max(wanted, self._wanted * 7 // 8)
        missing = self._missing(wanted)
        if missing > 0:
            self._count("evicted_chunks", self._index.evict(missing))
        self.retire()
        if self._on_low is not None and self._is_made_ahead and self._short_of(self._spare, wanted) > 0:
            self._on_low()

    def ahead(self) -> bool:
        """Evict some chunks ahead of need if few places are free; return whether more have to go."""
        if not self._is_made_ahead:
            return False
        high = self._high_number()
        missing = self._short_of(high)
        self._evicting = (missing if self._evicting else self._short_of(self._spare)) > 0
        if not self._evicting:
            return False
        gone = self._index.evict(min(AHEAD_CHUNKS, missing))
        self._count("evicted_chunks", gone)
        self.retire()
        return gone > 0

    def retire(self, let_go: Callable[[Sequence[ChunkId]], None] | None = None) -> None:
        """Make removals durable before their places are used again, or let go."""
        places = [entry.chunk_id for entry in self._index.take_leaving()]
        if not places:
            return
        if self._journal is None:
            self._suspects.clear()
            (let_go or self._index.give_back)(places)
            return
        slots = [place for place in places if isinstance(place, int)]
        suspects = [slot for slot in slots if slot in self._suspects]
        if suspects:
            self._suspects.difference_update(suspects)
            # Not in transit: they may never come back.
            self._journal.remove(suspects, self._cleared.extend, suspect=True)
            slots = [slot for slot in slots if slot not in suspects]
        if not slots:
            return
        if let_go is None:
            self._in_transit += len(slots)
        self._journal.remove(slots, let_go or self._reusable.extend)

    def _high_number(self) -> int:
        """Return how many places are free when enough went ahead; larger stores than usual want more."""
        return self._spare + max(1, self._spare // 2, min(self._wanted, self._index.capacity // 16))

    def _short_of(self, number: int, wanted: int = 0) -> int:
        """Return how many places fewer than that are free, or will be before long."""
        coming = 0 if self._places is None else self._places.coming()
        return number - (self._index.free - wanted + self._in_transit + coming)

    def _missing(self, wanted: int) -> int:
        """Return how many chunks have to go so that ``wanted`` new ones find room, now and next time."""
        if self._is_made_ahead:
            return self._short_of(wanted)
        # Places that are on their way back count: as long as removals cannot be made durable nothing more has
        # to go, and what does not fit now is dropped, not made room for.
        if self._journal is None:
            missing = wanted + self._spare - self._index.free
        else:
            # What is wanted now will be wanted again: the next plan shall find room for as much.
            spare = max(self._spare, min(wanted, self._index.capacity // 4))
            missing = spare - max(0, self._index.free - wanted) - self._in_transit
        return missing if self._places is None else missing - self._places.coming()
