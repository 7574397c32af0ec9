# SPDX-License-Identifier: Apache-2.0
"""Blocks of single chunk slots: gotten, written with zeros, given back to the file system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tutti_engine.backends.local_files import make_file, make_rank_directory
from tutti_engine.catalogue.slot_table import write_all
from tutti_engine.store.layout import StoreLayout

__all__ = ["PREPARATIONS", "SlotFiles"]

PREPARATIONS = ("sparse", "fallocate", "written")

PIECE_BYTES = 1 << 20

# From linux/falloc.h.
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2

_libc = ctypes.CDLL(None, use_errno=True)


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Give the blocks of a range back, which reads as zeros then. Raises OSError, also where it cannot be."""
    mode = ctypes.c_int(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
    where, size = ctypes.c_int64(offset), ctypes.c_int64(length)
    if _libc.fallocate64(ctypes.c_int(descriptor), mode, where, size) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def is_written(descriptor: int, offset: int, length: int) -> bool:
    """Return whether a range has no hole; blocks that were gotten and never written count as holes."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE) >= offset + length
    except OSError:
        return False


class SlotFiles:
    """A slot's share of the segment files of all ranks. Opens one file at a time."""

    def __init__(self, layout: StoreLayout, ranks: int, prepare: str) -> None:
        self._layout = layout
        self._ranks = ranks
        self._prepare = prepare
        self._zeros = bytes(PIECE_BYTES) if prepare == "written" else b""

    def prepare(self, slot: int) -> None:
        """Make a slot usable as the settings say. Raises OSError."""
        if self._prepare == "sparse":
            return
        for descriptor, offset in self._shares(slot, make=True):
            length = self._layout.chunk_bytes
            if is_written(descriptor, offset, length):
                continue
            os.posix_fallocate(descriptor, offset, length)
            if self._prepare == "written":
                for start in range(0, length, PIECE_BYTES):
                    piece = memoryview(self._zeros)[: min(PIECE_BYTES, length - start)]
                    write_all(descriptor, piece, offset + start)
                os.fdatasync(descriptor)

    def empty(self, slot: int) -> None:
        """Give a slot's blocks back. Raises OSError."""
        for descriptor, offset in self._shares(slot, make=False):
            punch_hole(descriptor, offset, self._layout.chunk_bytes)

    def _shares(self, slot: int, *, make: bool) -> Iterator[tuple[int, int]]:
        number, offset = self._layout.locate(slot, 0)
        for rank in range(self._ranks):
            path = Path(self._layout.file_path(rank, number))
            if make:
                make_rank_directory(path.parent)
                make_file(path, self._layout.file_bytes(number))
            elif not path.exists():
                continue
            with opened(path) as descriptor:
                yield descriptor, offset


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a segment file for a moment."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
