# SPDX-License-Identifier: Apache-2.0
"""From a request's block tables to the blocks of single chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tutti_engine import SKIP_BLOCK, Geometry

__all__ = ["NULL_BLOCK", "BlockTables", "LoadTable", "stored_blocks"]

BlockTables: TypeAlias = Sequence[Sequence[int]]
"""For each KV cache group the ids of a request's blocks, in token order."""

NULL_BLOCK = 0
"""vLLM's placeholder for a block whose KV is not kept. It is no group's and must never be written."""


def stored_blocks(
    geometry: Geometry, block_ids: BlockTables, chunk: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return the blocks that hold a chunk, for each group; None if the chunk cannot be stored.

    A group that keeps the end of a prefix only may have given its blocks up: it has none then.
    """
    found: list[tuple[int, ...]] = []
    for number, group in enumerate(geometry.groups):
        count = geometry.blocks_of(number)
        blocks = tuple(block_ids[number][chunk * count : (chunk + 1) * count])
        if len(blocks) == count and NULL_BLOCK not in blocks:
            found.append(blocks)
        elif group.is_partial:
            found.append(())
        else:
            return None
    return tuple(found) if any(found) else None


class LoadTable:
    """Which blocks a load has to fill.

    Blocks below ``held`` are the server's own, maybe shared with other requests. Of a group with a window
    vLLM gives blocks only for what the next token sees.
    """

    def __init__(self, geometry: Geometry, block_ids: BlockTables, held: int, end: int) -> None:
        """Take tables, and the tokens from ``held`` to ``end`` that were promised."""
        self._geometry = geometry
        self._block_ids = block_ids
        self._held = held
        self._end = end
        size = geometry.chunk_tokens
        self.chunks = range(held // size, -(-end // size))
        # For each group its table, a chunk's blocks in it, and the first block to fill and the first beyond.
        self._columns = [
            (
                block_ids[number],
                geometry.blocks_of(number),
                held // group.block_tokens,
                end // group.block_tokens,
            )
            for number, group in enumerate(geometry.groups)
        ]

    def blocks(self, chunk: int) -> tuple[tuple[int, ...], ...]:
        """Return a chunk's blocks for each group, those left alone as ``SKIP_BLOCK``; none if that is all.

        Raises ValueError for a full-attention group without a block for a promised token.
        """
        if len(self._columns) == 1:
            return (self._group_blocks(chunk, 0),)
        return tuple(self._group_blocks(chunk, number) for number in range(len(self._columns)))

    def promised(self) -> tuple[int, ...]:
        """Return all blocks that are to be filled."""
        found: list[int] = []
        for number, group in enumerate(self._geometry.groups):
            table = self._block_ids[number]
            wanted = table[self._held // group.block_tokens : self._end // group.block_tokens]
            found += [block for block in wanted if block != NULL_BLOCK]
        return tuple(found)

    def _group_blocks(self, chunk: int, number: int) -> tuple[int, ...]:
        table, count, first, last = self._columns[number]
        start, stop = chunk * count, (chunk + 1) * count
        if first <= start and stop <= last:
            # Nearly every chunk of a long load.
            whole = tuple(table[start:stop])
            if NULL_BLOCK not in whole:
                return whole
        blocks = tuple(
            table[index] if first <= index < last and table[index] != NULL_BLOCK else SKIP_BLOCK
            for index in range(start, stop)
        )
        if self._geometry.groups[number].is_partial:
            return blocks if any(block != SKIP_BLOCK for block in blocks) else ()
        if NULL_BLOCK in table[max(first, start) : min(last, stop)]:
            raise ValueError(f"vLLM gave no block for a part of chunk {chunk} that it takes as loaded")
        return blocks
