# SPDX-License-Identifier: Apache-2.0
"""A trace many times over: the same kind of users, more of them."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tutti_engine.simulator.trace import Request

__all__ = ["COMMON_SHARE", "common_blocks", "copies_of"]

COMMON_SHARE = 0.01
"""A block that more of the requests have than this belongs to everybody, such as a system prompt."""

MOST_DELAY_SECONDS = 60.0


def common_blocks(requests: Sequence[Request], share: float = COMMON_SHARE) -> frozenset[int]:
    """Return the blocks that more than ``share`` of the requests have."""
    counts = Counter(block for request in requests for block in request.blocks)
    return frozenset(block for block, count in counts.items() if count > share * len(requests))


def copies_of(requests: Sequence[Request], copies: int, *, seed: int = 1) -> Iterator[Request]:
    """Yield ``copies`` times the requests of a trace, in order of time.

    Each copy stands for other users: its blocks are its own, but for those that belong to everybody
    (``common_blocks``), and it starts up to a minute late.
    """
    if copies < 1:
        raise ValueError(f"copies must be at least 1, not {copies}")
    common = common_blocks(requests)
    late = random.Random(seed)
    delays = [0.0, *(late.uniform(0.0, MOST_DELAY_SECONDS) for _ in range(copies - 1))]
    streams = (_copy(requests, number, delay, copies, common) for number, delay in enumerate(delays))
    return heapq.merge(*streams, key=lambda request: request.seconds)


def _copy(
    requests: Sequence[Request], number: int, delay: float, copies: int, common: frozenset[int]
) -> Iterator[Request]:
    for request in requests:
        # Number 0 keeps what belongs to everybody apart from all other ids.
        blocks = tuple(
            block * (copies + 1) + (0 if block in common else number + 1) for block in request.blocks
        )
        yield replace(request, seconds=request.seconds + delay, blocks=blocks)
