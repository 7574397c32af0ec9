# SPDX-License-Identifier: Apache-2.0
"""One row of the catalogue, in memory and as a row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from tutti_engine.catalogue.file import MAX_KEY_BYTES

__all__ = ["MAX_NUMBER", "Record", "as_records", "as_row", "checked", "is_sound"]

INT64_MAX = (1 << 63) - 1

MAX_NUMBER = 1 << 62
"""Largest generation and time that are believed: a larger one is damage, and whoever counts on from there
would soon pass what a column holds."""


class Record(NamedTuple):
    """One resident chunk.

    Attributes:
        key: the chunk's key, 1 to 64 bytes, unique in a catalogue.
        slot: its place, the backend's chunk id.
        generation: tells fillings of one slot apart; the planner's business.
        checksums: for each rank one 64-bit little-endian word a layer; all ranks equally long.
        last_used: seconds since 1970, whole.
    """

    key: bytes
    slot: int
    generation: int
    checksums: tuple[bytes, ...]
    last_used: int


def checked(record: Record) -> Record:
    """Return a record that the table can hold. A clock that is off is no error: its time is clamped.

    Raises ValueError for any other value out of range: refused early, it cannot block a commit.
    """
    if not isinstance(record.key, bytes) or not 1 <= len(record.key) <= MAX_KEY_BYTES:
        raise ValueError(f"key {record.key!r} must be 1 to {MAX_KEY_BYTES} bytes")
    for name in ("slot", "generation"):
        value = getattr(record, name)
        if not isinstance(value, int) or not 0 <= value <= INT64_MAX:
            raise ValueError(f"{name} must be a whole number from 0 to 2**63 - 1, not {value!r}")
    if not isinstance(record.last_used, int):
        raise ValueError(f"last_used must be a whole number, not {record.last_used!r}")
    if not record.checksums or len({len(part) for part in record.checksums}) != 1:
        raise ValueError(f"checksums {record.checksums!r} must be equally many bytes for each rank")
    used = min(max(record.last_used, 0), MAX_NUMBER)
    return record if used == record.last_used else record._replace(last_used=used)


def split(checksums: bytes, ranks: int) -> tuple[bytes, ...]:
    """Return ``ranks`` equal parts."""
    size = len(checksums) // ranks
    return tuple(checksums[start : start + size] for start in range(0, size * ranks, size))


def as_records(rows: list[tuple[int, bytes, int, int, bytes, int]]) -> Iterable[Record]:
    """Return the records of rows, column-wise: a Python loop body would double the time of a start."""
    slots, keys, generations, ranks, checksums, last_used = zip(*rows)
    parts = zip(checksums) if set(ranks) == {1} else map(split, checksums, ranks)
    return map(partial(tuple.__new__, Record), zip(keys, slots, generations, parts, last_used))


def as_row(record: Record) -> tuple[int, bytes, int, int, bytes, int]:
    """Return a record's columns in the table's order."""
    key, slot, generation, checksums, last_used = record
    return slot, key, generation, len(checksums), b"".join(checksums), last_used


def is_sound(row: tuple[int, bytes, int, int, bytes, int]) -> bool:
    """Return whether a row is one that a planner wrote. SQLite keeps any type in any column."""
    slot, key, generation, ranks, checksums, last_used = row
    numbers = (slot, generation, ranks, last_used)
    return (
        all(isinstance(number, int) and 0 <= number <= MAX_NUMBER for number in numbers)
        and isinstance(key, bytes)
        and 1 <= len(key) <= MAX_KEY_BYTES
        and isinstance(checksums, bytes)
    )
