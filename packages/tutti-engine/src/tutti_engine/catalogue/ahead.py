# SPDX-License-Identifier: Apache-2.0
"""What the catalogue's writer thread does beside commits, so that starts are fast and damage is found."""

from __future__ import annotations

import gc
import sqlite3
from pathlib import Path

from tutti_engine.catalogue import file
from tutti_engine.catalogue.batch import Batch
from tutti_engine.catalogue.checksum_table import StoredChecksums
from tutti_engine.catalogue.mirror import Mirror
from tutti_engine.catalogue.residents import Residents
from tutti_engine.catalogue.scrub import Scrub

__all__ = ["Ahead"]

READ_ROWS = 256


class Ahead:
    """Reading at a start, the slot table from then on, and the verification of a large database.

    Used by the writer thread alone, but for ``has_work``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mirror: Mirror | None = None
        self._scrub: Scrub | None = None

    def load(self, connection: sqlite3.Connection, checksums: StoredChecksums) -> Residents | None:
        """Return the residents by way of the slot table; None if every row has to be read."""
        self._mirror = Mirror(self._path.parent, checksums)
        found = self._mirror.load(connection)
        if found is not None:
            self._scrub = Scrub.of(connection)
        return found

    def read(self, connection: sqlite3.Connection, checksums: StoredChecksums) -> Residents:
        """Return the residents from the database, and begin a new slot table."""
        rows = connection.execute("SELECT * FROM chunks")
        found = Residents.from_rows([], checksums)
        collecting = gc.isenabled()
        # The collector would walk a million new objects again and again, for half of the time.
        gc.disable()
        try:
            while some := rows.fetchmany(READ_ROWS):
                found.extend(some)
        finally:
            if collecting:
                gc.enable()
        if self._mirror is not None:
            self._mirror.begin(connection)
        self._scrub = Scrub.of(connection)
        return found

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return self._scrub is not None or (self._mirror is not None and self._mirror.building)

    def step(self, connection: sqlite3.Connection) -> None:
        """Verify or copy some rows. Raises DamagedError, or what SQLite raises."""
        if self._scrub is not None:
            if self._scrub.step(connection):
                self._scrub = None
        elif self._mirror is not None and self._mirror.building:
            self._mirror.build(connection)

    def stop_verifying(self) -> None:
        """Verify no more."""
        self._scrub = None

    def before(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Within a transaction, before a batch's changes."""
        if self._mirror is not None:
            self._mirror.before(connection, batch)
        else:
            # Nobody lists the changes: a table of an earlier owner no longer counts.
            file.set_table_id(connection, None, within=True)

    def after(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Within the transaction, after the changes."""
        if self._mirror is not None:
            self._mirror.after(connection, batch)

    def committed(self, connection: sqlite3.Connection) -> None:
        """After the commit."""
        if self._mirror is not None:
            self._mirror.apply(connection)

    def finish(self, connection: sqlite3.Connection) -> None:
        """Make the slot table durable."""
        if self._mirror is not None:
            self._mirror.sync(connection)

    def close(self) -> None:
        """Give the slot table up."""
        if self._mirror is not None:
            self._mirror.close()
