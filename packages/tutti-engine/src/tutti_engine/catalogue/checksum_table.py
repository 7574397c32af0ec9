# SPDX-License-Identifier: Apache-2.0
"""Checksums of every chunk slot: in memory, or in the slot table's file, where they are the page cache's.

At 32 layers they are 256 bytes a chunk, more than all else that is kept of it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from itertools import pairwise

from tutti_engine.catalogue.slot_runs import SlotRuns

__all__ = ["ChecksumTable", "StoredChecksums"]


class ChecksumTable:
    """Checksums in one block of memory, 8 bytes a layer and rank.

    Args:
        num_slots: slots, from 0.
        ranks: parts of one slot.
        part_bytes: bytes of one part.
    """

    __slots__ = ("_data", "num_slots", "part_bytes", "ranks", "width")

    def __init__(self, num_slots: int, ranks: int, part_bytes: int) -> None:
        self.num_slots = num_slots
        self.ranks = ranks
        self.part_bytes = part_bytes
        self.width = ranks * part_bytes
        # Pages that nobody wrote cost no memory.
        self._data = mmap.mmap(-1, max(1, num_slots * self.width), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def get(self, slot: int) -> tuple[bytes, ...]:
        """Return the parts of a slot, one a rank. Raises ValueError for a slot out of range."""
        self._check(slot)
        joined, size = self.row(slot), self.part_bytes
        if self.ranks == 1:
            return (joined,)
        return tuple(joined[at : at + size] for at in range(0, self.width, size))

    def set(self, slot: int, parts: Sequence[bytes]) -> None:
        """Store the parts of a slot. Raises ValueError for a slot or sizes that do not fit."""
        self._check(slot)
        joined = b"".join(parts)
        if len(parts) != self.ranks or len(joined) != self.width:
            raise ValueError(
                f"checksums must be {self.ranks} parts of {self.part_bytes} bytes, not {[*map(len, parts)]}"
            )
        self._keep(slot, joined)

    def forget(self, slot: int) -> None:
        """Note that a slot is empty."""

    def fill(self, slots: Sequence[int], rows: Sequence[bytes]) -> None:
        """Store whole rows, as they were found at a start."""
        data, width = self._data, self.width
        for slot, joined in zip(slots, rows):
            data[slot * width : (slot + 1) * width] = joined

    def row(self, slot: int) -> bytes:
        """Return a slot's parts as they are stored, rank by rank."""
        return self._data[slot * self.width : (slot + 1) * self.width]

    def rows(self, runs: SlotRuns) -> bytes:
        """Return the rows of several slots, joined. Raises ValueError for a slot out of range."""
        if not runs.slots:
            return b""
        self._check(min(runs.slots))
        self._check(max(runs.slots))
        if not runs.bounds or not self._is_in_one_place(runs):
            return b"".join(map(self.row, runs.slots))
        bounds = pairwise(runs.bounds)
        return b"".join([self._neighbours(runs.slots[start], stop - start) for start, stop in bounds])

    def _is_in_one_place(self, runs: SlotRuns) -> bool:
        """Whether ``_neighbours`` finds the rows of all these slots."""
        return True

    def _neighbours(self, slot: int, count: int) -> bytes:
        return self._data[slot * self.width : (slot + count) * self.width]

    def _keep(self, slot: int, joined: bytes) -> None:
        self._data[slot * self.width : (slot + 1) * self.width] = joined

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise ValueError(f"slot {slot} is outside 0..{self.num_slots - 1}")


class StoredChecksums(ChecksumTable):
    """Checksums of a store. What its slot table holds is read from there, one row at a time.

    In memory are only those that the file does not have yet: for moments, as its writer follows each commit;
    for good, where nobody writes the file down. A row that cannot be read counts as zeros: its chunk does not
    verify, which is a miss.

    The planner's thread calls ``get``, ``set`` and ``forget``; the catalogue's writer the other methods. A
    slot is set anew only after the removal of what it held was committed and written to the file, so the
    file never gets an earlier filling's row afterwards.
    """

    __slots__ = ("_fd", "_offset", "_recent")

    def __init__(self, num_slots: int, ranks: int, part_bytes: int) -> None:
        super().__init__(num_slots, ranks, part_bytes)
        self._recent: dict[int, bytes] = {}
        self._fd, self._offset = -1, 0

    def row(self, slot: int) -> bytes:
        recent = self._recent.get(slot)
        if recent is not None:
            return recent
        # In this order: the block goes once there is a file.
        data = self._data
        if self._fd < 0:
            return data[slot * self.width : (slot + 1) * self.width]
        return self._read(slot)

    def _is_in_one_place(self, runs: SlotRuns) -> bool:
        return not self._recent or self._recent.keys().isdisjoint(runs.slots)

    def _neighbours(self, slot: int, count: int) -> bytes:
        # In this order: the block goes once there is a file.
        data = self._data
        if self._fd < 0:
            return data[slot * self.width : (slot + count) * self.width]
        return self._read(slot, count)

    def forget(self, slot: int) -> None:
        self._recent.pop(slot, None)

    def _keep(self, slot: int, joined: bytes) -> None:
        self._recent[slot] = joined

    @property
    def in_memory(self) -> int:
        """Rows that are not read from the file."""
        return self.num_slots if self._fd < 0 else len(self._recent)

    def use_file(self, descriptor: int, offset: int) -> None:
        """Read rows from a file from now on, which holds all that were committed.

        Args:
            descriptor: the open file; a duplicate of it is kept.
            offset: where the first slot's row starts.
        """
        self._offset = offset
        self._fd = os.dup(descriptor)
        self._data = mmap.mmap(-1, 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for slot in list(self._recent):
            self.written(slot, self._read(slot))

    def _read(self, slot: int, count: int = 1) -> bytes:
        size = count * self.width
        try:
            found = os.pread(self._fd, size, self._offset + slot * self.width)
        except OSError:
            found = b""
        whole = len(found) - len(found) % self.width
        return found[:whole].ljust(size, b"\0")

    def written(self, slot: int, joined: bytes) -> None:
        """Note that the file holds this row of a slot."""
        if self._fd >= 0 and self._recent.get(slot) == joined:
            self._recent.pop(slot, None)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
