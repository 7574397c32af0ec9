# SPDX-License-Identifier: Apache-2.0
"""Two orders of eviction played beside each other on what is known of prompts: who would hit more wins.

An estimate that is off can cost more than it brings. Whether it does is not decided by another estimate but
by counting: after Qureshi et al., "Adaptive insertion policies" (ISCA 2007), who let sets of a cache duel.
Here both sides see every prompt, as conversations of so many chunks that stay or go as a whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Duel"]

Worth = Callable[[int, int], float]
"""What the end of a prompt is worth, by its mark and the second of its last use."""


class Side:
    """One store of conversations, of which those worth least leave first, of equal ones the older.

    Args:
        capacity: chunks that fit.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        # By class, in order of use: number of a prompt's end, its chunks and when it was used.
        self._classes: dict[int, OrderedDict[int, tuple[int, int]]] = {}
        self._class_of: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        """Whether an end is still there."""
        return number in self._class_of

    def drop(self, number: int) -> None:
        """Forget an end."""
        which = self._class_of.pop(number, None)
        if which is not None:
            self._used -= self._classes[which].pop(number)[0]

    def put(self, number: int, which: int, chunks: int, now: int, worth: Worth | None) -> None:
        """Store an end and let others go for it."""
        self._classes.setdefault(which, OrderedDict())[number] = (chunks, now)
        self._class_of[number] = which
        self._used += chunks
        while self._used > self._capacity:
            self.drop(self._least(worth))

    def _least(self, worth: Worth | None) -> int:
        oldest = [(which, next(iter(ends.items()))) for which, ends in self._classes.items() if ends]
        if worth is None:
            return min(number for _, (number, _) in oldest)
        return min((worth(which, seconds), number) for which, (number, (_, seconds)) in oldest)[1]


class Duel:
    """Counts what an order by worth and one by last use alone would have hit.

    The winner changes when the other one is ahead by more than its standard error, which is what the sum of
    as many wins and losses of these sizes comes to by chance.

    Args:
        capacity: chunks that the store holds.

    Attributes:
        last_use_wins: whether the order by last use alone would have hit more of late.
    """

    def __init__(self, capacity: int) -> None:
        self._by_worth, self._by_use = Side(capacity), Side(capacity)
        # By how many chunks the order by worth is ahead, and the square of how much of that chance would do.
        self._lead = self._variance = 0.0
        self.last_use_wins = False

    def use(self, number: int, chunks: int) -> None:
        """A prompt goes on from an end, of which it uses so many chunks."""
        lead = chunks * ((number in self._by_worth) - (number in self._by_use))
        if not lead:
            return
        self._lead += lead
        self._variance += lead * lead
        if self._lead * self._lead > self._variance:
            self.last_use_wins = self._lead < 0

    def drop(self, number: int) -> None:
        """An end is one no more."""
        for side in (self._by_worth, self._by_use):
            side.drop(number)

    def put(self, number: int, mark: int, chunks: int, now: int, worth: Worth | None) -> None:
        """A prompt ended. ``number`` grows from one end to the next."""
        self._by_worth.put(number, mark, chunks, now, worth)
        self._by_use.put(number, 0, chunks, now, None)

    def fade(self) -> None:
        """Let what was long ago count half."""
        self._lead *= 0.5
        self._variance *= 0.25
