# SPDX-License-Identifier: Apache-2.0
"""Connections to the catalogue's file that know whether the file is still the one at its path.

A process that closes any descriptor of a file loses all its POSIX locks on it, and SQLite's with them. So the
file is opened by other means than SQLite only while no connection of this process lives on it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "Connection",
    "DamagedError",
    "Identity",
    "connect_to_read",
    "connect_to_write",
    "identify",
    "refuse_links",
]

MAGIC = b"SQLite format 3\0"
FORMAT_VERSIONS = (b"\1\1", b"\2\2")
"""Bytes 18 and 19 of a database: written without and with a write-ahead log."""

TAILS = ("", "-wal", "-shm")

Identity: TypeAlias = "tuple[int, int] | None"
"""Device and inode of a file; None of a file that is not there."""

_lock = threading.Lock()
_living: Counter[Identity] = Counter()


def _renew_lock_in_child() -> None:
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock_in_child)


class DamagedError(Exception):
    """The file is no catalogue, or none that this version can read."""


def identify(path: Path | str) -> Identity:
    """Return the identity of the file at ``path``."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class Connection(sqlite3.Connection):
    """A connection that is counted as living on its file until ``close``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.identity: Identity = None
        self._files: list[Identity] = []

    def close(self) -> None:
        """Close the connection, and then let the file be opened by other means."""
        super().close()
        identity, self.identity = self.identity, None
        if identity is not None:
            with _lock:
                _living[identity] -= 1
                if not _living[identity]:
                    del _living[identity]

    def note_files(self, path: Path) -> None:
        """Remember database, log and index as they are now; for a connection that has used all three."""
        self._files = [identify(f"{path}{tail}") for tail in TAILS]

    def is_at(self, path: Path) -> bool:
        """Return whether the files at ``path`` are still those that this connection writes."""
        return self._files == [identify(f"{path}{tail}") for tail in TAILS]


def refuse_links(path: Path) -> None:
    """Raise OSError if the database or one of its side files is anything but a plain file."""
    for tail in TAILS:
        name = Path(f"{path}{tail}")
        try:
            mode = name.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise OSError(f"{name} is not a plain file; remove it")


def create_and_inspect(path: Path) -> None:
    """Make the file if it is missing, with mode 0600, and raise DamagedError unless it begins as a database.

    SQLite would make it with the umask's mode, and its side files copy the mode of the database. It would
    remove the log beside a file that it does not understand, and take one whose format version is damaged for
    write-protected.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        header = os.pread(descriptor, 20, 0)
    finally:
        os.close(descriptor)
    if header and not (header.startswith(MAGIC) and header[18:] in FORMAT_VERSIONS):
        raise DamagedError("it is not a database")


def connect_to_write(path: Path, patience: float) -> Connection:
    """Open ``path``, making it if it is missing; wait up to ``patience`` seconds for other processes' locks.

    Raises DamagedError for a file that is no database, sqlite3.Error or OSError when the system refuses.
    """
    refuse_links(path)
    with _lock:
        identity = identify(path)
        # A file on which a connection lives has been looked at before that connection.
        if identity is None or identity not in _living:
            create_and_inspect(path)
        connection = sqlite3.connect(
            path, timeout=patience, isolation_level=None, check_same_thread=False, factory=Connection
        )
        return count(connection, path)


def connect_to_read(uri: str, path: Path, patience: float) -> Connection:
    """Open the database ``path`` by a URI that says how. Raises sqlite3.Error."""
    with _lock:
        return count(sqlite3.connect(uri, uri=True, timeout=patience, factory=Connection), path)


def count(connection: sqlite3.Connection, path: Path) -> Connection:
    """Note that a new connection lives on ``path``."""
    assert isinstance(connection, Connection)
    connection.identity = identify(path)
    if connection.identity is not None:
        _living[connection.identity] += 1
    return connection
