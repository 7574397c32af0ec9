# SPDX-License-Identifier: Apache-2.0
"""Until when something counts, chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice, repeat

from tutti_engine.plan import ChunkKey

__all__ = ["bound", "keep", "leading_fresh"]

FIRST_LOOK = 64
"""Keys that are looked at behind the first one; then twice as many each time, so that a miss costs little."""

SPARE = 64
"""Where there are too many, one in so many goes beyond those that must."""


def leading_fresh(
    ends: dict[ChunkKey, float], keys: Sequence[ChunkKey], now: float, *, start: int = 0, stop: int
) -> tuple[int, float]:
    """Return how many keys from ``start`` on have an end that has not come, and the first of these ends.

    Takes O(that), without a Python loop. ``stop`` is the first key that is not asked about.
    """
    at, size, first_end = start, 1, math.inf
    while at < stop:
        found = list(map(ends.get, keys[at : min(at + size, stop)], repeat(-math.inf)))
        least = min(found)
        if least <= now:
            fresh = found[: next(n for n, end in enumerate(found) if end <= now)]
            return at - start + len(fresh), min([first_end, *fresh])
        first_end = min(first_end, least)
        at, size = at + size, max(FIRST_LOOK, 2 * size)
    return max(0, stop - start), first_end


def keep(verdicts: dict[ChunkKey, float], key: ChunkKey, end: float, most: int) -> None:
    """Set a verdict; those that were set first go for it where there are too many."""
    verdicts.pop(key, None)
    verdicts[key] = end
    bound(verdicts, most)


def bound(verdicts: dict[ChunkKey, float], most: int) -> None:
    """Let those that were set first go, where there are more than ``most``.

    Some at a time: looking for a dict's first key takes the longer the more were taken from before it.
    """
    if len(verdicts) > most:
        for key in list(islice(verdicts, len(verdicts) - most + most // SPARE)):
            del verdicts[key]
