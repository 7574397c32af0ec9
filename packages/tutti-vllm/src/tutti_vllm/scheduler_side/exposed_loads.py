# SPDX-License-Identifier: Apache-2.0
"""Blocks that vLLM shows to other requests before their load has ended.

A step that waits for its loads has their blocks in vLLM's prefix cache from the moment it is planned, and
those that it computes itself. If a load fails, vLLM (policy ``recompute``) leaves all of them there, for the
request to compute again; but a request that is aborted or preempted before never does, and whoever finds the
blocks then goes on from rubbish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

__all__ = ["ExposedLoads"]


class _Hashed(Protocol):
    """A request's chained block hashes."""

    block_hashes: Sequence[bytes]


class ExposedLoads:
    """The loads of the step that is being planned or runs.

    Others wait for the step's end before they share its blocks; what a failed load has spoilt is taken out of
    vLLM's prefix cache.
    """

    def __init__(self, hash_tokens: int) -> None:
        """Make it; a block hash stands for ``hash_tokens`` tokens."""
        self._hash_tokens = hash_tokens
        self._evict: Callable[[set[int]], None] | None = None
        # The first hash of each load, and where it stands.
        self._starts: set[tuple[int, bytes]] = set()
        self._tables: list[tuple[int, ...]] = []
        self._planned = False

    def bind(self, evict: Callable[[set[int]], None]) -> None:
        """Take the way to remove blocks from vLLM's prefix cache."""
        self._evict = evict

    def begin(self, request: _Hashed, local_tokens: int, block_ids: Sequence[int]) -> None:
        """Take note of a load that the step will wait for.

        Args:
            request: whose load it is.
            local_tokens: tokens that vLLM holds itself; the load begins after them.
            block_ids: the request's whole block table, with the blocks that the step computes.
        """
        if self._planned:
            self._planned = False
            self._tables = []
        index = local_tokens // self._hash_tokens
        self._starts.add((index, request.block_hashes[index]))
        self._tables.append(tuple(block_ids))

    def shared_by(self, request: _Hashed, local_tokens: int) -> bool:
        """Return whether a request's local hit reaches into a load of the step that is being planned."""
        hashes, count = request.block_hashes, local_tokens // self._hash_tokens
        return any(index < count and hashes[index] == start for index, start in self._starts)

    def end_planning(self) -> None:
        """Take note that the step is planned: its outcome is known before the next one is."""
        self._starts.clear()
        self._planned = True

    def end_step(self, invalid_block_ids: Collection[int]) -> None:
        """Remove what the step has spoilt from vLLM's prefix cache: blocks from the first bad one on."""
        tables, self._tables = self._tables, []
        if not invalid_block_ids or self._evict is None:
            return
        spoilt: set[int] = set()
        for table in tables:
            first = next((n for n, block in enumerate(table) if block in invalid_block_ids), len(table))
            spoilt.update(table[first:])
        if spoilt:
            self._evict(spoilt)
