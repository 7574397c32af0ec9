# SPDX-License-Identifier: Apache-2.0
"""Which chunk goes on where which other one ends, by slot, in four numbers a slot."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

__all__ = ["ChunkTree"]

NONE = -1


class ChunkTree:
    """Parents and children of slots. A slot that is not linked is a root without children."""

    __slots__ = ("_after", "_before", "child", "parent")

    def __init__(self, num_slots: int) -> None:
        # -1 is all bits set, in any width.
        empty = b"\xff" * (4 * num_slots)
        self.parent = array("i", empty)
        self.child = array("i", empty)
        self._before = array("i", empty)
        self._after = array("i", empty)

    def attach(self, slot: int, parent: int) -> bool:
        """Make a root a child; return whether it is its parent's only one."""
        first = self.child[parent]
        self.parent[slot] = parent
        self.child[parent] = slot
        self._after[slot] = first
        if first != NONE:
            self._before[first] = slot
            return False
        return True

    def detach(self, slot: int) -> int:
        """Make a child a root; return its parent if that has no children left, else -1."""
        parent = self.parent[slot]
        if parent == NONE:
            return NONE
        before, after = self._before[slot], self._after[slot]
        if before != NONE:
            self._after[before] = after
        else:
            self.child[parent] = after
        if after != NONE:
            self._before[after] = before
        self.parent[slot] = self._before[slot] = self._after[slot] = NONE
        return parent if self.child[parent] == NONE else NONE

    def below(self, slot: int) -> Iterator[int]:
        """Yield everything below a slot, children first; each is detached before the next is asked for."""
        deepest = slot
        while (child := self.child[deepest]) != NONE or deepest != slot:
            if child != NONE:
                deepest = child
                continue
            above = self.parent[deepest]
            yield deepest
            deepest = above
