# SPDX-License-Identifier: Apache-2.0
"""In which order the places of a store are filled.

On drives from the first to the last. A file system in memory lets one thread at a time write to a file (Linux
holds an inode's lock for a whole ``write(2)`` there): places that are filled together lie in different files,
or all threads would copy no faster than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti_engine.backends.local_files import is_memory
from tutti_engine.store.layout import StoreLayout

__all__ = ["FILES_AT_ONCE", "RUN_BYTES", "slot_order"]

FILES_AT_ONCE = 16
"""Files that are filled at a time: more than threads copy; a store that shrinks keeps the first ones."""

RUN_BYTES = 2 << 20
"""Neighbours in one file up to so many bytes, as long as a thread's longest request."""


def slot_order(layout: StoreLayout, memory: Callable[[str], bool] = is_memory) -> Sequence[int]:
    """Return every chunk slot once, in the order in which new chunks should take them."""
    roots, files = len(layout.directories), layout.files()
    if len(files) <= roots or not all(map(memory, layout.directories)):
        return range(layout.num_chunks)
    run = max(1, RUN_BYTES // layout.chunk_bytes)
    order: list[int] = []
    for first in range(0, len(files), FILES_AT_ONCE):
        places = [_slots_of(layout, number) for number in files[first : first + FILES_AT_ONCE]]
        for start in range(0, layout.chunks_per_file, run):
            for slots in places:
                order += slots[start : start + run]
    return order


def _slots_of(layout: StoreLayout, file_number: int) -> range:
    """Return the chunk slots of one file."""
    roots = len(layout.directories)
    row, root = divmod(file_number, roots)
    first = row * layout.chunks_per_file * roots + root
    end = min(layout.num_chunks, first + layout.chunks_per_file * roots)
    return range(first, end, roots)
