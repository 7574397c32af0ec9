# SPDX-License-Identifier: Apache-2.0
"""How much of the store each tenant holds, and what of it goes first when that is too much."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Container, Iterator

from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.policies.eviction import SlotColumns, push_by_use
from tutti_engine.policies.slot_lists import SlotLists

__all__ = ["NUM_TAGS", "Tenants", "tenant_tag"]

NUM_TAGS = 1 << 16


def tenant_tag(tenant: str | None) -> int:
    """Return the number that stands for a tenant in two bytes; 0 for None.

    Tags are digests, so that a restart finds the same ones without a list of names. Two tenants that have the
    same (one pair in 65,535) share their quota, nothing else.
    """
    if tenant is None:
        return 0
    digest = hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % (NUM_TAGS - 1) + 1


class Tenants:
    """Counts chunks by tenant and keeps each tenant's candidates in order of use.

    Args:
        columns: the index's facts.
        quota_chunks: most chunks of one tenant; chunks without a tenant are not limited.
    """

    def __init__(self, columns: SlotColumns, quota_chunks: int) -> None:
        self._columns = columns
        self.quota_chunks = quota_chunks
        self.held = array("i", bytes(4 * NUM_TAGS))
        self._lists = SlotLists(columns.num_slots, NUM_TAGS)

    def restore(self, slots: list[int]) -> None:
        """Take over what was stored before, least recently used first."""
        for slot in slots:
            self.hold(slot)
            self.insert(slot)

    def hold(self, slot: int) -> None:
        """Count a chunk that got a place."""
        self.held[self._columns.tenants[slot]] += 1

    def release(self, slot: int) -> None:
        """Count a chunk less, and forget it."""
        self.held[self._columns.tenants[slot]] -= 1
        self._lists.remove(slot)

    def insert(self, slot: int) -> None:
        """A chunk was stored, or used again: it is the tenant's newest candidate."""
        if tag := self._columns.tenants[slot]:
            self._lists.remove(slot)
            self._lists.push_newest(tag, slot)

    def touch(self, runs: SlotRuns) -> None:
        """Chunks, in the order of their prompt, were used again, candidates or not."""
        for slot in reversed(runs.differing(self._lists.newer)):
            self.insert(slot)

    def cover(self, slot: int) -> None:
        """A chunk is no candidate any more."""
        self._lists.remove(slot)

    def uncover(self, slot: int) -> None:
        """A chunk is a candidate again."""
        if tag := self._columns.tenants[slot]:
            push_by_use(self._lists, tag, slot, self._columns.ticks)

    def excess(self, tag: int, wanted: int) -> int:
        """Return how many chunks a tenant has too many to get ``wanted`` more."""
        return self.held[tag] + wanted - self.quota_chunks if tag else 0

    def victims(self, tag: int, spared: Container[int]) -> Iterator[int]:
        """Yield a tenant's candidates, least recently used first; each is removed before the next."""
        lists = self._lists
        below = head = lists.head(tag)
        while (slot := lists.newer[below]) != head:
            if slot in spared:
                below = slot
            else:
                yield slot
