# SPDX-License-Identifier: Apache-2.0
"""What one transaction of the catalogue holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from tutti_engine.catalogue import file
from tutti_engine.catalogue.lists import suspect_slots
from tutti_engine.catalogue.record import Record, as_row

__all__ = ["Batch", "OnDurable", "Removal", "apply"]

OnDurable: TypeAlias = "Callable[[Sequence[int]], None]"


class Removal(NamedTuple):
    """Rows to delete, all when ``slots`` is None, and whom to tell."""

    slots: Sequence[int] | None
    on_durable: OnDurable
    suspect: bool = False


class Batch(NamedTuple):
    """Changes in their order, and what has none. ``upto`` is the number of the last change that it covers."""

    changes: list[Record | Removal]
    touched: dict[bytes, int]
    added: dict[str, int]
    upto: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.changes or self.touched or self.added)


def apply(connection: sqlite3.Connection, batch: Batch) -> dict[int, list[int]]:
    """Write a batch within a transaction; return the slots of which to tell, by position.

    That is for each ``clear`` the slots that it found, and for suspects those that may be used again.
    """
    cleared = {}
    for is_put, group in groupby(enumerate(batch.changes), lambda item: isinstance(item[1], Record)):
        if is_put:
            file.put_rows(connection, (as_row(put) for _, put in group if isinstance(put, Record)))
            continue
        for position, removal in group:
            assert isinstance(removal, Removal)
            if removal.slots is None:
                cleared[position] = file.delete_all(connection)
            else:
                file.delete_slots(connection, removal.slots)
                if removal.suspect:
                    cleared[position] = suspect_slots(connection, removal.slots)
    file.touch_rows(connection, batch.touched)
    file.add_counters(connection, batch.added)
    return cleared
