# SPDX-License-Identifier: Apache-2.0
"""Verification of a large catalogue in pieces, beside the work that it serves."""

from __future__ import annotations

import sqlite3

from tutti_engine.catalogue import file, lists
from tutti_engine.catalogue.connection import DamagedError
from tutti_engine.catalogue.record import is_sound

__all__ = ["Scrub"]

SCRUB_SLOTS = 256
"""Slots of one piece: a millisecond or two, in which other threads of the process may have to wait."""


class Scrub:
    """Reads every row once, by its slot and by its key.

    SQLite's own check would hold a reader's lock, and with it the write-ahead log, for as long as it runs.
    """

    def __init__(self, last: int) -> None:
        self._next = 0
        self._last = last

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> Scrub | None:
        """Return the verification of a database; None if opening it has verified it already."""
        if connection.execute("PRAGMA page_count").fetchone()[0] <= file.CHECKED_PAGES:
            return None
        return cls(connection.execute("SELECT max(slot) FROM chunks").fetchone()[0] or 0)

    def step(self, connection: sqlite3.Connection) -> bool:
        """Verify a piece; return whether it was the last. Raises DamagedError or sqlite3.Error."""
        rows = lists.rows_between(connection, self._next, SCRUB_SLOTS)
        for row in rows:
            if not is_sound(row):
                raise DamagedError(f"the row of slot {row[0]} is no record")
        for row in rows[:: max(1, len(rows) // 32)]:
            if lists.slots_of_key(connection, row[1]) != [row[0]]:
                raise DamagedError(f"the key of slot {row[0]} leads elsewhere")
        self._next += SCRUB_SLOTS
        return self._next > self._last
