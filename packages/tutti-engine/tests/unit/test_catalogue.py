# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tutti_engine.catalogue import file as catalogue_file
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Catalogue, Record, read_counters, resident_chunks
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


@pytest.mark.parametrize("damage", [damage_header, damage_page, truncate, make_foreign, change_columns])
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


def test_catalogue_of_a_newer_version_is_kept_for_ever(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = []
    for turn in range(3):
        assert reopened(path) == []
        make_newer(path)
        kept.append(path.read_bytes())
        assert reopened(path) == []
        path.write_bytes(b"damaged later")
        reopened(path)
        assert [
            path.with_name(f"{CATALOGUE_NAME}.newer-{n + 1}").read_bytes() for n in range(turn + 1)
        ] == kept
    assert "its schema is version 999, this program reads up to 2" in caplog.records[0].message


def make_first_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        for statement in catalogue_file.SCHEMAS[1]:
            connection.execute(statement)
        connection.execute("INSERT INTO chunks VALUES (3, x'6b65792d33', 1, 1, ?, 1700000000)", (b"c" * 16,))
        connection.execute("INSERT INTO counters VALUES ('stored', 7)")
        connection.execute("INSERT INTO meta VALUES ('layout_facts', ?)", ('{"num_layers": 2, "ranks": 1}',))
        connection.execute(f"PRAGMA application_id = {catalogue_file.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def test_catalogue_of_the_first_version_is_taken_over(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_first_version(path)
    assert reopened(path) == [record(3)]
    assert reopened(path) == [record(3)], "once more, now that it is of today's version"
    assert read_counters(path.parent) == {"stored": 7}
    assert not caplog.records


def test_large_database_is_verified_while_it_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catalogue_file, "CHECKED_PAGES", 0)
    catalogue = Catalogue.open(path, layout_facts=FACTS)
    for slot in range(3000):
        catalogue.put(record(slot))
    catalogue.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE chunks SET key = 'text' WHERE slot = 2900")
    connection.close()
    catalogue = Catalogue.open(path, layout_facts=FACTS)
    catalogue.put(record(5000))
    assert catalogue.flush(10)
    catalogue.residents(6000, 1, 16)
    while not catalogue.table_complete:
        catalogue.flush(0.01)
    catalogue.put(record(1))
    assert catalogue.flush(10)
    assert [left.slot for left in catalogue.records()] == [1], "a new database was begun"
    catalogue.close()
    assert [entry.message for entry in caplog.records if "slot 2900 is no record" in entry.message]
    assert path.with_name(f"{CATALOGUE_NAME}.damaged-1").exists()


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
        "import sys; from tutti_engine.catalogue.catalogue import *;"
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


def test_slot_that_fails_twice_is_used_no_more(catalogue: Catalogue, path: Path) -> None:
    told: list[int] = []
    for turn in range(2):
        for slot in (1, 2):
            catalogue.put(record(slot))
        catalogue.remove([1], told.extend, suspect=True)
        catalogue.remove([2], told.extend)
        assert catalogue.flush(10)
        assert told == ([1, 2] if turn == 0 else [1, 2, 2])
    assert catalogue.records() == []
    catalogue.close()
    again = Catalogue.open(path, layout_facts=FACTS)
    assert again.retired_slots(5) == [1]
    assert again.retired_slots(0) == [], "too many to be the places' fault"
    assert again.retired_slots(5) == []
    again.close()
