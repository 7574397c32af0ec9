# SPDX-License-Identifier: Apache-2.0
"""What any process may ask of a store's catalogue, whether its owner runs or not."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tutti_engine.catalogue.connection import connect_to_read, refuse_links
from tutti_engine.catalogue.file import CATALOGUE_NAME
from tutti_engine.catalogue.record import Record, as_records
from tutti_engine.errors import CatalogueError

__all__ = ["read_counters", "read_records", "reading", "resident_chunks"]

PATIENCE = 5.0
"""Seconds to wait for locks of the owner."""

READ_ROWS = 256


@contextlib.contextmanager
def reading(directory: Path | str) -> Iterator[sqlite3.Connection]:
    """Open the catalogue of a store's directory for reading, beside its owner if there is one."""
    path = Path(directory).absolute() / CATALOGUE_NAME
    # Without a log nobody has the store open, and a reader need not make one to read.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    try:
        # SQLite would follow a link, and wait for a FIFO's other end.
        refuse_links(path)
        # Names of files are bytes, and need not be text.
        connection = connect_to_read(f"file:{quote(os.fsencode(path))}?{mode}", path, PATIENCE)
        try:
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, OSError) as error:
        raise CatalogueError(f"cannot read the catalogue {path}: {error}") from error


def read_counters(directory: Path | str) -> dict[str, int]:
    """Return the lifetime counters of the store in ``directory``, from any process.

    Raises CatalogueError when there is no catalogue.
    """
    with reading(directory) as connection:
        return dict(connection.execute("SELECT name, value FROM counters"))


def resident_chunks(directory: Path | str) -> int:
    """Return the number of chunks that the store in ``directory`` holds. Raises as ``read_counters`` does."""
    with reading(directory) as connection:
        count: int = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
        return count


def read_records(connection: sqlite3.Connection) -> list[Record]:
    """Return all rows of an open catalogue. Raises sqlite3.Error."""
    rows = connection.execute("SELECT * FROM chunks")
    records: list[Record] = []
    collecting = gc.isenabled()
    # The collector would walk a million new tuples again and again, for half of the time.
    gc.disable()
    try:
        while some := rows.fetchmany(READ_ROWS):
            records += as_records(some)
    finally:
        if collecting:
            gc.enable()
    return records
