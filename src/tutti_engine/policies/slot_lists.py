# SPDX-License-Identifier: Apache-2.0
"""Doubly linked lists of slot numbers in two arrays: eight bytes a slot, whatever the number of lists."""

from __future__ import annotations

from array import array
from itertools import pairwise

__all__ = ["SlotLists"]


class SlotLists:
    """Ordered lists of slots, oldest to newest; a slot is in one of them or in none.

    Args:
        num_slots: slots, from 0.
        num_lists: lists, from 0.
    """

    __slots__ = ("_num_slots", "newer", "older")

    def __init__(self, num_slots: int, num_lists: int = 1) -> None:
        # Each list is a ring through a head of its own behind the slots; who is in no list is a ring alone.
        self._num_slots = num_slots
        self.newer = array("i", range(num_slots + num_lists))
        self.older = array("i", range(num_slots + num_lists))

    def push_newest(self, which: int, slot: int) -> None:
        """Put a slot that is in no list at the new end."""
        head = self._num_slots + which
        older = self.older[head]
        self.older[slot], self.newer[slot] = older, head
        self.newer[older] = self.older[head] = slot

    def push_above(self, below: int, slot: int) -> None:
        """Put a slot that is in no list right above another, or above a list's ``head``: at its old end."""
        above = self.newer[below]
        self.older[slot], self.newer[slot] = below, above
        self.newer[below] = self.older[above] = slot

    def remove(self, slot: int) -> None:
        """Take a slot out of its list, if it is in one."""
        older, newer = self.older[slot], self.newer[slot]
        self.newer[older], self.older[newer] = newer, older
        self.older[slot] = self.newer[slot] = slot

    def holds(self, slot: int) -> bool:
        """Return whether a slot is in a list."""
        return self.newer[slot] != slot

    def head(self, which: int) -> int:
        """Return what stands for the end of a list when walking it through ``newer``."""
        return self._num_slots + which

    def oldest(self, which: int) -> int:
        """Return the oldest slot of a list; -1 if it is empty."""
        slot = self.newer[self._num_slots + which]
        return slot if slot < self._num_slots else -1

    def fill(self, which: int, slots: list[int]) -> None:
        """Make an empty list of slots that are in no list, oldest first."""
        head = self._num_slots + which
        ring = [head, *slots, head]
        newer, older = self.newer, self.older
        for below, above in pairwise(ring):
            newer[below] = above
            older[above] = below
