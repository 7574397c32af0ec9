# SPDX-License-Identifier: Apache-2.0
"""How much of a stored prefix is a hit where some layers keep only the end of it."""

from __future__ import annotations

from collections.abc import Callable

from tutti_engine.geometry import Geometry

__all__ = ["longest_hit"]


def longest_hit(
    geometry: Geometry,
    stored: int,
    has_group: Callable[[int, int], bool],
    *,
    first_chunk: int = 0,
) -> int:
    """Return how many of ``stored`` leading chunks can be loaded.

    A hit is what every group agrees on. Full attention needs every chunk up to the hit's end. A group with a
    window needs those that hold a token that the next one sees, down to ``CacheGroup.first_needed`` and not
    further: what lies before is never read.

    Args:
        geometry: the groups.
        stored: chunks that are stored, from ``first_chunk`` on, without a gap.
        has_group: whether the n-th of them was stored with the pages of the group of that number.
        first_chunk: number of the first chunk in its prompt. What lies before the server has itself, and of
            this one maybe the beginning; a longer hit needs no more of that than the server's own.
    """
    size = geometry.chunk_tokens
    partial = [number for number, group in enumerate(geometry.groups) if group.is_partial]
    hit = stored
    while hit:
        end = (first_chunk + hit) * size
        gap = -1
        for number in partial:
            needed = geometry.groups[number].first_needed(end)
            start = max(0, needed // size - first_chunk)
            # From the end: the gap that is found first rules out every end that still sees it.
            gap = max(gap, next((n for n in range(hit - 1, start - 1, -1) if not has_group(n, number)), -1))
        if gap < 0:
            return hit
        hit = gap
    return 0
