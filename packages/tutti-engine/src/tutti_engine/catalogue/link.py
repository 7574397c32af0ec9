# SPDX-License-Identifier: Apache-2.0
"""The writer's way to the database at a path, whatever happens to the files there."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tutti_engine.catalogue import file
from tutti_engine.catalogue.connection import Connection, identify

__all__ = ["Link"]

log = logging.getLogger(__name__)


class Link:
    """One connection at a time, opened anew when it was dropped and when its files were deleted or replaced.

    Used by one thread, but for ``interrupt``.

    Args:
        path: where the database is.
        connection: the first connection.
        meta: what a database that is begun anew holds; looked at then.
        owned: whether the path is still this store's.
    """

    def __init__(
        self, path: Path, connection: Connection, meta: Mapping[str, Any], owned: Callable[[], bool]
    ) -> None:
        self._path = path
        self._connection: Connection | None = connection
        self._identity = connection.identity
        self._meta = meta
        self._owned = owned
        self._lost = False
        self._lock = threading.Lock()

    def get(self, patience: float = file.OPEN_PATIENCE) -> Connection:
        """Return a connection to the database at the path that waits up to ``patience`` seconds for locks.

        A database that was deleted or replaced is begun anew, with one warning. Raises OSError when the path
        is no longer this store's, and what ``catalogue_file.connect`` raises.
        """
        if self._connection is not None and self._connection.is_at(self._path):
            file.set_patience(self._connection, patience)
            return self._connection
        # Closed first: opening looks at the file by other means than SQLite.
        self.drop()
        if not self._owned():
            raise OSError("the store was deleted or replaced while in use; restart the server")
        self._lost = self._lost or identify(self._path) != self._identity
        if self._lost:
            file.clear_the_way(self._path)
        connection = file.connect(self._path, patience)
        if self._lost:
            self._begin_anew(connection)
        self._connection, self._identity, self._lost = connection, connection.identity, False
        return connection

    def _begin_anew(self, connection: Connection) -> None:
        try:
            file.write_meta(connection, self._meta)
        except BaseException:
            connection.close()
            raise
        log.warning(
            "%s was deleted or replaced while in use, a new one is begun: what was stored before is not found"
            " again after a restart",
            self._path,
        )

    def replace_damaged(self, reason: str) -> None:
        """Set a database that turned out damaged while in use aside and begin a new one, with one line."""
        self.drop()
        if not self._owned():
            return
        aside = file.set_aside(self._path)
        log.warning(
            "%s is damaged (%s): kept as %s and begun anew: what was stored before is not found again after a"
            " restart",
            self._path,
            reason,
            aside.name,
        )
        connection = file.connect(self._path)
        try:
            file.write_meta(connection, self._meta)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, connection.identity

    def drop(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def interrupt(self) -> None:
        """Make a statement that runs in the other thread fail."""
        # Under the lock a connection is not being closed, which it would not survive.
        with self._lock:
            if self._connection is not None:
                self._connection.interrupt()
