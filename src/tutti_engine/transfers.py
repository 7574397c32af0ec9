# SPDX-License-Identifier: Apache-2.0
"""The chunks of a plan in columns: made, sent to other processes and read without a Python object each."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, cast

from tutti_engine.block_rows import ChunkBlocks, Rows, neighbours
from tutti_engine.chunk_transfer import ChunkId, ChunkKey, ChunkTransfer

__all__ = ["SumRows", "Transfers", "as_column"]


class SumRows(Sequence[tuple[bytes, ...]]):
    """Checksums of many chunks, one row each: for each rank ``part_bytes`` bytes.

    Args:
        joined: all rows, one after another.
        ranks: parts of a row.
        part_bytes: bytes of one part.
    """

    __slots__ = ("joined", "part_bytes", "ranks")

    def __init__(self, joined: bytes, ranks: int, part_bytes: int) -> None:
        self.joined, self.ranks, self.part_bytes = joined, ranks, part_bytes

    def __len__(self) -> int:
        return len(self.joined) // (self.ranks * self.part_bytes)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(f"row {at} of {len(self)}")
        size, first = self.part_bytes, place * self.ranks
        return tuple(self.joined[n * size : (n + 1) * size] for n in range(first, first + self.ranks))

    def __reduce__(self) -> tuple[Any, ...]:
        return SumRows, (self.joined, self.ranks, self.part_bytes)

    def parts(self, positions: Sequence[int], rank: int) -> bytes:
        """Return one rank's parts of some rows, joined."""
        size, width = self.part_bytes, self.ranks * self.part_bytes
        if self.ranks == 1 and (found := neighbours(positions)) is not None:
            return self.joined[found.start * size : found.stop * size]
        at = rank * size
        return b"".join([self.joined[p * width + at : p * width + at + size] for p in positions])


class Transfers(Sequence[ChunkTransfer]):
    """The chunks of a plan, each a ``ChunkTransfer`` once it is looked at.

    Args:
        chunks: their keys and blocks.
        chunk_ids: their places, None for a chunk that is lost; a column where all are whole numbers.
        checksums: loads only; for each chunk, lost ones included, its checksums by rank.
    """

    __slots__ = ("checksums", "chunk_ids", "chunks")

    def __init__(
        self,
        chunks: ChunkBlocks,
        chunk_ids: Sequence[ChunkId | None],
        checksums: Sequence[tuple[bytes, ...]] = (),
    ) -> None:
        self.chunks, self.chunk_ids, self.checksums = chunks, chunk_ids, checksums

    @property
    def keys(self) -> Sequence[ChunkKey]:
        """The chunks' keys."""
        return self.chunks.keys

    @property
    def groups(self) -> Sequence[Rows]:
        """For each KV cache group one row of block ids a chunk."""
        return self.chunks.groups

    def lost(self) -> list[int]:
        """Return the positions of chunks without a place."""
        if isinstance(self.chunk_ids, array):
            return []
        return list(compress(range(len(self)), (each is None for each in self.chunk_ids)))

    def sums(self, positions: Sequence[int], rank: int) -> bytes:
        """Return one rank's checksums of some chunks, joined."""
        if isinstance(self.checksums, SumRows):
            return self.checksums.parts(positions, rank)
        return b"".join([self.checksums[position][rank] for position in positions])

    def __len__(self) -> int:
        return len(self.chunk_ids)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self[each] for each in range(*at.indices(len(self))))
        (key, blocks), chunk_id = self.chunks[at], self.chunk_ids[at]
        sums = self.checksums[at] if self.checksums and chunk_id is not None else ()
        return ChunkTransfer(key, chunk_id, blocks, sums)

    def __iter__(self) -> Iterator[ChunkTransfer]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        keys, size = self.keys, len(self.keys[0]) if self.keys else 0
        packed: bytes | tuple[bytes, ...] = tuple(keys)
        if size and set(map(len, keys)) == {size}:
            packed = b"".join(keys)
        return _unpack, (packed, size, self.groups, self.chunk_ids, self.checksums)

    @classmethod
    def of(cls, transfers: Iterable[ChunkTransfer]) -> Transfers:
        """Return transfers as columns; what is one already as it is.

        Raises ValueError for chunks with blocks of more or fewer groups than others.
        """
        if isinstance(transfers, cls):
            return transfers
        listed = tuple(transfers)
        chunks = ChunkBlocks.of([(each.key, each.block_ids) for each in listed])
        chunk_ids = as_column([each.chunk_id for each in listed])
        return cls(chunks, chunk_ids, tuple(each.checksums for each in listed))


class _PackedKeys(Sequence[ChunkKey]):
    """Equally long keys in one piece; who executes a plan never looks at them."""

    __slots__ = ("_joined", "_size")

    def __init__(self, joined: bytes, size: int) -> None:
        self._joined, self._size = joined, size

    def __len__(self) -> int:
        return len(self._joined) // self._size

    def __getitem__(self, at: Any) -> Any:
        starts = range(0, len(self._joined), self._size)[at]
        if isinstance(at, slice):
            return [self._joined[start : start + self._size] for start in starts]
        return self._joined[starts : starts + self._size]


def _unpack(
    packed: bytes | tuple[ChunkKey, ...],
    size: int,
    groups: Sequence[Rows],
    chunk_ids: Sequence[ChunkId | None],
    checksums: Sequence[tuple[bytes, ...]],
) -> Transfers:
    keys = _PackedKeys(packed, size) if isinstance(packed, bytes) else packed
    return Transfers(ChunkBlocks(keys, groups), chunk_ids, checksums)


def as_column(chunk_ids: Sequence[ChunkId | None]) -> Sequence[ChunkId | None]:
    """Return places as a column if all of them are whole numbers of 64 bits."""
    if set(map(type, chunk_ids)) == {int}:
        with contextlib.suppress(OverflowError):
            return array("q", cast("Sequence[int]", chunk_ids))
    return tuple(chunk_ids)
