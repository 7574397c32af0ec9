# SPDX-License-Identifier: Apache-2.0
"""S3-FIFO: a small queue on probation, a main queue, a memory of what left the small one.

After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023); the shares are theirs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator

from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.policies.eviction import EvictionPolicy, SlotColumns, push_by_use
from tutti_engine.policies.slot_lists import SlotLists

__all__ = ["S3Fifo"]

SMALL, MAIN = 0, 1

SMALL_SHARE = 10
"""The small queue is kept at one part in so many."""

MAX_USES = 3

ONE_MORE = bytes(min(uses + 1, MAX_USES) for uses in range(256))


class S3Fifo(EvictionPolicy):
    """Chunks that are used once leave soon; those used again move to the main queue.

    Deviation from the paper: only chunks without a child queue; one that loses its last child comes back at
    the old end, as it was stored before the child.
    """

    name = "s3fifo"

    def attach(self, columns: SlotColumns) -> None:
        self._ticks = columns.ticks
        self._uses = bytearray(columns.num_slots)
        self._lists = SlotLists(columns.num_slots, 2)
        self._in_main = bytearray(columns.num_slots)
        self._num_small = 0
        self._small_target = max(1, columns.num_slots // SMALL_SHARE)
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._max_ghosts = columns.num_slots

    def restore(self, slots: list[int]) -> None:
        for slot in slots:
            self._in_main[slot] = 1
        self._lists.fill(MAIN, slots)

    def insert(self, slot: int, key: bytes) -> None:
        self._uses[slot] = 0
        # Who was thrown out of the small queue too early goes to the main one at once.
        which = MAIN if key in self._ghosts else SMALL
        if which == MAIN:
            del self._ghosts[key]
        else:
            self._num_small += 1
        self._in_main[slot] = which
        self._lists.push_newest(which, slot)

    def touch(self, runs: SlotRuns) -> None:
        runs.set(self._uses, runs.take(self._uses).translate(ONE_MORE))

    def cover(self, slot: int) -> None:
        self._lists.remove(slot)

    def uncover(self, slot: int) -> None:
        push_by_use(self._lists, self._in_main[slot], slot, self._ticks)

    def remove(self, slot: int, key: bytes, evicted: bool) -> None:
        self._lists.remove(slot)
        if not self._in_main[slot]:
            self._num_small -= 1
            if evicted:
                self._ghosts[key] = None
                if len(self._ghosts) > self._max_ghosts:
                    self._ghosts.popitem(last=False)

    def victims(self, now: int, spared: Container[int]) -> Iterator[int]:
        stuck = {SMALL: False, MAIN: False}
        while not all(stuck.values()):
            which = SMALL if self._num_small > self._small_target else MAIN
            if stuck[which]:
                which = 1 - which
            slot = self._next(which, spared)
            if slot < 0:
                stuck[which] = True
            else:
                yield slot

    def _next(self, which: int, spared: Container[int]) -> int:
        """Return the next of one queue to go; those that were used again are moved on instead."""
        lists, uses = self._lists, self._uses
        below = head = lists.head(which)
        while (slot := lists.newer[below]) != head:
            if slot in spared:
                below = slot
            elif not uses[slot]:
                return slot
            elif which == SMALL:
                self._promote(slot)
            else:
                uses[slot] -= 1
                lists.remove(slot)
                lists.push_newest(MAIN, slot)
        return -1

    def _promote(self, slot: int) -> None:
        if not self._in_main[slot]:
            self._in_main[slot] = 1
            self._uses[slot] = 0
            self._num_small -= 1
        if self._lists.holds(slot):
            self._lists.remove(slot)
            self._lists.push_newest(MAIN, slot)
