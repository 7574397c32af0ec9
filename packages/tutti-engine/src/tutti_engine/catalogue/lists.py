# SPDX-License-Identifier: Apache-2.0
"""Lists of slots in the catalogue: those that the slot table may show wrongly, those that did not verify."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from tutti_engine.catalogue.file import transaction

__all__ = [
    "MAX_FAILURES",
    "changed_slots",
    "forget_changed",
    "list_changed",
    "retired_slots",
    "row_of_slot",
    "rows_between",
    "rows_of_changed",
    "slots_of_key",
    "suspect_slots",
]


def list_changed(connection: sqlite3.Connection, slots: Iterable[int]) -> None:
    """Add slots to the list of those that the slot table may show wrongly."""
    connection.executemany("INSERT OR IGNORE INTO changed VALUES (?)", ((slot,) for slot in slots))


def changed_slots(connection: sqlite3.Connection) -> list[int]:
    """Return the list of changed slots."""
    return [slot for (slot,) in connection.execute("SELECT slot FROM changed")]


def forget_changed(connection: sqlite3.Connection) -> None:
    """Empty the list of changed slots."""
    with transaction(connection):
        connection.execute("DELETE FROM changed")


def rows_of_changed(connection: sqlite3.Connection) -> list[Any]:
    """Return the rows of the changed slots that have one."""
    return connection.execute("SELECT chunks.* FROM changed JOIN chunks USING (slot)").fetchall()


def rows_between(connection: sqlite3.Connection, first: int, count: int) -> list[Any]:
    """Return the rows of ``count`` slots from ``first`` on."""
    return connection.execute(
        "SELECT * FROM chunks WHERE slot BETWEEN ? AND ?", (first, first + count - 1)
    ).fetchall()


def row_of_slot(connection: sqlite3.Connection, slot: int) -> Any:
    """Return the row of a slot; None if it has none."""
    return connection.execute("SELECT * FROM chunks WHERE slot = ?", (slot,)).fetchone()


def slots_of_key(connection: sqlite3.Connection, key: bytes) -> list[int]:
    """Return the slot that has a row of that key, if there is one."""
    return [slot for (slot,) in connection.execute("SELECT slot FROM chunks WHERE key = ?", (key,))]


MAX_FAILURES = 2
"""Chunks that may fail to verify in one slot before it is used no more."""


def suspect_slots(connection: sqlite3.Connection, slots: Iterable[int]) -> list[int]:
    """Note a failure of each slot and return those that may be used again."""
    usable = []
    for slot in slots:
        connection.execute(
            "INSERT INTO suspects VALUES (?, 1) ON CONFLICT (slot) DO UPDATE SET failures = failures + 1",
            (slot,),
        )
        failures = connection.execute("SELECT failures FROM suspects WHERE slot = ?", (slot,)).fetchone()[0]
        if failures < MAX_FAILURES:
            usable.append(slot)
    return usable


def retired_slots(connection: sqlite3.Connection, limit: int) -> list[int]:
    """Return the slots that failed too often; none, and forget all failures, if they are above ``limit``."""
    found = connection.execute("SELECT slot FROM suspects WHERE failures >= ?", (MAX_FAILURES,)).fetchall()
    if len(found) > limit:
        with transaction(connection):
            connection.execute("DELETE FROM suspects")
        return []
    return [slot for (slot,) in found]
