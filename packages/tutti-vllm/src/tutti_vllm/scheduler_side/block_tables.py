# SPDX-License-Identifier: Apache-2.0
"""From a request's block tables to the blocks of single chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tutti_engine import SKIP_BLOCK, ChunkKey, Geometry
from tutti_engine.block_rows import BlockRows, ChunkBlocks, Rows, neighbours
from tutti_engine.chunk_transfer import BlockIds
from tutti_engine.columns import numbers

__all__ = ["NULL_BLOCK", "BlockTables", "LoadTable", "stored_blocks", "stored_chunks"]

BlockTables: TypeAlias = Sequence[Sequence[int]]
"""For each KV cache group the ids of a request's blocks, in token order."""

NULL_BLOCK = 0
"""vLLM's placeholder for a block whose KV is not kept. It is no group's and must never be written."""


def stored_blocks(geometry: Geometry, block_ids: BlockTables, chunk: int) -> BlockIds | None:
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


def stored_chunks(
    geometry: Geometry, block_ids: BlockTables, keys: Sequence[ChunkKey], places: Sequence[int]
) -> ChunkBlocks:
    """Return those of some chunks that can be stored, and their blocks; ``places`` are their numbers."""
    run = None if geometry.is_partial else neighbours(places)
    if run is not None:
        columns = []
        for number in range(len(geometry.groups)):
            count = geometry.blocks_of(number)
            blocks = list(block_ids[number][run.start * count : run.stop * count])
            if len(blocks) < len(run) * count or NULL_BLOCK in blocks:
                break
            columns.append(BlockRows(numbers(blocks), count, len(run)))
        else:
            return ChunkBlocks(keys, columns)
    found = [(key, stored_blocks(geometry, block_ids, place)) for key, place in zip(keys, places)]
    return ChunkBlocks.of((key, blocks) for key, blocks in found if blocks is not None)


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

    def rows(self) -> list[Rows]:
        """Return each group's blocks of each chunk, those left alone as ``SKIP_BLOCK``; none if that is all.

        Raises ValueError for a full-attention group without a block for a promised token.
        """
        return [group.rows(self.chunks) for group in self._groups]

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

    def rows(self, chunks: range) -> Rows:
        start, stop = chunks.start * self.per_chunk, chunks.stop * self.per_chunk
        wanted = self.table[self.first : self.last]
        if len(wanted) < self.last - self.first or NULL_BLOCK in wanted:
            if not self.is_partial:
                raise ValueError(
                    "vLLM gave no block for a part of the tokens that it takes as loaded "
                    f"(blocks {self.first} to {self.last} of a table of {len(self.table)})"
                )
            return tuple(map(self._window_blocks, chunks))
        before, behind = [SKIP_BLOCK] * (self.first - start), [SKIP_BLOCK] * (stop - self.last)
        flat = numbers([*before, *wanted, *behind])
        return BlockRows(flat, self.per_chunk, len(chunks))

    def _window_blocks(self, chunk: int) -> tuple[int, ...]:
        start, stop = chunk * self.per_chunk, (chunk + 1) * self.per_chunk
        wanted = range(max(self.first, start), min(self.last, stop, len(self.table)))
        # Nearly all of a long prompt lies before the window.
        if not any(self.table[wanted.start : wanted.stop]):
            return ()
        return tuple(
            self.table[index] if index in wanted and self.table[index] != NULL_BLOCK else SKIP_BLOCK
            for index in range(start, stop)
        )
