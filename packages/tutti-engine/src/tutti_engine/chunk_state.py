# SPDX-License-Identifier: Apache-2.0
"""What the index knows of a chunk beside its place, and how that comes through a restart.

A record's generation is a number of the planner's own that only has to grow: its low bits carry the mark of
the policy and the tag of the tenant, so that records stay as small as they were.
"""

from __future__ import annotations

from collections.abc import Iterable

from tutti_engine.catalogue_record import Record, as_row
from tutti_engine.catalogue_residents import Residents
from tutti_engine.checksum_table import ChecksumTable
from tutti_engine.chunk_index import ChunkIndex

__all__ = ["generation_of", "restore"]

MARK_BITS, TENANT_BITS = 8, 16
STATE_BITS = MARK_BITS + TENANT_BITS


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
            index.restore((), (), (), b"", (), found.checksums)
        return 0
    generations = found.generations
    # Of chunks used at the same time the one that was stored later lies further from its prompt's start: it
    # goes first.
    order = sorted(range(len(found)), key=generations.__getitem__, reverse=True)
    number = generations[order[0]] >> STATE_BITS
    order.sort(key=found.last_used.__getitem__)
    places = list(map(found.slots.__getitem__, order))
    slots = index.slots_of(places)
    if slots != places:
        order = [position for position, slot in zip(order, slots) if slot >= 0]
        slots = [slot for slot in slots if slot >= 0]
    ordered = list(map(generations.__getitem__, order))
    index.restore(
        list(map(found.keys.__getitem__, order)),
        slots,
        list(map(found.last_used.__getitem__, order)),
        bytes([generation & 0xFF for generation in ordered]),
        [generation >> MARK_BITS & 0xFFFF for generation in ordered],
        found.checksums,
    )
    return number


def as_columns(records: Iterable[Record], num_slots: int) -> Residents:
    """Return records as columns, with checksums for that many places or as many as they name."""
    rows = [as_row(record) for record in records]
    ranks, width = (rows[0][3], len(rows[0][4])) if rows else (1, 0)
    num_slots = max([num_slots, *(row[0] + 1 for row in rows)])
    table = ChecksumTable(num_slots, ranks, width // ranks)
    return Residents.from_rows(rows, table)
