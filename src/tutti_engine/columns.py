# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers as arrays of the standard library.

They are built, cut and turned in C, a whole wave at a time, and NumPy and torch read them without a copy. A
segment of a transfer is never an object of its own.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

from tutti_engine.chunk_transfer import ChunkId

__all__ = ["by_layer", "id_column", "numbers", "pack_words", "slot_column", "unpack_words"]

_INT64 = range(-(1 << 63), 1 << 63)


def numbers(values: Iterable[int]) -> array[int]:
    """Return whole numbers as a column of 64-bit signed ones."""
    column = array("q")
    if isinstance(values, list):
        # Twice as fast as from the iterator.
        column.frombytes(struct.pack(f"{len(values)}q", *values))
    else:
        column.extend(values)
    return column


def slot_column(first_slots: Sequence[int], width: int) -> array[int]:
    """Return each run's ``width`` neighbouring slots, run after run."""
    if width == 1:
        return array("q", first_slots)
    column = array("q")
    for first in first_slots:
        column.extend(range(first, first + width))
    return column


def id_column(chunk_ids: Sequence[ChunkId], width: int) -> Sequence[ChunkId]:
    """Return each chunk id ``width`` times, as a column if all of them are whole numbers of 64 bits."""
    whole = [each for each in chunk_ids if type(each) is int and each in _INT64]
    if len(whole) == len(chunk_ids):
        column = array("q")
        for each in whole:
            column.extend(array("q", (each,)) * width)
        return column
    return [each for each in chunk_ids for _ in range(width)]


def by_layer(column: array[int], width: int) -> array[int]:
    """Turn rows of ``width`` (run after run) into columns (layer after layer)."""
    turned = array(column.typecode)
    for place in range(width):
        turned.extend(column[place::width])
    return turned


def unpack_words(data: bytes) -> array[int]:
    """Return 64-bit little-endian words as unsigned numbers."""
    words = array("Q", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def pack_words(words: array[int]) -> bytes:
    """Return unsigned numbers as 64-bit little-endian words."""
    if sys.byteorder == "big":
        words = array("Q", words)
        words.byteswap()
    return words.tobytes()
