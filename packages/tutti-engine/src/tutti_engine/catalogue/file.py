# SPDX-License-Identifier: Apache-2.0
"""The catalogue's database file: schema, transactions, damage, and how large it can get."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutti_engine.catalogue.connection import Connection, DamagedError, connect_to_write

__all__ = ["CATALOGUE_NAME", "MAX_COMMIT_OPERATIONS", "MAX_KEY_BYTES", "remove_set_aside", "reserved_bytes"]

log = logging.getLogger(__name__)

CATALOGUE_NAME = "catalogue.db"

APPLICATION_ID = 0x54555454
SCHEMA_VERSION = 2
"""1: chunks, counters, meta. 2: also the lists of changed and of suspected slots."""

PAGE_BYTES = 4096
WAL_FRAME_BYTES = PAGE_BYTES + 24
CHECKPOINT_PAGES = 256
"""Frames after which the log is copied to the database: 1 MiB."""

MAX_COMMIT_OPERATIONS = 256
"""Rows that one transaction changes at most; with the row's size it bounds the write-ahead log."""

MAX_KEY_BYTES = 64

CHECKED_PAGES = 2048
"""Databases up to this size, 8 MiB, are verified before they are used; larger ones beside the work."""

OPEN_PATIENCE = 5.0
"""Seconds that a start waits for locks of other processes."""

SCHEMA = (
    """CREATE TABLE chunks (
        slot INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, generation INTEGER NOT NULL,
        ranks INTEGER NOT NULL, checksums BLOB NOT NULL, last_used INTEGER NOT NULL)""",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)

SCHEMA_ADDED_BY_2 = (
    "CREATE TABLE changed (slot INTEGER PRIMARY KEY)",
    "CREATE TABLE suspects (slot INTEGER PRIMARY KEY, failures INTEGER NOT NULL)",
)

SCHEMAS = {1: SCHEMA, 2: SCHEMA + SCHEMA_ADDED_BY_2}


def reserved_bytes(num_chunks: int, checksum_bytes: int) -> int:
    """Return an upper bound of what database, write-ahead log and its index occupy.

    A row holds a key, ``checksum_bytes`` and some numbers. B-tree pages may be two thirds empty, and a row
    that does not fit a page goes to pages of its own. The log holds what is due for a checkpoint and one
    transaction.

    Args:
        num_chunks: rows at most.
        checksum_bytes: checksums of one row, all ranks together.
    """
    row = MAX_KEY_BYTES + checksum_bytes + 40
    table = min(3 * row, row + 2 * PAGE_BYTES)
    database = 32 * PAGE_BYTES + num_chunks * (table + 3 * (MAX_KEY_BYTES + 16))
    pages_of_a_row = 6 + checksum_bytes // (PAGE_BYTES - 4)
    transaction = min(database // PAGE_BYTES, MAX_COMMIT_OPERATIONS * pages_of_a_row)
    frames = CHECKPOINT_PAGES + transaction
    index = 32 * 1024 * (2 + frames // 4096)
    return database + PAGE_BYTES + frames * WAL_FRAME_BYTES + index


class NewerError(DamagedError):
    """The catalogue was written by a later version."""


SYSTEMS_ERRORS = (
    "access permission denied",
    "attempt to write a readonly database",
    "database is locked",
    "database or disk is full",
    "disk I/O error",
    "locking protocol",
    "out of memory",
    "unable to open database file",
)
"""SQLite's texts for what is not the file's fault (Python 3.10 does not tell its error codes)."""


def is_systems(error: Exception) -> bool:
    """Return whether the system refused something, rather than the file being damaged."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith(SYSTEMS_ERRORS)


def is_damage(error: Exception) -> bool:
    """Return whether the file is at fault: it contradicts itself."""
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)) or is_systems(error):
        return False
    texts = ("database disk image is malformed", "file is not a database")
    return isinstance(error, DamagedError) or (
        isinstance(error, sqlite3.DatabaseError) and str(error).startswith(texts)
    )


def connect(path: Path, patience: float = OPEN_PATIENCE) -> Connection:
    """Open ``path`` for writing and make the schema if the file is new.

    Waits up to ``patience`` seconds for other processes' locks. Raises DamagedError for anything else than a
    sound catalogue, sqlite3.Error or OSError when the system refuses.
    """
    connection = connect_to_write(path, patience)
    # Damage may hit texts too, even those of error messages.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        check(connection)
        configure(connection)
        connection.note_files(path)
        return connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        connection.close()
        if is_systems(error):
            raise
        raise DamagedError(str(error)) from error
    except BaseException:
        connection.close()
        raise


def check(connection: sqlite3.Connection) -> None:
    """Raise DamagedError unless the database is empty or a sound catalogue."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == 0 and not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        return
    if application != APPLICATION_ID:
        raise DamagedError("it belongs to another application")
    if version > SCHEMA_VERSION:
        raise NewerError(f"its schema is version {version}, this program reads up to {SCHEMA_VERSION}")
    if version not in SCHEMAS:
        raise DamagedError(f"its schema is version {version}, which never was")
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    if pages <= CHECKED_PAGES:
        verify(connection)
    tables = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")
    if sorted(str(sql) for (sql,) in tables) != sorted(SCHEMAS[version]):
        raise DamagedError("its tables are others")


def verify(connection: sqlite3.Connection) -> None:
    """Raise DamagedError unless the database is sound in itself. Reads all of it."""
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise DamagedError(verdict.replace("\n", " "))


def configure(connection: sqlite3.Connection) -> None:
    """Set durability and size limits and create the tables if there are none."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_PAGES * WAL_FRAME_BYTES}")
    # Pages of one transaction stay in memory until its commit; spilling them would write them to the log
    # twice.
    connection.execute("PRAGMA cache_size = -32768")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < SCHEMA_VERSION:
        with transaction(connection):
            for statement in SCHEMA_ADDED_BY_2 if version == 1 else SCHEMAS[SCHEMA_VERSION]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def set_patience(connection: Connection, seconds: float) -> None:
    """Set how long a statement waits for locks of other processes."""
    connection.execute(f"PRAGMA busy_timeout = {max(1, round(seconds * 1000))}")


def open_or_replace(path: Path, facts: Mapping[str, Any]) -> tuple[Connection, dict[str, Any]]:
    """Open ``path`` and return the connection and the settings; see ``apply_facts``.

    A damaged or foreign file is set aside first, with one log line.
    """
    try:
        return open_for(path, facts)
    except (DamagedError, sqlite3.DatabaseError) as error:
        if not is_damage(error):
            raise
        aside = set_aside(path, NEWER if isinstance(error, NewerError) else DAMAGED)
        log.warning("%s cannot be used (%s): kept as %s, the store starts empty", path, error, aside.name)
        return open_for(path, facts)


def open_for(path: Path, facts: Mapping[str, Any]) -> tuple[Connection, dict[str, Any]]:
    """Open ``path`` for a store of these facts."""
    connection = connect(path)
    try:
        apply_facts(connection, path, facts)
        return connection, read_meta(connection)
    except BaseException:
        connection.close()
        raise


DAMAGED, NEWER = "damaged", "newer"
"""Kinds of catalogues that are set aside. Those of a newer version are never removed."""


def set_aside_numbers(path: Path, kind: str = DAMAGED) -> dict[int, list[Path]]:
    """Return the files of catalogues that were set aside, by their number; the highest is the newest."""
    found: dict[int, list[Path]] = {}
    for each in path.parent.iterdir():
        prefix, _, rest = each.name.rpartition(f".{kind}-")
        number = rest.removesuffix("-wal").removesuffix("-shm")
        if prefix == path.name and number.isascii() and number.isdigit():
            found.setdefault(int(number), []).append(each)
    return found


def set_aside(path: Path, kind: str = DAMAGED) -> Path:
    """Rename the database and its side files to ``<path>.<kind>-<n>``, the next number; return the new name.

    Earlier damaged ones are removed: each costs room of the store, and the newest tells enough.
    """
    aside = Path(f"{path}.{kind}-{max(set_aside_numbers(path, kind), default=0) + 1}")
    # The log goes first: a crash in between must not leave it beside a new database.
    for tail in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{tail}").rename(f"{aside}{tail}")
    remove_set_aside(path, keep=1)
    return aside


def clear_the_way(path: Path) -> None:
    """Make room for a new database where one was deleted, or replaced by a file that is set aside."""
    if path.exists():
        set_aside(path)
        return
    # Left alone they would be taken for the new database's.
    for tail in ("-wal", "-shm"):
        Path(f"{path}{tail}").unlink(missing_ok=True)


def remove_set_aside(path: Path, *, keep: int) -> None:
    """Remove the set-aside catalogues of ``path`` but for the newest ``keep``; what cannot go stays."""
    found = set_aside_numbers(path)
    for number in sorted(found, reverse=True)[keep:]:
        for each in found[number]:
            with contextlib.suppress(OSError):
                each.unlink()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Any:
    """Commit what the block did, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors SQLite has rolled back by itself; a second time is then an error of its own.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def bound_log(connection: sqlite3.Connection, path: Path) -> None:
    """Empty the write-ahead log if it is past its checkpoint size.

    Raises sqlite3.Error while a reader blocks it.
    """
    try:
        size = Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return
    if size <= CHECKPOINT_PAGES * WAL_FRAME_BYTES + PAGE_BYTES:
        return
    busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        raise sqlite3.OperationalError("a reader keeps the write-ahead log from being emptied")


def read_meta(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the table of settings; a value that is not JSON is left out."""
    meta: dict[str, Any] = {}
    for name, value in connection.execute("SELECT name, value FROM meta WHERE name <> ?", (TABLE_ID,)):
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            meta[name] = json.loads(value)
    return meta


def write_meta(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Store settings durably."""
    rows = [(name, json.dumps(value, sort_keys=True)) for name, value in values.items()]
    with transaction(connection):
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def apply_facts(connection: sqlite3.Connection, path: Path, facts: Mapping[str, Any]) -> None:
    """Compare the facts with the stored ones; drop rows and settings, with one log line, if they differ."""
    wanted = json.loads(json.dumps(facts))
    stored = read_meta(connection).get("layout_facts")
    if stored == wanted:
        return
    with transaction(connection):
        rows = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
        connection.execute("DELETE FROM chunks")
        connection.execute("DELETE FROM meta")
        text = json.dumps(wanted, sort_keys=True)
        connection.execute("INSERT INTO meta VALUES ('layout_facts', ?)", (text,))
    if rows:
        log.warning("%s: the store's layout changed, its %d chunks are dropped", path, rows)


def delete_where(connection: sqlite3.Connection, condition: str, values: Sequence[Any]) -> int:
    """Delete rows durably and return their number."""
    with transaction(connection):
        count: int = connection.execute(f"DELETE FROM chunks WHERE {condition}", values).rowcount
        if count:
            set_table_id(connection, None, within=True)
        return count


def shrink(connection: sqlite3.Connection) -> None:
    """Give free pages back to the file system."""
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def put_rows(connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert rows in the order of the table's columns, replacing those with an equal slot or key."""
    connection.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?)", rows)


def delete_slots(connection: sqlite3.Connection, slots: Iterable[int]) -> None:
    """Delete the rows of slots."""
    connection.executemany("DELETE FROM chunks WHERE slot = ?", ((slot,) for slot in slots))


def delete_all(connection: sqlite3.Connection) -> list[int]:
    """Delete every row and return the slots that had one."""
    slots = [slot for (slot,) in connection.execute("SELECT slot FROM chunks")]
    connection.execute("DELETE FROM chunks")
    return slots


def touch_rows(connection: sqlite3.Connection, touched: Mapping[bytes, int]) -> None:
    """Raise the last use of rows."""
    connection.executemany(
        "UPDATE chunks SET last_used = max(last_used, ?) WHERE key = ?",
        ((used, key) for key, used in touched.items()),
    )


def add_counters(connection: sqlite3.Connection, added: Mapping[str, int]) -> None:
    """Raise counters, making those that are new."""
    connection.executemany(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        added.items(),
    )


TABLE_ID = "slot_table"
"""Name of the setting with the slot table's id."""


def table_id(connection: sqlite3.Connection) -> str | None:
    """Return the id of the slot table that belongs to this database; None if none does."""
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (TABLE_ID,)).fetchone()
    return found[0] if found else None


def set_table_id(connection: sqlite3.Connection, identity: str | None, *, within: bool = False) -> None:
    """Say durably which slot table is complete now; it counts only the changes from here on.

    ``within`` an open transaction, else in one of its own.
    """
    with contextlib.nullcontext() if within else transaction(connection):
        connection.execute("DELETE FROM meta WHERE name = ?", (TABLE_ID,))
        connection.execute("DELETE FROM changed")
        if identity is not None:
            connection.execute("INSERT INTO meta VALUES (?, ?)", (TABLE_ID, identity))
