# SPDX-License-Identifier: Apache-2.0
"""Blocks of many chunks as columns of numbers: a long prompt has thousands, and a scheduler that waits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import eq
from typing import Any, cast

from tutti_engine.chunk_transfer import SKIP_BLOCK, BlockIds, ChunkKey

__all__ = ["BlockRows", "ChunkBlocks", "Rows", "cut", "named_blocks", "neighbours", "pick", "pick_columns"]


class BlockRows(Sequence[tuple[int, ...]]):
    """Equally long rows of block ids, one a chunk, in one column; chunks outside of a stretch have none.

    Args:
        flat: the rows of that stretch, one after another, as 64-bit numbers.
        width: blocks of a row.
        count: rows, those without blocks included.
        first: the first row with blocks.

    Raises ValueError for a column that is not made of such rows.
    """

    __slots__ = ("first", "flat", "num_rows", "width")

    def __init__(self, flat: array[int], width: int, count: int, first: int = 0) -> None:
        if width < 1 or len(flat) % width or not 0 <= first <= count - len(flat) // width:
            raise ValueError(f"{len(flat)} blocks from row {first} on are no rows of {width}, {count} in all")
        self.flat, self.width, self.num_rows, self.first = flat, width, count, first

    @property
    def filled(self) -> range:
        """The rows that have blocks."""
        return range(self.first, self.first + len(self.flat) // self.width)

    def holds(self, wanted: range) -> bool:
        """Return whether all of some neighbouring rows have blocks."""
        return self.filled.start <= wanted.start and wanted.stop <= self.filled.stop

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self.num_rows))]
        place = at + self.num_rows if at < 0 else at
        if not 0 <= place < self.num_rows:
            raise IndexError(f"row {at} of {self.num_rows}")
        start = (place - self.first) * self.width
        return tuple(self.flat[start : start + self.width]) if start >= 0 else ()

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.__getitem__, range(self.num_rows))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BlockRows({list(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockRows, (self.flat, self.width, self.num_rows, self.first)

    @classmethod
    def of(cls, rows: Sequence[tuple[int, ...]]) -> Rows:
        """Return rows as columns, or as they are if some differ in length."""
        widths = set(map(len, rows))
        if len(widths) != 1 or 0 in widths:
            return tuple(rows)
        flat = array("q")
        for row in rows:
            flat.extend(row)
        return cls(flat, widths.pop(), len(rows))


def named_blocks(rows: Rows) -> list[int]:
    """Return all blocks of some rows but for those that are left alone."""
    flat = rows.flat.tolist() if isinstance(rows, BlockRows) else [block for row in rows for block in row]
    return [block for block in flat if block != SKIP_BLOCK] if SKIP_BLOCK in flat else flat


Rows = Sequence[tuple[int, ...]]
"""``BlockRows`` or, where rows differ, a tuple of them."""


def neighbours(positions: Sequence[int]) -> range | None:
    """Return positions as a range if each is the next one after that before it; None else, or of none."""
    if not positions:
        return None
    if isinstance(positions, range) and positions.step == 1:
        return positions
    found = range(positions[0], positions[-1] + 1)
    return found if len(found) == len(positions) and all(map(eq, positions, found)) else None


def pick(rows: Rows, positions: Sequence[int]) -> Rows:
    """Return some rows, in that order; neighbouring ones as a column."""
    found = neighbours(positions) if isinstance(rows, BlockRows) else None
    if found is not None and isinstance(rows, BlockRows) and rows.holds(found):
        at, width = (found.start - rows.first) * rows.width, rows.width
        return BlockRows(rows.flat[at : at + len(found) * width], width, len(found))
    return [rows[position] for position in positions]


def pick_columns(rows: Rows, positions: Sequence[int]) -> Rows:
    """Return some rows, in that order, as a column unless some differ in length."""
    found = pick(rows, positions)
    return found if isinstance(found, BlockRows) else BlockRows.of(found)


def cut(rows: Sequence[Rows], start: int, stop: int) -> list[Rows]:
    """Return neighbouring chunks' rows of each group."""
    return [pick(each, range(start, stop)) for each in rows]


class ChunkBlocks(Sequence[tuple[ChunkKey, BlockIds]]):
    """Chunks and their blocks, as ``plan_load`` wants them: a sequence of pairs, kept in columns.

    Args:
        keys: the chunks.
        groups: for each KV cache group one row of block ids a chunk.

    Raises ValueError for columns that differ in length.
    """

    __slots__ = ("groups", "keys")

    def __init__(self, keys: Sequence[ChunkKey], groups: Sequence[Rows]) -> None:
        if any(len(rows) != len(keys) for rows in groups):
            raise ValueError(f"{len(keys)} chunks have {[*map(len, groups)]} rows of blocks, by group")
        self.keys, self.groups = keys, tuple(groups)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        return self.keys[at], tuple(rows[at] for rows in self.groups)

    @classmethod
    def of(cls, pairs: Iterable[tuple[ChunkKey, BlockIds]]) -> ChunkBlocks:
        """Return pairs of a key and its blocks by group as columns; what is one already as it is.

        Raises ValueError for chunks with blocks of more or fewer groups than others.
        """
        if isinstance(pairs, cls):
            return pairs
        listed = list(pairs)
        numbers = sorted({len(blocks) for _, blocks in listed})
        if len(numbers) > 1:
            raise ValueError(f"the chunks of one plan have block ids of {numbers} groups")
        columns = zip(*(blocks for _, blocks in listed))
        rows = [BlockRows.of(cast("Sequence[tuple[int, ...]]", column)) for column in columns]
        return cls([key for key, _ in listed], rows)
