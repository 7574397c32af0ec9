# SPDX-License-Identifier: Apache-2.0
"""What is known of the prompts of late, run by run: a prompt of thousands of chunks costs a few comparisons.

A key stands for the whole prefix up to its chunk's end. So two prompts that have a chunk in common have all
before it in common as well, and where they part is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tutti_engine.plan import ChunkKey

__all__ = ["PromptTree", "Run", "shared_length", "take_apart"]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring chunks of a prompt of which the same is known.

    Attributes:
        end: number of the first chunk behind them.
        prompts: how many prompts had them, but for a bound on what is counted.
        held_until: what ``PromptTree.hold`` was told last of all of them; 0.0 for nothing.
    """

    end: int
    prompts: int
    held_until: float


@dataclass(slots=True)
class _Node:
    keys: list[ChunkKey]
    prompts: int
    held_until: float
    below: dict[ChunkKey, _Node] = field(default_factory=dict)

    def split(self, at: int) -> None:
        """Give what is from ``at`` on to a node of its own below this one."""
        tail = _Node(self.keys[at:], self.prompts, self.held_until, self.below)
        del self.keys[at:]
        self.below = {tail.keys[0]: tail}

    def join(self, now: float) -> bool:
        """Take the only node below, if the same is known of it; return whether that was so."""
        if len(self.below) != 1:
            return False
        (tail,) = self.below.values()
        held = self.held_until, tail.held_until
        if tail.prompts != self.prompts or (held[0] != held[1] and max(held) > now):
            return False
        self.keys += tail.keys
        self.below = tail.below
        return True


class PromptTree:
    """Counts prompts by the chunks that they had, those of late.

    Not thread-safe. All sequences of keys are chained and begin with a prompt's first chunk.

    Args:
        most: prompts beyond so many are not counted.
        max_chunks: chunks that are remembered, at least those of the last prompts that have so many together;
            of twice as many at most, and one prompt.
        let_go: is given what is forgotten, for ``take_apart``: it has tens of thousands of keys.
    """

    def __init__(
        self, most: int, max_chunks: int, let_go: Callable[[dict[ChunkKey, Any]], None] = lambda _: None
    ) -> None:
        self._let_go = let_go
        self._most = most
        self._max_chunks = max_chunks
        self._now: dict[ChunkKey, _Node] = {}
        self._before: dict[ChunkKey, _Node] = {}
        self._chunks = 0

    def note(self, keys: Sequence[ChunkKey], now: float = 0.0) -> None:
        """Count a prompt; times of ``hold`` up to ``now`` are over."""
        at, level, above = 0, self._now, None
        while at < len(keys):
            node = level.get(keys[at])
            if node is None:
                level[keys[at]] = _Node(keys[at:] if isinstance(keys, list) else [*keys[at:]], 1, 0.0)
                self._chunks += len(keys) - at
                break
            same = shared_length(node.keys, keys, at)
            if same < len(node.keys):
                node.split(same)
            node.prompts = min(node.prompts + 1, self._most)
            if above is not None and above.join(now):
                node = above
            at, level, above = at + same, node.below, node
        if self._chunks > self._max_chunks:
            self._let_go(self._before)
            self._now, self._before, self._chunks = {}, self._now, 0

    def hold(self, keys: Sequence[ChunkKey], start: int, until: float) -> None:
        """Take note of a time that counts for all chunks from ``start`` on, as far as they are remembered."""
        for heads in (self._now, self._before):
            at, level = 0, heads
            while at < len(keys) and (node := level.get(keys[at])) is not None:
                same = shared_length(node.keys, keys, at)
                if same < len(node.keys):
                    node.split(same)
                if at < start < at + same:
                    node.split(start - at)
                    same = start - at
                if at >= start:
                    node.held_until = until
                at, level = at + same, node.below

    def runs(self, keys: Sequence[ChunkKey]) -> list[Run]:
        """Return what is known of a prompt's leading chunks."""
        now, before = _path(self._now, keys), _path(self._before, keys)
        if not before or not now:
            return now or before
        found, places = [], [0, 0]
        for end in sorted({run.end for run in (*now, *before)}):
            prompts, held_until = 0, 0.0
            for number, path in enumerate((now, before)):
                if places[number] < len(path):
                    run = path[places[number]]
                    prompts, held_until = prompts + run.prompts, max(held_until, run.held_until)
                    places[number] += run.end == end
            found.append(Run(end, min(prompts, self._most), held_until))
        return found


def shared_length(known: Sequence[ChunkKey], keys: Sequence[ChunkKey], at: int = 0) -> int:
    """Return how many leading chunks ``known`` has in common with ``keys`` from ``at`` on."""
    high = min(len(known), len(keys) - at)
    if high <= 0 or known[high - 1] == keys[at + high - 1]:
        return max(0, high)
    low, high = 0, high - 1
    while low < high:
        middle = (low + high) // 2
        if known[middle] == keys[at + middle]:
            low = middle + 1
        else:
            high = middle
    return low


def take_apart(forgotten: dict[ChunkKey, Any]) -> None:
    """Empty what a tree gave away, node by node.

    Prompts that begin alike hang on one node, and what ends at once keeps all other threads waiting.
    """
    levels = [forgotten]
    while levels:
        if not levels[-1]:
            levels.pop()
            continue
        _, node = levels[-1].popitem()
        below = getattr(node, "below", None)
        if below:
            levels.append(below)


def _path(level: dict[ChunkKey, _Node], keys: Sequence[ChunkKey]) -> list[Run]:
    found, at = [], 0
    while at < len(keys) and (node := level.get(keys[at])) is not None:
        same = shared_length(node.keys, keys, at)
        at += same
        found.append(Run(at, node.prompts, node.held_until))
        if same < len(node.keys):
            break
        level = node.below
    return found
