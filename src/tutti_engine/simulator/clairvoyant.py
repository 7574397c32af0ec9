# SPDX-License-Identifier: Apache-2.0
"""What a store would hit whose policy knew the future: a bound to compare with, nothing to build."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tutti_engine.simulator.trace import Request

__all__ = ["clairvoyant_hits"]

NEVER = 1 << 60


def clairvoyant_hits(
    requests: Sequence[Request], capacity_chunks: int, *, whole_only: int | None = None
) -> int:
    """Return how many blocks are hit when whoever is used again last of all goes first (Belady).

    Of a prompt's chunks, which are used again together, the deeper one goes first. Nothing is lost to places
    that are on their way back, and a chunk that is not used again takes no place.

    Args:
        requests: the trace, in order of time.
        capacity_chunks: places of the store.
        whole_only: tokens of a block, if a block that is not full is not stored; None stores all.
    """
    paths = [
        request.blocks if whole_only is None else request.blocks[: request.prompt_tokens // whole_only]
        for request in requests
    ]
    following = next_uses(paths)
    stored: dict[int, int] = {}
    furthest: list[tuple[int, int, int]] = []
    hits = 0
    for path, nexts in zip(paths, following):
        for block in path:
            if block not in stored:
                break
            hits += 1
        for depth, (block, use) in enumerate(zip(path, nexts)):
            stored[block] = use
            heapq.heappush(furthest, (-use, -depth, block))
        while len(stored) > capacity_chunks or (furthest and furthest[0][0] == -NEVER):
            use, _, block = heapq.heappop(furthest)
            if stored.get(block) == -use:
                del stored[block]
    return hits


def next_uses(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each block of each prompt the number of the next prompt that has it."""
    upcoming: dict[int, int] = {}
    following: list[list[int]] = []
    for number in range(len(paths) - 1, -1, -1):
        following.append([upcoming.get(block, NEVER) for block in paths[number]])
        upcoming.update(dict.fromkeys(paths[number], number))
    following.reverse()
    return following
