# SPDX-License-Identifier: Apache-2.0
"""What the index asks of a policy of eviction, and what both know of a slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from tutti_engine.catalogue.slot_runs import SlotRuns
from tutti_engine.policies.slot_lists import SlotLists

__all__ = ["NO_USE", "EvictionPolicy", "SlotColumns", "Use", "push_by_use"]

SHORT_WALK = 64
"""Steps from a list's old end within which a place by last use is looked for."""


class SlotColumns:
    """Facts of every slot, one array each.

    Attributes:
        ticks: number of the last use; uses are counted over the whole index.
        seconds: time of the last use, in whole seconds of the index's clock.
        marks: a byte of the policy's own; kept over a restart.
        tenants: tag of the tenant that the chunk was stored for, 0 for none.
    """

    __slots__ = ("marks", "num_slots", "seconds", "tenants", "ticks")

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.ticks = array("Q", bytes(8 * num_slots))
        self.seconds = array("I", bytes(4 * num_slots))
        self.marks = bytearray(num_slots)
        self.tenants = array("H", bytes(2 * num_slots))


@dataclass(frozen=True, slots=True)
class Use:
    """One prompt, as the index has taken note of it.

    Attributes:
        tenant: tag of who sent it, 0 for nobody.
        mark: the policy's byte for chunks that are this prompt's own.
        keys: all its whole chunks.
        stored: how many leading ones were stored then.
    """

    tenant: int = 0
    mark: int = 0
    keys: Sequence[bytes] = field(default=(), repr=False)
    stored: int = 0


NO_USE = Use()


class EvictionPolicy(ABC):
    """Decides which chunk has to go.

    It is told of every stored chunk, and sees as candidates only chunks without a child: a chunk is worth
    nothing once an earlier one of its prefix is gone. All calls come from one thread.
    """

    name: str

    @abstractmethod
    def attach(self, columns: SlotColumns) -> None:
        """Take the slots over; called once, when all are empty."""

    def begin(
        self, keys: Sequence[bytes], stored: Sequence[int], branches: bool, now: int
    ) -> tuple[int, int, int]:
        """Take note of a prompt and say how its chunks are to be marked.

        Args:
            keys: its whole chunks, from the first one on.
            stored: the slots of the leading ones that are stored.
            branches: whether the last of those has children that are not this prompt's.
            now: whole seconds of the index's clock.

        Returns:
            The mark of chunks that are this prompt's own, the mark of leading chunks that others use too, and
            the number of those.
        """
        return 0, 0, 0

    @abstractmethod
    def restore(self, slots: list[int]) -> None:
        """Take over what was stored before this process, least recently used first."""

    @abstractmethod
    def insert(self, slot: int, key: bytes) -> None:
        """A chunk was stored. Its columns are set."""

    @abstractmethod
    def touch(self, runs: SlotRuns) -> None:
        """Stored chunks, in the order of their prompt, were used again. Their columns are set."""

    @abstractmethod
    def cover(self, slot: int) -> None:
        """A stored chunk is no candidate from now on."""

    @abstractmethod
    def uncover(self, slot: int) -> None:
        """A stored chunk is a candidate again."""

    @abstractmethod
    def remove(self, slot: int, key: bytes, evicted: bool) -> None:
        """A stored chunk is gone, because it was a victim or for another reason."""

    @abstractmethod
    def victims(self, now: int, spared: Container[int]) -> Iterator[int]:
        """Yield candidates, the next one to go first; each is removed before the next is asked for.

        ``spared`` are slots that cannot go now.
        """

    def admits(self, mark: int, now: int, spared: Container[int]) -> bool:
        """Return whether new chunks of that mark are worth the room of those that would go."""
        return True


def push_by_use(lists: SlotLists, which: int, slot: int, ticks: array[int]) -> None:
    """Put a slot into a list ordered by use. It was last used about when the oldest ones were."""
    tick = ticks[slot]
    newer = lists.newer
    below = head = lists.head(which)
    for _ in range(SHORT_WALK):
        above = newer[below]
        if above == head or ticks[above] > tick:
            break
        below = above
    lists.push_above(below, slot)
