# SPDX-License-Identifier: Apache-2.0
"""The chunk goes whose place earns the fewest hits a second from now on.

The idea of weighing hits against the time that a place is held is that of LHD (Beckmann, Chen and Cidon, NSDI
2018); here the classes are turns of conversations and shared prefixes, and rates are learned from prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat

from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.policies.ages import bucket_of
from tutti_engine.policies.eviction import EvictionPolicy, SlotColumns, push_by_use
from tutti_engine.policies.reuse import NUM_MARKS, ReuseHistory, own_mark, shared_mark, turn_of
from tutti_engine.policies.slot_lists import SlotLists

__all__ = ["HitDensity"]

RESTORED = NUM_MARKS
"""List of what was stored before this process: its parents are unknown, so it goes in order of use alone."""

RESTORED_MARK = own_mark(1, 8)


class HitDensity(EvictionPolicy):
    """Keeps for each class of chunks those used last, and takes from the class whose oldest is worth least.

    Of new chunks that are worth less than all of those it says so, which saves the write. Before enough was
    seen it does as ``lru`` does, and as long as ``lru`` would have hit more.
    """

    name = "hit_density"

    def attach(self, columns: SlotColumns) -> None:
        self._columns = columns
        self._lists = SlotLists(columns.num_slots, NUM_MARKS + 1)
        self._restored = bytearray(0)
        self._history = ReuseHistory(columns.num_slots // 4, columns.num_slots)
        # Lists that got a chunk at their old end while victims are looked for.
        self._changed: set[int] = set()

    def begin(
        self, keys: Sequence[bytes], stored: Sequence[int], branches: bool, now: int
    ) -> tuple[int, int, int]:
        history = self._history
        known = history.known(keys)
        match = history.find(keys, known)
        turn, shared, uses = match.turn, match.shared, match.uses
        if not match.depth and len(stored) > shared:
            if branches:
                # It leaves the way of an earlier prompt: a conversation of its own, from a common start.
                shared, uses = len(stored), 0
            else:
                turn = turn_of(self._columns.marks[stored[-1]])
        mark = own_mark(turn + 1, len(keys))
        common = shared_mark(uses + 1)
        history.note(keys, mark, common, shared, now, known)
        return mark, common, shared

    def restore(self, slots: list[int]) -> None:
        self._restored = bytearray(self._columns.num_slots)
        restored = self._restored
        deque(map(restored.__setitem__, slots, repeat(1)), maxlen=0)
        self._lists.fill(RESTORED, slots)

    def insert(self, slot: int, key: bytes) -> None:
        self._lists.push_newest(self._columns.marks[slot], slot)

    def touch(self, runs: SlotRuns) -> None:
        if self._restored:
            runs.set(self._restored, bytes(len(runs)))
        for slot in reversed(runs.differing(self._lists.newer)):
            if self._lists.holds(slot):
                self._lists.remove(slot)
                self._lists.push_newest(self._columns.marks[slot], slot)

    def cover(self, slot: int) -> None:
        self._lists.remove(slot)

    def uncover(self, slot: int) -> None:
        which = self._list_of(slot)
        push_by_use(self._lists, which, slot, self._columns.ticks)
        self._changed.add(which)

    def remove(self, slot: int, key: bytes, evicted: bool) -> None:
        self._lists.remove(slot)
        if self._restored:
            self._restored[slot] = 0

    def victims(self, now: int, spared: Container[int]) -> Iterator[int]:
        heap = []
        for which in range(NUM_MARKS + 1):
            slot = self._oldest(which, spared)
            if slot >= 0:
                heap.append((*self._worth(which, slot, now), slot))
        heapify(heap)
        self._changed.clear()
        while heap:
            _, _, which, slot = heappop(heap)
            if slot != self._oldest(which, spared):
                continue
            yield slot
            self._changed.add(which)
            for each in self._changed:
                slot = self._oldest(each, spared)
                if slot >= 0:
                    heappush(heap, (*self._worth(each, slot, now), slot))
            self._changed.clear()

    def admits(self, mark: int, now: int, spared: Container[int]) -> bool:
        table = self._table
        if table is None:
            return True
        mine = table[mark][0]
        for which in range(NUM_MARKS + 1):
            slot = self._oldest(which, spared)
            if slot >= 0 and self._worth(which, slot, now)[0] <= mine:
                return True
        return False

    @property
    def _table(self) -> list[list[float]] | None:
        """What places are worth; None where the order of use is the better guess."""
        return None if self._history.duel.last_use_wins else self._history.table

    def _list_of(self, slot: int) -> int:
        return RESTORED if self._restored and self._restored[slot] else self._columns.marks[slot]

    def _oldest(self, which: int, spared: Container[int]) -> int:
        lists = self._lists
        slot = lists.oldest(which)
        if slot < 0 or slot not in spared:
            return slot
        head = lists.head(which)
        while slot != head and slot in spared:
            slot = lists.newer[slot]
        return -1 if slot == head else slot

    def _worth(self, which: int, slot: int, now: int) -> tuple[float, int, int]:
        """Return a slot's density; of equal ones the longest unused comes first; and its list."""
        columns = self._columns
        table = self._table
        mark = RESTORED_MARK if which == RESTORED else which
        density = 0.0 if table is None else table[mark][bucket_of(now - columns.seconds[slot])]
        return density, columns.ticks[slot], which
