# SPDX-License-Identifier: Apache-2.0
"""What a store holds at its start, as columns: a million objects would take more time than the start may."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from tutti_engine.catalogue_record import Record

__all__ = ["ChecksumTable", "Residents"]


class ChecksumTable:
    """Checksums of every chunk slot in one block of memory, 8 bytes a layer and rank.

    Args:
        num_slots: slots, from 0.
        ranks: parts of one slot.
        part_bytes: bytes of one part.
    """

    __slots__ = ("_data", "_width", "num_slots", "part_bytes", "ranks")

    def __init__(self, num_slots: int, ranks: int, part_bytes: int) -> None:
        self.num_slots = num_slots
        self.ranks = ranks
        self.part_bytes = part_bytes
        self._width = ranks * part_bytes
        self._data = bytearray(num_slots * self._width)

    @property
    def data(self) -> bytearray:
        """The block itself: slot by slot, in it rank by rank."""
        return self._data

    def get(self, slot: int) -> tuple[bytes, ...]:
        """Return the parts of a slot, one a rank. Raises ValueError for a slot out of range."""
        start = self._start(slot)
        size = self.part_bytes
        return tuple(bytes(self._data[at : at + size]) for at in range(start, start + self._width, size))

    def set(self, slot: int, parts: Sequence[bytes]) -> None:
        """Store the parts of a slot. Raises ValueError for a slot or sizes that do not fit."""
        start = self._start(slot)
        joined = b"".join(parts)
        if len(parts) != self.ranks or len(joined) != self._width:
            raise ValueError(
                f"checksums must be {self.ranks} parts of {self.part_bytes} bytes, not {[*map(len, parts)]}"
            )
        self._data[start : start + self._width] = joined

    def _start(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise ValueError(f"slot {slot} is outside 0..{self.num_slots - 1}")
        return slot * self._width


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
        width = self.checksums.ranks * self.checksums.part_bytes
        data = self.checksums.data
        for slot, blob in zip(slots, blobs):
            data[slot * width : (slot + 1) * width] = blob

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
