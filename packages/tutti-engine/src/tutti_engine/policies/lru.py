# SPDX-License-Identifier: Apache-2.0
"""Least recently used goes first."""

from __future__ import annotations

from collections.abc import Container, Iterator

from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.policies.eviction import EvictionPolicy, SlotColumns, push_by_use
from tutti_engine.policies.slot_lists import SlotLists

__all__ = ["Lru"]


class Lru(EvictionPolicy):
    """Of the chunks without a child the one whose last use is longest ago."""

    name = "lru"

    def attach(self, columns: SlotColumns) -> None:
        self._ticks = columns.ticks
        self._lists = SlotLists(columns.num_slots)

    def restore(self, slots: list[int]) -> None:
        self._lists.fill(0, slots)

    def insert(self, slot: int, key: bytes) -> None:
        self._lists.push_newest(0, slot)

    def touch(self, runs: SlotRuns) -> None:
        for slot in reversed(runs.differing(self._lists.newer)):
            if self._lists.holds(slot):
                self._lists.remove(slot)
                self._lists.push_newest(0, slot)

    def cover(self, slot: int) -> None:
        self._lists.remove(slot)

    def uncover(self, slot: int) -> None:
        push_by_use(self._lists, 0, slot, self._ticks)

    def remove(self, slot: int, key: bytes, evicted: bool) -> None:
        self._lists.remove(slot)

    def victims(self, now: int, spared: Container[int]) -> Iterator[int]:
        lists, head = self._lists, self._lists.head(0)
        below = head
        while (slot := lists.newer[below]) != head:
            if slot in spared:
                below = slot
            else:
                yield slot
