# SPDX-License-Identifier: Apache-2.0
"""From a request's block tables to the blocks of single chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        size = geometry.chunk_tokens
        self.chunks = range(held // size, -(-end // size))
        self._groups = [
            _GroupTable(
                table,
                geometry.blocks_of(number),
                held // group.block_tokens,
                end // group.block_tokens,
                group.is_partial,
            )
            for number, (group, table) in enumerate(zip(geometry.groups, block_ids, strict=True))
        ]

    def blocks(self, chunk: int) -> tuple[tuple[int, ...], ...]:
        """Return a chunk's blocks for each group, those left alone as ``SKIP_BLOCK``; none if that is all.

        Raises ValueError for a full-attention group without a block for a promised token.
        """
        return tuple([group.blocks(chunk) for group in self._groups])

    def promised(self) -> tuple[int, ...]:
        """Return all blocks that are to be filled."""
        found: list[int] = []
        for group in self._groups:
            wanted = group.table[group.first : group.last]
            found += [block for block in wanted if block != NULL_BLOCK] if NULL_BLOCK in wanted else wanted
        return tuple(found)


@dataclass(slots=True)
class _GroupTable:
    table: Sequence[int]
    per_chunk: int
    # The blocks that were promised.
    first: int
    last: int
    is_partial: bool

    def blocks(self, chunk: int) -> tuple[int, ...]:
        start, stop = chunk * self.per_chunk, (chunk + 1) * self.per_chunk
        blocks = tuple(self.table[start:stop])
        # Nearly all chunks are whole, and a long prompt has thousands.
        whole = self.first <= start and stop <= self.last and len(blocks) == self.per_chunk
        if whole and NULL_BLOCK not in blocks:
            return blocks
        wanted = range(max(self.first, start), min(self.last, stop))
        if not self.is_partial and any(self.table[index] == NULL_BLOCK for index in wanted):
            raise ValueError(f"vLLM gave no block for a part of chunk {chunk} that it takes as loaded")
        blocks = tuple(
            self.table[index] if index in wanted and self.table[index] != NULL_BLOCK else SKIP_BLOCK
            for index in range(start, stop)
        )
        return blocks if not self.is_partial or any(block != SKIP_BLOCK for block in blocks) else ()
