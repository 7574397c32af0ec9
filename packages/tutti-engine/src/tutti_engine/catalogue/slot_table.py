# SPDX-License-Identifier: Apache-2.0
"""The catalogue's rows once more, as columns in a file that a start can read in one go.

The database stays the truth. It also lists the slots that changed since the file was last made durable, so
that a start takes those from the database and all others from here. The file's name for its content (``id``)
stands in the database too: a file that belongs to another one is not looked at.

Format, little-endian: one page of header; then columns, each starting at a page: one byte a slot with the
length of its key, 0 for an empty slot; 64 bytes a slot for the key; 8 for the generation; 8 for the last use;
the checksums.
"""

from __future__ import annotations

import os
import secrets
import struct
import sys
from array import array
from collections.abc import Iterable
from itertools import compress
from pathlib import Path

from tutti_engine.catalogue.checksum_table import ChecksumTable, StoredChecksums
from tutti_engine.catalogue.file import MAX_KEY_BYTES
from tutti_engine.catalogue.record import MAX_NUMBER
from tutti_engine.catalogue.residents import Residents

__all__ = ["SLOT_TABLE_NAME", "Row", "SlotTable", "table_bytes", "write_all"]

SLOT_TABLE_NAME = "slots.tab"

MAGIC = b"TUTTISLT"
VERSION = 1
HEADER = struct.Struct("<8sI16sQQ")
PAGE_BYTES = 4096

Row = tuple[int, bytes, int, int, bytes, int]
"""A row of the catalogue: slot, key, generation, ranks, checksums, last use."""


def page_up(size: int) -> int:
    """Return the smallest multiple of a page that is not below ``size``."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def table_bytes(num_slots: int, checksum_bytes: int) -> int:
    """Return the size of the file."""
    columns = (1, MAX_KEY_BYTES, 8, 8, checksum_bytes)
    return PAGE_BYTES + sum(page_up(num_slots * width) for width in columns)


class SlotTable:
    """The open file. Not thread-safe. Every method raises OSError when the system refuses."""

    def __init__(self, descriptor: int, identity: str, num_slots: int, checksum_bytes: int) -> None:
        self._fd = descriptor
        self.identity = identity
        self.num_slots = num_slots
        self.checksum_bytes = checksum_bytes
        self._keys = PAGE_BYTES + page_up(num_slots)
        self._generations = self._keys + page_up(num_slots * MAX_KEY_BYTES)
        self._uses = self._generations + page_up(num_slots * 8)
        self._sums = self._uses + page_up(num_slots * 8)

    @classmethod
    def create(cls, path: Path, num_slots: int, checksum_bytes: int) -> SlotTable:
        """Replace the file by an empty one with a new id."""
        identity = secrets.token_hex(8)
        path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.ftruncate(descriptor, table_bytes(num_slots, checksum_bytes))
            header = HEADER.pack(MAGIC, VERSION, identity.encode(), num_slots, checksum_bytes)
            write_all(descriptor, header, 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, identity, num_slots, checksum_bytes)

    @classmethod
    def open(cls, path: Path, identity: object, num_slots: int, checksum_bytes: int) -> SlotTable | None:
        """Open the file of that id and shape; None if there is none or it is another one."""
        if sys.byteorder != "little":
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            found = HEADER.unpack(os.pread(descriptor, HEADER.size, 0))
        except (OSError, struct.error):
            os.close(descriptor)
            return None
        wanted = (MAGIC, VERSION, str(identity).encode(), num_slots, checksum_bytes)
        if found != wanted or size != table_bytes(num_slots, checksum_bytes):
            os.close(descriptor)
            return None
        return cls(descriptor, str(identity), num_slots, checksum_bytes)

    def put(self, row: Row) -> None:
        """Write one row."""
        slot, key, generation, _, checksums, used = row
        write_all(self._fd, checksums, self._sums + slot * self.checksum_bytes)
        write_all(self._fd, key, self._keys + slot * MAX_KEY_BYTES)
        write_all(self._fd, generation.to_bytes(8, "little"), self._generations + slot * 8)
        self.touch(slot, used)
        write_all(self._fd, bytes((len(key),)), PAGE_BYTES + slot)

    def put_range(self, first: int, count: int, rows: Iterable[Row]) -> None:
        """Write ``count`` neighbouring slots from ``first`` on: those without a row become empty."""
        lengths, keys = bytearray(count), bytearray(count * MAX_KEY_BYTES)
        generations, uses = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        width = self.checksum_bytes
        sums = bytearray(count * width)
        for slot, key, generation, _, checksums, used in rows:
            at = slot - first
            lengths[at] = len(key)
            keys[at * MAX_KEY_BYTES : at * MAX_KEY_BYTES + len(key)] = key
            generations[at], uses[at] = generation, used
            sums[at * width : (at + 1) * width] = checksums
        write_all(self._fd, sums, self._sums + first * width)
        write_all(self._fd, keys, self._keys + first * MAX_KEY_BYTES)
        write_all(self._fd, generations.tobytes(), self._generations + first * 8)
        write_all(self._fd, uses.tobytes(), self._uses + first * 8)
        write_all(self._fd, lengths, PAGE_BYTES + first)

    def remove(self, slot: int) -> None:
        """Make one slot empty."""
        write_all(self._fd, b"\0", PAGE_BYTES + slot)

    def touch(self, slot: int, used: int) -> None:
        """Write one slot's last use."""
        write_all(self._fd, used.to_bytes(8, "little"), self._uses + slot * 8)

    def load(self, table: ChecksumTable) -> Residents | None:
        """Return what the file holds, but for the checksums, which ``serve`` gives to ``table``.

        None if it makes no sense.
        """
        count = self.num_slots
        lengths, keys = bytearray(count), bytearray(count * MAX_KEY_BYTES)
        generations, uses = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        columns = ((lengths, PAGE_BYTES), (keys, self._keys), (generations, self._generations))
        for column, start in (*columns, (uses, self._uses)):
            if not read_all(self._fd, column, start):
                return None
        for numbers in (generations, uses):
            if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
                return None
        if max(lengths) > MAX_KEY_BYTES:
            return None
        return select(lengths, bytes(keys), generations, uses, table)

    def serve(self, table: StoredChecksums) -> None:
        """Let ``table`` read the checksums from this file from now on."""
        table.use_file(self._fd, self._sums)

    def sync(self) -> None:
        """Make everything durable."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Give the file up. Later calls do nothing."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


def select(
    lengths: bytearray, keys: bytes, generations: array[int], uses: array[int], table: ChecksumTable
) -> Residents:
    """Return the slots that hold something."""
    count = len(lengths)
    slots = array("q", compress(range(count), lengths))
    size = max(lengths)
    if len(slots) < count:
        generations = array("q", compress(generations, lengths))
        uses = array("q", compress(uses, lengths))
    if lengths.count(size) == len(slots):
        chosen = [keys[at : at + size] for at in map(MAX_KEY_BYTES.__mul__, slots)]
    else:
        places = ((slot * MAX_KEY_BYTES, lengths[slot]) for slot in slots)
        chosen = [keys[at : at + length] for at, length in places]
    return Residents(chosen, slots, generations, uses, table)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of ``data``; a short write goes on where it ended."""
    done = os.pwrite(descriptor, data, offset)
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)


def read_all(descriptor: int, target: bytearray | array[int], offset: int) -> bool:
    """Fill ``target``; return whether the file had as much."""
    view = memoryview(target).cast("B")
    done = 0
    while done < len(view):
        # One call moves at most 2 GiB.
        some = os.preadv(descriptor, [view[done:]], offset + done)
        if some == 0:
            return False
        done += some
    return True
