# SPDX-License-Identifier: Apache-2.0
"""The catalogue while its disk, its files or other processes are in its way."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tutti_engine.catalogue import connection as catalogue_connection
from tutti_engine.catalogue import file as catalogue_file
from tutti_engine.catalogue import queue as catalogue_queue
from tutti_engine.catalogue import writer as module
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Catalogue, Record, read_counters, resident_chunks
from tutti_engine.catalogue.reading import reading
from tutti_engine.errors import CatalogueError

FACTS = {"ranks": 1, "num_layers": 2}


def record(slot: int, *, key: bytes | None = None, sums: tuple[bytes, ...] = (b"c" * 16,)) -> Record:
    return Record(key if key is not None else b"key-%d" % slot, slot, 1, sums, 1_700_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / CATALOGUE_NAME


@pytest.fixture
def catalogue(path: Path) -> Iterator[Catalogue]:
    opened = Catalogue.open(path, layout_facts=FACTS)
    yield opened
    opened.close()


class FailingTransactions:
    """Makes commits fail until healed, the way SQLite would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = threading.Event()
        self.attempts = threading.Semaphore(0)
        real = catalogue_file.bound_log

        def bound_log(connection: sqlite3.Connection, path: Path) -> None:
            if self.broken.is_set():
                self.attempts.release()
                raise sqlite3.OperationalError("database or disk is full")
            real(connection, path)

        monkeypatch.setattr(catalogue_file, "bound_log", bound_log)
        monkeypatch.setattr(module, "FIRST_RETRY", 0.01)
        monkeypatch.setattr(module, "LAST_RETRY", 0.01)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingTransactions:
    return FailingTransactions(monkeypatch)


def reopened(path: Path, facts: dict | None = None) -> list[Record]:
    again = Catalogue.open(path, layout_facts=FACTS if facts is None else facts)
    try:
        return sorted(again.records(), key=lambda found: found.slot)
    finally:
        again.close()


def test_failed_commit_tells_nobody_and_heals(
    catalogue: Catalogue, disk: FailingTransactions, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    catalogue.put(record(1))
    assert catalogue.flush(10)
    disk.broken.set()
    told: list[int] = []
    catalogue.remove([1], told.extend)
    catalogue.put(record(2))
    catalogue.add("stores", 2)
    catalogue.touch([b"key-1"])
    for _ in range(5):  # so many attempts that the database was opened anew in between
        assert disk.attempts.acquire(timeout=10)
    assert told == []
    assert "disk is full" in (catalogue.last_error or "")
    disk.broken.clear()
    assert catalogue.flush(10)
    assert told == [1]
    assert catalogue.last_error is None
    assert [left.slot for left in catalogue.records()] == [2]
    assert read_counters(path.parent) == {"stores": 2}
    warnings = [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert len(warnings) == 1, "one line for the whole outage"


def visit(path: Path) -> None:
    """Let another process open the database for writing, read it and be gone."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute('SELECT count(*) FROM chunks').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True)


def rows_after_a_crash(path: Path) -> int:
    """Count the rows of a copy. Another process makes it: closing a file here would drop SQLite's locks."""
    copies = path.parent.with_name(f"{path.parent.name}-copy")
    subprocess.run(["cp", "-r", path.parent, copies], check=True)
    return resident_chunks(copies)


def test_locks_survive_failures(catalogue: Catalogue, disk: FailingTransactions, tmp_path: Path) -> None:
    path = tmp_path / CATALOGUE_NAME
    disk.broken.set()
    catalogue.put(record(1))
    for _ in range(2 * module.REOPEN_AFTER):
        assert disk.attempts.acquire(timeout=10)
    disk.broken.clear()
    assert catalogue.flush(10)
    visit(path)
    assert Path(f"{path}-wal").exists(), "the visitor took itself for the last one and removed the log"
    for slot in range(2, 5):
        catalogue.put(record(slot))
    assert catalogue.flush(10)
    assert rows_after_a_crash(path) == 4


def test_locks_survive_readers_of_the_same_process(catalogue: Catalogue, tmp_path: Path) -> None:
    path = tmp_path / CATALOGUE_NAME
    catalogue.put(record(1))
    assert catalogue.flush(10)
    with reading(tmp_path) as reader:
        reader.execute("SELECT count(*) FROM chunks").fetchone()
        catalogue.close()
        again = Catalogue.open(path, layout_facts=FACTS)
        visit(path)
        assert Path(f"{path}-wal").exists()
    visit(path)
    assert Path(f"{path}-wal").exists()
    again.put(record(2))
    assert again.flush(10)
    assert rows_after_a_crash(path) == 2
    again.close()


def test_connections_are_forgotten_once_closed(path: Path) -> None:
    for damaged in (False, True):
        if damaged:
            path.write_bytes(b"garbage" * 1000)
        Catalogue.open(path, layout_facts=FACTS).close()
        resident_chunks(path.parent)
    assert not catalogue_connection._living


def remove_all(path: Path) -> None:
    for each in path.parent.glob(f"{CATALOGUE_NAME}*"):
        each.unlink()


def remove_database(path: Path) -> None:
    path.unlink()


def replace_by_earlier_copy(path: Path) -> None:
    path.with_name("copy").replace(path)


def replace_by_junk(path: Path) -> None:
    path.with_name("junk").write_bytes(b"junk" * 1000)
    path.with_name("junk").replace(path)


@pytest.mark.parametrize(
    "harm", [remove_all, remove_database, replace_by_earlier_copy, replace_by_junk], ids=lambda f: f.__name__
)
def test_deleted_database_is_begun_anew(
    harm: Callable[[Path], None], catalogue: Catalogue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue.set_meta(store_id="mine")
    catalogue.put(record(1))
    assert catalogue.flush(10)
    subprocess.run(["cp", path, path.with_name("copy")], check=True)
    catalogue.put(record(2))
    assert catalogue.flush(10)
    harm(path)
    told: list[int] = []
    catalogue.put(record(3))
    catalogue.remove([1], told.extend)
    assert catalogue.flush(10)
    assert told == [1], "a row that is gone cannot come back"
    assert len(caplog.records) == 1
    assert "deleted or replaced" in caplog.text
    assert rows_after_a_crash(path) == 1
    assert catalogue.close()
    again = Catalogue.open(path, layout_facts=FACTS)
    assert again.records() == [record(3)]
    assert again.meta["store_id"] == "mine"
    again.close()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("tail", ["-wal", "-shm"])
def test_deleted_side_file_loses_nothing(catalogue: Catalogue, path: Path, tail: str) -> None:
    catalogue.put(record(1))
    assert catalogue.flush(10)
    Path(f"{path}{tail}").unlink()
    catalogue.put(record(2))
    assert catalogue.flush(10)
    assert rows_after_a_crash(path) == 2


def test_deletion_is_noticed_without_any_change(
    catalogue: Catalogue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove_all(path)
    assert catalogue.flush(10)
    assert path.exists()
    assert "deleted or replaced" in caplog.text


def test_path_that_is_another_owners_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store" / CATALOGUE_NAME
    path.parent.mkdir()
    mine = [True]
    catalogue = Catalogue.open(path, layout_facts=FACTS, owned=lambda: mine[0])
    catalogue.put(record(1))
    assert catalogue.flush(10)
    path.parent.rename(tmp_path / "moved")
    path.parent.mkdir()
    Catalogue.open(path, layout_facts=FACTS).close()
    mine[0] = False
    before = path.read_bytes()
    told: list[int] = []
    catalogue.put(record(2))
    catalogue.remove([1], told.extend)
    assert not catalogue.flush(0.2)
    assert "restart the server" in (catalogue.last_error or "")
    assert told == []
    assert len(caplog.records) == 1
    assert path.read_bytes() == before
    shutil.rmtree(path.parent)
    (tmp_path / "moved").rename(path.parent)
    mine[0] = True
    assert catalogue.flush(10), "the store is back, and nothing is lost"
    assert told == [1]
    assert [left.slot for left in catalogue.records()] == [2]
    assert catalogue.close()


def test_full_queue_drops_puts_but_never_removals(
    catalogue: Catalogue, disk: FailingTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_queue, "MAX_QUEUED_PUTS", 10)
    disk.broken.set()
    told: list[int] = []
    for slot in range(25):
        catalogue.put(record(slot))
        catalogue.remove([1000 + slot], told.extend)
    assert catalogue.dropped_puts == 15
    disk.broken.clear()
    assert catalogue.flush(10)
    assert told == list(range(1000, 1025))
    assert len(catalogue.records()) == 10
    catalogue.put(record(50))
    assert catalogue.dropped_puts == 15


def test_close_gives_up_on_a_broken_disk_and_says_so(
    catalogue: Catalogue, disk: FailingTransactions, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.broken.set()
    catalogue.put(record(1))
    assert not catalogue.close(0.1)
    assert "last changes are lost" in caplog.text
    catalogue.put(record(2))
    assert catalogue.dropped_puts == 1
    with pytest.raises(CatalogueError, match="closed"):
        catalogue.records()
    # An attempt that had begun in time may go on: nobody else has the store before that has ended.
    stopped = threading.Event()
    catalogue.when_stopped(stopped.set)
    assert stopped.wait(30)
    disk.broken.clear()
    assert reopened(path) == []


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold SQLite's lock for writing, as a forgotten session of another program would."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


def test_attempts_on_a_locked_database_are_short_and_end_with_the_lock(
    catalogue: Catalogue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = catalogue_file.set_patience

    def set_patience(connection: catalogue_connection.Connection, seconds: float) -> None:
        # Another test's may still be closing.
        if connection.is_at(path):
            waits.append(seconds)
        real(connection, seconds)

    monkeypatch.setattr(catalogue_file, "set_patience", set_patience)
    monkeypatch.setattr(module, "COMMIT_PATIENCE", 0.05)
    with locked(path):
        catalogue.put(record(1))
        assert not catalogue.flush(0.2)
        assert "locked" in (catalogue.last_error or "")
    assert catalogue.flush(10)
    assert waits and max(waits) <= 0.05


def test_closing_a_locked_catalogue_has_one_deadline(
    catalogue: Catalogue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float | None] = []
    real = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        deadlines.append(timeout)
        real(thread, timeout)

    with locked(path):
        catalogue.put(record(1))
        assert not catalogue.flush(0.01)
        monkeypatch.setattr(threading.Thread, "join", join)
        assert not catalogue.close(0.3)
        assert not catalogue.close(60)
        monkeypatch.undo()
        stopped = threading.Event()
        catalogue.when_stopped(stopped.set)
        assert stopped.wait(10), "attempts end with the deadline, not with the lock"
    assert len(deadlines) == 2
    assert all(each is not None and each <= 0.3 for each in deadlines)
    assert reopened(path) == []


def test_close_makes_a_last_attempt_while_there_is_time(catalogue: Catalogue, path: Path) -> None:
    with locked(path):
        catalogue.put(record(1))
        assert not catalogue.flush(0.01)
        results: list[bool] = []
        closer = threading.Thread(target=lambda: results.append(catalogue.close(30)))
        closer.start()
        while catalogue._give_up is None:
            pass
    closer.join(30)
    assert results == [True]
    assert reopened(path) == [record(1)]


def test_call_that_waits_when_the_catalogue_ends_is_refused(catalogue: Catalogue) -> None:
    entered, gate = threading.Event(), threading.Event()
    catalogue.remove([1], lambda slots: (entered.set(), gate.wait(10)))
    assert entered.wait(10)
    errors: list[CatalogueError] = []

    def read() -> None:
        try:
            catalogue.records()
        except CatalogueError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not catalogue._calls:
        pass
    assert not catalogue.close(0)
    stopped = threading.Event()
    catalogue.when_stopped(stopped.set)
    assert not stopped.is_set()
    gate.set()
    reader.join(10)
    assert stopped.wait(10)
    assert "closed" in str(errors[0])


@pytest.mark.parametrize("change", ["put", "remove", "clear", "add"])
def test_flush_covers_whatever_was_queued(
    change: str, catalogue: Catalogue, disk: FailingTransactions, path: Path
) -> None:
    catalogue.put(record(1))
    assert catalogue.flush(10)
    disk.broken.set()
    told: list[int] = []
    {
        "put": lambda: catalogue.put(record(2)),
        "remove": lambda: catalogue.remove([1], told.extend),
        "clear": lambda: catalogue.clear(told.extend),
        "add": lambda: catalogue.add("hits", 1),
    }[change]()
    assert not catalogue.flush(0.05)
    assert not catalogue.flush(0), "still not"
    assert told == []
    disk.broken.clear()
    assert catalogue.flush(10)
    assert told == ([1] if change in ("remove", "clear") else [])
    assert rows_after_a_crash(path) == {"put": 2, "remove": 0, "clear": 0, "add": 1}[change]


def test_flush_tries_at_once_even_in_a_long_pause(
    catalogue: Catalogue, disk: FailingTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY", 1000)
    monkeypatch.setattr(module, "LAST_RETRY", 1000)
    disk.broken.set()
    catalogue.clear(lambda slots: None)
    assert disk.attempts.acquire(timeout=10)
    while catalogue.last_error is None:
        pass
    disk.broken.clear()
    assert catalogue.flush(30)


def test_changes_after_the_end_are_never_called_durable(catalogue: Catalogue) -> None:
    assert catalogue.close()
    catalogue.clear(lambda slots: None)
    assert not catalogue.flush(30)


def test_failing_callback_does_not_stop_the_writer(
    catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(slots: Sequence[int]) -> None:
        raise RuntimeError("planner's fault")

    catalogue.remove([1], fail)
    catalogue.put(record(1))
    assert catalogue.flush(10)
    assert len(catalogue.records()) == 1
    assert "planner's fault" in caplog.text
