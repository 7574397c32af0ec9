# SPDX-License-Identifier: Apache-2.0
"""Keeps the slot table in step with the database, so that the next start need not read every row."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tutti_engine.catalogue import file, lists
from tutti_engine.catalogue.batch import Batch
from tutti_engine.catalogue.checksum_table import StoredChecksums
from tutti_engine.catalogue.record import Record, is_sound
from tutti_engine.catalogue.residents import Residents
from tutti_engine.catalogue.slot_table import SLOT_TABLE_NAME, Row, SlotTable

__all__ = ["MIN_SLOTS", "Mirror"]

log = logging.getLogger(__name__)

MIN_SLOTS = 32_768
"""A smaller store is read from its database in a moment."""

SYNC_CHANGES = 16_384
"""Changed slots that a start takes from the database at most: about a tenth of a second."""

BUILD_SLOTS = 512
"""Slots that are copied at once when a table is made: a millisecond or two."""


class Mirror:
    """The table's side of the catalogue's writer thread, which alone uses it.

    Each transaction lists the slots that it changes in the database's table ``changed`` before the file is
    touched; the list is emptied only after the file is durable. Whatever fails here costs a slow next start
    and nothing else: the list then goes on growing, or the file's id is no longer the database's.
    """

    def __init__(self, directory: Path, checksums: StoredChecksums) -> None:
        self._path = directory / SLOT_TABLE_NAME
        self._checksums = checksums
        self._num_slots = checksums.num_slots
        self._ranks = checksums.ranks
        self._checksum_bytes = checksums.width
        self._table: SlotTable | None = None
        self._built = 0
        self._unsynced = 0
        self._affected: set[int] = set()
        self._planned: list[tuple[int, Row | None]] = []

    def load(self, connection: sqlite3.Connection) -> Residents | None:
        """Return the residents by way of the table; None if there is no table that can be believed."""
        if self._num_slots < MIN_SLOTS:
            with contextlib.suppress(OSError):
                self._path.unlink()
            return None
        identity = file.table_id(connection)
        table = SlotTable.open(self._path, identity, self._num_slots, self._checksum_bytes)
        if table is None:
            return None
        try:
            slots = lists.changed_slots(connection)
            rows: dict[int, Row] = {row[0]: row for row in lists.rows_of_changed(connection)}
            if not all(map(self._is_sound, rows.values())):
                raise ValueError("rows are damaged")
            if len(slots) > self._num_slots // 2 or not all(0 <= slot < self._num_slots for slot in slots):
                raise ValueError("too much of it is out of date")
            # Into the file too: the list is emptied at the next sync.
            for slot in slots:
                write_row(table, slot, rows.get(slot))
            residents = table.load(self._checksums)
            if residents is not None:
                table.serve(self._checksums)
        except (OSError, ValueError, IndexError) as error:
            log.info("%s is not used: %s", self._path, error)
            residents = None
        if residents is None:
            table.close()
            return None
        self._table, self._built, self._unsynced = table, self._num_slots, len(slots)
        return residents

    def _is_sound(self, row: Row) -> bool:
        return is_sound(row) and row[3] == self._ranks and len(row[4]) == self._checksum_bytes

    def begin(self, connection: sqlite3.Connection) -> None:
        """Start a new table when there is none; ``build`` fills it."""
        if self._num_slots < MIN_SLOTS or self._table is not None:
            return
        with self._forgiving():
            file.set_table_id(connection, None)
            self._table = SlotTable.create(self._path, self._num_slots, self._checksum_bytes)
            self._built = 0

    @property
    def building(self) -> bool:
        """Whether ``build`` has something to do."""
        return self._table is not None and self._built < self._num_slots

    def build(self, connection: sqlite3.Connection) -> None:
        """Copy some slots from the database; after the last ones the table counts."""
        with self._forgiving():
            table = self._table
            assert table is not None
            count = min(BUILD_SLOTS, self._num_slots - self._built)
            table.put_range(self._built, count, lists.rows_between(connection, self._built, count))
            if self._built + count == self._num_slots:
                table.sync()
                file.set_table_id(connection, table.identity)
                table.serve(self._checksums)
                self._unsynced = 0
            # Last: others see from it that all is done.
            self._built += count

    def before(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Within a batch's transaction and before its changes: note the slots whose rows they replace."""
        self._affected = set()
        if self._table is None:
            # Nobody lists the changes from here on: a file that is still there no longer counts.
            file.set_table_id(connection, None, within=True)
            return
        if not self.building and file.table_id(connection) != self._table.identity:
            # Rows were dropped as a whole or the database is a new one.
            self.close()
            file.set_table_id(connection, None, within=True)
            return
        for change in batch.changes:
            if isinstance(change, Record):
                self._affected.add(change.slot)
                self._affected.update(lists.slots_of_key(connection, change.key))
            elif change.slots is None:
                file.set_table_id(connection, None, within=True)
                self.close()
                return
            else:
                self._affected.update(change.slots)

    def after(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Within the transaction and after its changes: list the slots and keep their rows of now."""
        self._planned = []
        if self._table is None:
            return
        for key in batch.touched:
            self._affected.update(lists.slots_of_key(connection, key))
        slots = [slot for slot in self._affected if 0 <= slot < self._num_slots]
        self._planned = [(slot, lists.row_of_slot(connection, slot)) for slot in slots]
        if not self.building:
            lists.list_changed(connection, slots)

    def apply(self, connection: sqlite3.Connection) -> None:
        """After the commit: write what ``after`` kept, and now and then make it durable."""
        planned, self._planned = self._planned, []
        table = self._table
        if table is None or not planned:
            return
        with self._forgiving():
            for slot, row in planned:
                if slot >= self._built:
                    continue
                write_row(table, slot, row)
                if row is not None:
                    self._checksums.written(slot, row[4])
            self._unsynced += len(planned)
            if self._unsynced >= SYNC_CHANGES:
                self.sync(connection)

    def sync(self, connection: sqlite3.Connection) -> None:
        """Make the file durable and empty the list of changes."""
        if self._table is None or self.building or not self._unsynced:
            return
        with self._forgiving():
            self._table.sync()
            lists.forget_changed(connection)
            self._unsynced = 0

    def close(self) -> None:
        """Stop keeping the table."""
        table, self._table = self._table, None
        if table is not None:
            table.close()

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, OverflowError) as error:
            log.info("%s is given up, the next start takes longer: %s", self._path, error)
            self.close()


def write_row(table: SlotTable, slot: int, row: Row | None) -> None:
    """Write what the database holds for a slot."""
    if row is None or len(row[4]) != table.checksum_bytes:
        table.remove(slot)
    else:
        table.put(row)
