# SPDX-License-Identifier: Apache-2.0
"""What a store holds at its start, as columns: a million objects would take more time than the start may."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from tutti_engine.catalogue.checksum_table import ChecksumTable
from tutti_engine.catalogue.record import Record

__all__ = ["Residents"]


class Residents(Sequence[Record]):
    """Resident chunks as columns of equal length, and as a sequence of ``Record``, made one by one.

    Attributes:
        keys: the chunks' keys.
        slots: their places.
        generations: whole numbers that grow from one filling of a slot to the next.
        last_used: seconds since 1970.
        checksums: by slot; those of slots that are not in ``slots`` mean nothing.
    """

    __slots__ = ("checksums", "generations", "keys", "last_used", "slots")

    def __init__(
        self,
        keys: list[bytes],
        slots: array[int],
        generations: array[int],
        last_used: array[int],
        checksums: ChecksumTable,
    ) -> None:
        self.keys = keys
        self.slots = slots
        self.generations = generations
        self.last_used = last_used
        self.checksums = checksums

    @classmethod
    def from_rows(
        cls, rows: Sequence[tuple[int, bytes, int, int, bytes, int]], checksums: ChecksumTable
    ) -> Residents:
        """Return the residents of rows of the catalogue, whose checksums go to the table."""
        found = cls([], array("q"), array("q"), array("q"), checksums)
        found.extend(rows)
        return found

    def extend(self, rows: Sequence[tuple[int, bytes, int, int, bytes, int]]) -> None:
        """Add rows of the catalogue."""
        if not rows:
            return
        slots, keys, generations, _, blobs, last_used = zip(*rows)
        self.keys += keys
        self.slots.extend(slots)
        self.generations.extend(generations)
        self.last_used.extend(last_used)
        self.checksums.fill(slots, blobs)

    def clear(self) -> None:
        """Forget all columns, when they have been taken over."""
        self.keys = []
        self.slots, self.generations, self.last_used = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.keys)

    def _record(self, position: int) -> Record:
        slot = self.slots[position]
        return Record(
            self.keys[position],
            slot,
            self.generations[position],
            self.checksums.get(slot),
            self.last_used[position],
        )

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self._record(position) for position in range(*index.indices(len(self)))]
        return self._record(range(len(self))[index])

    def __iter__(self) -> Iterator[Record]:
        return map(self._record, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(mine == theirs for mine, theirs in zip(self, other))
        )

    __hash__ = None  # type: ignore[assignment]
