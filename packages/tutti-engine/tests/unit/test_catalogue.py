# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tutti_engine import catalogue as module
from tutti_engine import catalogue_connection, catalogue_file
from tutti_engine.catalogue import CATALOGUE_NAME, Catalogue, Record, read_counters, resident_chunks
from tutti_engine.catalogue_reading import reading
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


def test_records_come_back_after_a_restart(catalogue: Catalogue, path: Path) -> None:
    stored = [record(slot, sums=(bytes([slot]) * 8, bytes([slot + 1]) * 8)) for slot in range(100)]
    for each in stored:
        catalogue.put(each)
    assert catalogue.close()
    assert reopened(path) == stored


def test_put_replaces_the_row_of_its_key_and_of_its_slot(catalogue: Catalogue) -> None:
    catalogue.put(record(1, key=b"a"))
    catalogue.put(record(2, key=b"b"))
    catalogue.put(record(1, key=b"b"))
    assert catalogue.flush(10)
    assert catalogue.records() == [record(1, key=b"b")]


def test_removal_is_told_only_after_another_reader_cannot_see_the_row(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    catalogue.put(record(1))
    catalogue.put(record(2))
    seen: list[tuple[list[int], int]] = []
    catalogue.remove([1, 7], lambda slots: seen.append((list(slots), resident_chunks(tmp_path))))
    assert catalogue.flush(10)
    assert seen == [([1, 7], 1)]
    assert [left.slot for left in catalogue.records()] == [2]


def test_order_of_changes_is_kept(catalogue: Catalogue) -> None:
    for slot in range(20):
        catalogue.put(record(slot))
        if slot % 2:
            catalogue.remove([slot], lambda slots: None)
    catalogue.put(record(1, key=b"new"))
    assert catalogue.flush(10)
    assert sorted(left.slot for left in catalogue.records()) == [*sorted({1, *range(0, 20, 2)})]


def test_many_removals_come_in_bounded_transactions(catalogue: Catalogue) -> None:
    told: list[Sequence[int]] = []
    catalogue.remove(range(1000), told.append)
    assert catalogue.flush(10)
    assert [slot for slots in told for slot in slots] == list(range(1000))
    assert max(map(len, told)) <= catalogue_file.MAX_COMMIT_OPERATIONS


def test_clear_tells_the_slots_that_had_rows(catalogue: Catalogue) -> None:
    told: list[list[int]] = []
    for slot in (3, 5):
        catalogue.put(record(slot))
    catalogue.clear(lambda slots: told.append(sorted(slots)))
    catalogue.put(record(9))
    assert catalogue.flush(10)
    assert told == [[3, 5]]
    assert [left.slot for left in catalogue.records()] == [9]


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
    monkeypatch.setattr(module, "MAX_QUEUED_PUTS", 10)
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
        waits.append(seconds)
        real(connection, seconds)

    monkeypatch.setattr(catalogue_file, "set_patience", set_patience)
    monkeypatch.setattr(module, "COMMIT_PATIENCE", 0.05)
    with locked(path):
        catalogue.put(record(1))
        assert not catalogue.flush(0.2)
        assert "locked" in (catalogue.last_error or "")
    assert catalogue.flush(10)
    assert max(waits) <= 0.05


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


def test_callback_may_queue_more(catalogue: Catalogue) -> None:
    catalogue.put(record(1))
    catalogue.remove([1], lambda slots: catalogue.put(record(slots[0], key=b"next")))
    assert catalogue.flush(10)
    assert catalogue.flush(10)
    assert [left.key for left in catalogue.records()] == [b"next"]


def test_touch_moves_last_use_forward(catalogue: Catalogue) -> None:
    catalogue.put(record(1))
    catalogue.put(record(2))
    catalogue.touch([b"key-1", b"unknown"])
    assert catalogue.flush(10)
    used = {found.slot: found.last_used for found in catalogue.records()}
    assert used[1] > used[2] == 1_700_000_000


def test_counters_only_grow_and_survive(catalogue: Catalogue, path: Path) -> None:
    catalogue.add("bytes_read", 5)
    catalogue.add("bytes_read", 7)
    catalogue.add("hits", 0)
    with pytest.raises(ValueError, match="hits"):
        catalogue.add("hits", -1)
    assert catalogue.flush(10)
    assert read_counters(path.parent) == {"bytes_read": 12}
    catalogue.close()
    other = Catalogue.open(path, layout_facts={"other": 1})
    other.add("bytes_read", 1)
    other.close()
    assert read_counters(path.parent) == {"bytes_read": 13}


def test_other_layout_drops_rows_with_one_line(
    catalogue: Catalogue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue.put(record(1))
    catalogue.set_meta(chunks_per_file=7)
    catalogue.close()
    assert len(reopened(path)) == 1
    assert not caplog.records
    assert reopened(path, {"ranks": 2}) == []
    assert len(caplog.records) == 1
    again = Catalogue.open(path, layout_facts={"ranks": 2})
    assert again.meta == {"layout_facts": {"ranks": 2}}
    again.close()


def damage_header(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def damage_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def make_foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE somebody_elses (value)")
    connection.close()


def make_newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()


def change_columns(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE chunks ADD COLUMN more")
    connection.close()


@pytest.mark.parametrize(
    "damage", [damage_header, damage_page, truncate, make_foreign, make_newer, change_columns]
)
def test_unusable_file_is_kept_aside_and_replaced(
    damage: object, catalogue: Catalogue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for slot in range(200):
        catalogue.put(record(slot))
    catalogue.close()
    damage(path)  # type: ignore[operator]
    before = path.read_bytes()
    assert reopened(path) == []
    assert len(caplog.records) == 1
    assert path.with_name(f"{CATALOGUE_NAME}.damaged-1").read_bytes() == before
    damage(path)  # type: ignore[operator]
    assert reopened(path) == []
    assert path.with_name(f"{CATALOGUE_NAME}.damaged-2").exists()
    assert not path.with_name(f"{CATALOGUE_NAME}.damaged-1").exists(), "the newest is enough"


def test_only_the_newest_damaged_file_is_kept(path: Path) -> None:
    other = path.with_name(f"{CATALOGUE_NAME}.damaged-by-me")
    other.write_bytes(b"not ours")
    for turn in range(12):
        path.write_bytes(b"garbage %d" % turn)
        Path(f"{path}-wal").write_bytes(b"log")
        assert reopened(path) == []
    aside = sorted(each.name for each in path.parent.glob("*.damaged-*") if each != other)
    assert aside == [f"{CATALOGUE_NAME}.damaged-12", f"{CATALOGUE_NAME}.damaged-12-wal"]
    assert path.with_name(aside[0]).read_bytes() == b"garbage 11"
    assert other.exists()


def test_log_of_a_damaged_file_goes_aside_with_it(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)
    Path(f"{path}-wal").write_bytes(b"old log")
    assert reopened(path) == []
    assert Path(f"{path}.damaged-1-wal").read_bytes() == b"old log"


@pytest.mark.parametrize("name", ["", "-wal", "-shm"])
def test_links_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    Path(f"{path}{name}").symlink_to(target)
    with pytest.raises(CatalogueError, match="not a plain file"):
        Catalogue.open(path, layout_facts=FACTS)
    assert target.read_bytes() == b"precious"


def test_files_are_private(catalogue: Catalogue, path: Path) -> None:
    catalogue.put(record(1))
    assert catalogue.flush(10)
    for name in ("", "-wal", "-shm"):
        assert stat.S_IMODE(Path(f"{path}{name}").stat().st_mode) == 0o600


def test_no_place_for_a_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="check space and permissions"):
        Catalogue.open(tmp_path / "missing" / CATALOGUE_NAME, layout_facts=FACTS)


@pytest.mark.parametrize(
    "bad",
    [
        record(1, key=b""),
        record(1, key=b"k" * 65),
        record(-1),
        record(1 << 63),
        record(1, sums=()),
        record(1, sums=(b"12345678", b"1234")),
        record(1)._replace(generation=-1),
        record(1)._replace(last_used="now"),
    ],
)
def test_records_that_would_block_a_commit_are_refused(catalogue: Catalogue, bad: Record) -> None:
    with pytest.raises(ValueError, match="must be"):
        catalogue.put(bad)


@pytest.mark.parametrize(("time", "kept"), [(-5, 0), (1 << 80, 1 << 62)])
def test_time_of_a_clock_that_is_off_is_clamped(catalogue: Catalogue, time: int, kept: int) -> None:
    catalogue.put(record(1)._replace(last_used=time))
    assert catalogue.flush(10)
    assert [found.last_used for found in catalogue.records()] == [kept]


def test_other_processes_read_beside_the_owner_and_after_it(catalogue: Catalogue, path: Path) -> None:
    catalogue.put(record(1))
    catalogue.add("hits", 3)
    assert catalogue.flush(10)
    script = (
        "import sys; from tutti_engine.catalogue import *;"
        "print(resident_chunks(sys.argv[1]), read_counters(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def read() -> str:
        return subprocess.check_output(
            [sys.executable, "-c", script, path.parent], text=True, env=environment
        )

    assert read() == "1 {'hits': 3}\n"
    catalogue.close()
    files = sorted(path.parent.iterdir())
    assert read() == "1 {'hits': 3}\n"
    assert sorted(path.parent.iterdir()) == files, "reading leaves nothing behind"


@pytest.mark.parametrize("name", [b"not-utf-8-\xff", "ü☃".encode(), b"per%41cent", b"q?x#y&mode=rw"])
def test_store_below_any_name_can_be_read(name: bytes, tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    directory.mkdir()
    catalogue = Catalogue.open(directory / CATALOGUE_NAME, layout_facts=FACTS)
    catalogue.put(record(1))
    catalogue.add("hits", 2)
    assert catalogue.flush(10)
    assert resident_chunks(directory) == 1
    catalogue.close()
    assert (resident_chunks(directory), read_counters(directory)) == (1, {"hits": 2})


def test_reading_nothing_is_an_error_and_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot read"):
        read_counters(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checksum_bytes", [16, 700, 2100, 20_000])
def test_files_stay_below_the_reserved_size(tmp_path: Path, checksum_bytes: int) -> None:
    rows = 600
    limit = catalogue_file.reserved_bytes(rows, checksum_bytes)
    directory = tmp_path / "store"
    directory.mkdir()
    catalogue = Catalogue.open(directory / CATALOGUE_NAME, layout_facts=FACTS)
    largest = 0
    for turn in range(6):
        order = [(slot * 389 + turn * 57) % rows for slot in range(rows)]
        if turn % 2:
            catalogue.remove(order[: rows // 2], lambda slots: None)
        for slot in order:
            catalogue.put(record(slot, key=os.urandom(64), sums=(os.urandom(checksum_bytes),)))
            if slot % 100 == 0:
                catalogue.flush(10)
                largest = max(largest, sum(each.stat().st_blocks * 512 for each in directory.iterdir()))
    catalogue.close()
    assert largest < limit


def test_reader_that_never_ends_stops_commits_before_the_log_outgrows_its_bound(
    catalogue: Catalogue, path: Path
) -> None:
    with sqlite3.connect(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM chunks").fetchone()
        wal = Path(f"{path}-wal")
        for slot in range(200):
            catalogue.put(record(slot, sums=(os.urandom(40_000),)))
        catalogue.flush(0.2)  # one transaction may still fit
        catalogue.put(record(200))
        assert not catalogue.flush(0.2)
        assert wal.stat().st_size < catalogue_file.reserved_bytes(201, 40_000)
        reader.rollback()
    reader.close()
    assert catalogue.flush(30)
