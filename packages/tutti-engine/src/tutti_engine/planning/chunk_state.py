# SPDX-License-Identifier: Apache-2.0
"""What the index knows of a chunk beside its place, and how that comes through a restart.

A record's generation is a number of the planner's own that only has to grow: its low bits carry the mark of
the policy and the tag of the tenant, so that records stay as small as they were.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import compress

from tutti_engine.catalogue.checksum_table import ChecksumTable
from tutti_engine.catalogue.record import Record, as_row
from tutti_engine.catalogue.residents import Residents
from tutti_engine.planning.chunk_index import ChunkIndex

__all__ = ["generation_of", "restore"]

MARK_BITS, TENANT_BITS = 8, 16
STATE_BITS = MARK_BITS + TENANT_BITS

EXACT_FLOAT = 1 << 53
"""Whole numbers below it are exact as floating point numbers."""


def generation_of(number: int, mark: int, tenant: int) -> int:
    """Return the generation of the ``number``-th chunk that was ever stored, below 2**62 for 2**38 chunks."""
    return number << STATE_BITS | tenant << MARK_BITS | mark


def restore(index: ChunkIndex, records: Iterable[Record]) -> int:
    """Fill an empty index with what was stored before; return the largest number of a chunk.

    Columns (``Residents``) are read as columns. A record whose place the index does not have is left out.
    """
    found = records if isinstance(records, Residents) else as_columns(records, index.capacity)
    if not len(found):
        if isinstance(records, Residents):
            index.restore((), (), (), b"", array("H"), [], found.checksums)
        return 0
    keys, generations, last_used = found.keys, found.generations, found.last_used
    number = max(generations) >> STATE_BITS
    places = found.slots.tolist()
    slots = index.slots_of(places)
    if slots != places:
        there = [slot >= 0 for slot in slots]
        keys = list(compress(keys, there))
        generations = array("q", compress(generations, there))
        last_used = array("q", compress(last_used, there))
        slots = list(compress(slots, there))
    marks, tenants = states_of(generations)
    order = list(map(slots.__getitem__, order_of_use(last_used, generations)))
    index.restore(keys, slots, last_used, marks, tenants, order, found.checksums)
    return number


def states_of(generations: array[int]) -> tuple[bytes, array[int]]:
    """Return the marks and the tenants of generations, without a Python object each."""
    if sys.byteorder == "big":
        generations = array("q", generations)
        generations.byteswap()
    octets = generations.tobytes()
    pairs = bytearray(2 * len(generations))
    pairs[::2], pairs[1::2] = octets[1::8], octets[2::8]
    tenants = array("H", bytes(pairs))
    if sys.byteorder == "big":
        tenants.byteswap()
    return octets[::8], tenants


def order_of_use(last_used: array[int], generations: array[int]) -> list[int]:
    """Return positions, least recently used first.

    Of chunks used at the same time the one that was stored later lies further from its prompt's start: it
    goes first.
    """
    if not last_used:
        return []
    positions = range(len(last_used))
    first = min(last_used)
    latest = max(generations) >> STATE_BITS
    if (max(last_used) - first + 1) * (latest + 1) < EXACT_FLOAT:
        # One sort by numbers that are compared fastest, of all that Python has.
        ages = [
            (used - first) * (latest + 1) + latest - (generation >> STATE_BITS)
            for used, generation in zip(last_used, generations)
        ]
        return sorted(positions, key=array("d", ages).__getitem__)
    order = sorted(positions, key=generations.__getitem__, reverse=True)
    order.sort(key=last_used.__getitem__)
    return order


def as_columns(records: Iterable[Record], num_slots: int) -> Residents:
    """Return records as columns, with checksums for that many places or as many as they name."""
    rows = [as_row(record) for record in records]
    ranks, width = (rows[0][3], len(rows[0][4])) if rows else (1, 0)
    num_slots = max([num_slots, *(row[0] + 1 for row in rows)])
    table = ChecksumTable(num_slots, ranks, width // ranks)
    return Residents.from_rows(rows, table)
