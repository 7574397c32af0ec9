# SPDX-License-Identifier: Apache-2.0
"""Slots of a prompt as stretches of neighbours: facts of thousands are read and set in a few steps."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from itertools import compress, count, islice, pairwise, takewhile
from operator import ne, sub
from typing import Any, TypeVar

__all__ = ["SlotRuns", "scatter"]

Column = TypeVar("Column", bound="array[Any] | bytearray")

FEW = 8
"""Stretches are worth the trouble while there are as many slots as this for each."""


def scatter(column: Any, slots: Iterable[int], values: Iterable[object]) -> None:
    """Set a column's values at slots, without a step of the interpreter for each."""
    deque(map(column.__setitem__, slots, values), maxlen=0)


class SlotRuns:
    """Slots, in the order of their prompt. What is stored in one go mostly lies side by side.

    Attributes:
        slots: the slots; not to be changed.
    """

    __slots__ = ("_bounds", "slots")

    def __init__(self, slots: list[int]) -> None:
        self.slots = slots
        self._bounds: list[int] | None = None

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def bounds(self) -> list[int]:
        """Positions where a stretch of neighbours begins, and the number of slots; empty if too many."""
        if self._bounds is None:
            slots = self.slots
            steps = list(map(sub, islice(slots, 1, None), slots))
            breaks = len(steps) - steps.count(1)
            if not slots or breaks * FEW > len(slots):
                self._bounds = []
            elif breaks:
                self._bounds = [0, *compress(count(1), map((1).__ne__, steps)), len(slots)]
            else:
                self._bounds = [0, len(slots)]
        return self._bounds

    def first(self, number: int) -> SlotRuns:
        """Return the first so many of the slots."""
        if number >= len(self.slots):
            return self
        cut = SlotRuns(self.slots[:number])
        if self._bounds:
            cut._bounds = [*takewhile(number.__gt__, self._bounds), number]
        return cut

    def take(self, column: Column) -> Column:
        """Return a column's values at the slots, as a column of the same kind."""
        found: Any = column[:0]
        if not self.bounds:
            found.extend(map(column.__getitem__, self.slots))
        for start, stop in pairwise(self.bounds):
            slot = self.slots[start]
            found += column[slot : slot + stop - start]
        return found  # type: ignore[no-any-return]

    def set(self, column: array[Any] | bytearray, values: array[Any] | bytes | bytearray) -> None:
        """Set a column's values at the slots; of a slot that comes twice any of its values stays."""
        if not self.bounds:
            scatter(column, self.slots, values)
            return
        target: Any = column
        for start, stop in pairwise(self.bounds):
            slot = self.slots[start]
            target[slot : slot + stop - start] = values[start:stop]

    def differing(self, column: array[int]) -> list[int]:
        """Return the slots whose own number a column does not have."""
        return list(compress(self.slots, map(ne, self.take(column), self.slots)))
