# SPDX-License-Identifier: Apache-2.0
"""How many chunks fit a capacity in bytes, everything included that a store leaves on disk."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tutti_engine.catalogue.file import (
    CATALOGUE_NAME,
    DAMAGED,
    NEWER,
    remove_set_aside,
    reserved_bytes,
    set_aside_numbers,
)
from tutti_engine.catalogue.mirror import MIN_SLOTS
from tutti_engine.catalogue.slot_table import table_bytes
from tutti_engine.errors import GeometryError
from tutti_engine.geometry import Geometry
from tutti_engine.store.layout import MAX_FILES_PER_ROOT

__all__ = [
    "BLOCK_BYTES",
    "CHECKSUM_BYTES",
    "NAMESPACE_FILE_BYTES",
    "bound_set_aside",
    "bytes_needed",
    "chunks_that_fit",
]

log = logging.getLogger(__name__)

CHECKSUM_BYTES = 8

BLOCK_BYTES = 4096

EXTENT_BYTES = 16
"""Bytes that a file system spends on mapping one separately written segment (ext4: 4096 for 340 extents)."""

NAMESPACE_FILE_BYTES = 16 * BLOCK_BYTES
"""Room for ``namespace.json`` and for the copy that replaces it."""


def bytes_needed(num_chunks: int, *, geometry: Geometry, ranks: int, roots: int) -> int:
    """Return an upper bound of what a store of ``num_chunks`` occupies on disk, everything included.

    That is: chunk slots of all ranks; the file system's mapping of them; database, write-ahead log and its
    index as ``catalogue_file.reserved_bytes`` bounds them, and the slot table; in each root
    directories, lock and ``namespace.json``.
    """
    data = num_chunks * ranks * (geometry.chunk_bytes + geometry.num_layers * EXTENT_BYTES)
    checksum_bytes = ranks * geometry.num_layers * CHECKSUM_BYTES
    catalogue = reserved_bytes(num_chunks, checksum_bytes)
    if num_chunks >= MIN_SLOTS:
        catalogue += table_bytes(num_chunks, checksum_bytes)
    files = ranks * min(MAX_FILES_PER_ROOT, num_chunks)
    fixed = roots * ((ranks + 2 + files) * BLOCK_BYTES + NAMESPACE_FILE_BYTES)
    return data + catalogue + fixed


def chunks_that_fit(capacity_bytes: int, *, geometry: Geometry, ranks: int, roots: int, used: int = 0) -> int:
    """Return the largest store that stays within ``capacity_bytes`` of which ``used`` are taken.

    Raises GeometryError, with the smallest capacity that works, if not even one chunk fits.
    """
    room = capacity_bytes - used
    smallest = bytes_needed(1, geometry=geometry, ranks=ranks, roots=roots)
    if room < smallest:
        beside = f" beside {used} bytes of other stores and of set-aside catalogues" if used else ""
        raise GeometryError(
            f"capacity_bytes {capacity_bytes} does not hold one chunk ({ranks} x {geometry.chunk_bytes} bytes"
            f" and bookkeeping){beside}; the smallest that works is {smallest + used}"
        )
    low, high = 1, room // (ranks * geometry.chunk_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_needed(middle, geometry=geometry, ranks=ranks, roots=roots) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def bound_set_aside(directories: Sequence[Path], limit: int) -> int:
    """Remove set-aside catalogues but for the newest, and that one too above ``limit`` bytes.

    Returns the bytes that what is kept occupies.
    """
    for directory in directories:
        remove_set_aside(directory / CATALOGUE_NAME, keep=1)
    used = set_aside_bytes(directories)
    if used <= limit:
        return used
    log.warning("%s: a set-aside catalogue of %d bytes is removed to make room", directories[0], used)
    for directory in directories:
        remove_set_aside(directory / CATALOGUE_NAME, keep=0)
    return set_aside_bytes(directories)


def set_aside_bytes(directories: Sequence[Path]) -> int:
    """Return what earlier damaged catalogues still occupy."""
    return sum(
        path.lstat().st_blocks * 512
        for each in directories
        for kind in (DAMAGED, NEWER)
        for files in set_aside_numbers(each / CATALOGUE_NAME, kind).values()
        for path in files
    )
