# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutti_engine.catalogue import mirror as catalogue_mirror
from tutti_engine.catalogue.ahead import Ahead
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Catalogue, Record
from tutti_engine.catalogue.residents import Residents
from tutti_engine.catalogue.slot_table import SLOT_TABLE_NAME, SlotTable, table_bytes

SLOTS = 24
RANKS = 2
PART = 16
FACTS = {"ranks": RANKS}


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> Iterator[None]:
    """Tables for stores of any size, made durable often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue_mirror, "MIN_SLOTS", 1)
        patch.setattr(catalogue_mirror, "SYNC_CHANGES", 5)
        patch.setattr(catalogue_mirror, "BUILD_SLOTS", 7)
        yield


def record(slot: int, key: int, generation: int = 1) -> Record:
    sums = tuple(bytes([slot, rank, generation % 256, key % 256]) * 4 for rank in range(RANKS))
    return Record(b"key-%d" % key, slot, generation, sums, 1000 + generation)


def open_catalogue(directory: Path, slots: int = SLOTS) -> tuple[Catalogue, Residents]:
    catalogue = Catalogue.open(directory / CATALOGUE_NAME, layout_facts=FACTS)
    return catalogue, catalogue.residents(slots, RANKS, PART)


def complete(catalogue: Catalogue) -> None:
    while not catalogue.table_complete:
        catalogue.flush(0.01)


def by_slot(records: Residents | list[Record]) -> list[Record]:
    return sorted(records, key=lambda each: each.slot)


def from_table_alone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Residents:
    """Open, failing if the rows are read from the database."""
    with monkeypatch.context() as patch:
        patch.setattr(Ahead, "read", lambda *_: pytest.fail("the table was not used"))
        catalogue, found = open_catalogue(directory)
        catalogue.close()
    return found


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, SLOTS - 1), st.integers(0, 11)),
        st.tuples(st.just("remove"), st.integers(0, SLOTS - 1)),
        st.tuples(st.just("touch"), st.integers(0, 11)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("clear")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("crash")),
    ),
    max_size=30,
)


@given(steps=steps)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_table_and_database_tell_the_same_after_any_history(steps: list[tuple], tmp_path: Path) -> None:
    directory = tmp_path / "a"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    catalogue, _ = open_catalogue(directory)
    for number, (what, *values) in enumerate(steps):
        if what == "put":
            catalogue.put(record(values[0], values[1], number))
        elif what == "remove":
            catalogue.remove([values[0]], lambda slots: None)
        elif what == "touch":
            catalogue.touch([b"key-%d" % values[0]])
        elif what == "flush":
            complete(catalogue)
            assert catalogue.flush(10)
        elif what == "clear":
            catalogue.clear(lambda slots: None)
        else:
            if what == "crash":
                # What a kill leaves: the files as they are, committed or not.
                catalogue.flush(10)
                other = directory.with_name(f"{directory.name}x")
                shutil.copytree(directory, other)
                catalogue.close()
                shutil.rmtree(directory)
                other.rename(directory)
            catalogue.close()
            catalogue, found = open_catalogue(directory)
            assert by_slot(found) == by_slot(catalogue.records())
    catalogue.close()


def filled(directory: Path) -> None:
    catalogue, found = open_catalogue(directory)
    assert found == []
    complete(catalogue)
    for slot in range(SLOTS):
        catalogue.put(record(slot, slot))
    catalogue.close()


def test_start_reads_the_table_and_not_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    assert by_slot(from_table_alone(tmp_path, monkeypatch)) == [record(slot, slot) for slot in range(SLOTS)]


def test_crash_before_the_table_is_durable_costs_a_look_at_changed_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr(catalogue_mirror, "SYNC_CHANGES", 1000)
    before = (tmp_path / SLOT_TABLE_NAME).read_bytes()
    catalogue, _ = open_catalogue(tmp_path)
    catalogue.put(record(3, 99, 7))
    catalogue.remove([4], lambda slots: None)
    catalogue.touch([b"key-5"])
    assert catalogue.flush(10)
    wanted = by_slot(catalogue.records())
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for path in tmp_path.glob("catalogue*"):
        shutil.copy(path, crashed)
    # The page cache is lost: the file is as it was when it was last made durable.
    (crashed / SLOT_TABLE_NAME).write_bytes(before)
    catalogue.close()
    assert by_slot(from_table_alone(crashed, monkeypatch)) == wanted
    assert by_slot(from_table_alone(crashed, monkeypatch)) == wanted, "the file was brought up to date"


def shorten(path: Path) -> None:
    os.truncate(path, table_bytes(SLOTS, RANKS * PART) - 1)


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def replace_by_another_stores(path: Path) -> None:
    SlotTable.create(path, SLOTS, RANKS * PART).close()


def set_a_time_in_the_far_future(path: Path) -> None:
    table = SlotTable.open(path, path_id(path), SLOTS, RANKS * PART)
    assert table is not None
    table.touch(0, (1 << 63) - 1)
    table.close()


def path_id(path: Path) -> str:
    return path.read_bytes()[12:28].decode()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "damage",
    [shorten, overwrite, replace_by_another_stores, set_a_time_in_the_far_future, link, Path.unlink],
)
def test_table_that_cannot_be_believed_is_made_anew(
    damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    damage(tmp_path / SLOT_TABLE_NAME)
    catalogue, found = open_catalogue(tmp_path)
    assert by_slot(found) == [record(slot, slot) for slot in range(SLOTS)]
    complete(catalogue)
    catalogue.close()
    assert len(from_table_alone(tmp_path, monkeypatch)) == SLOTS


def test_another_size_of_the_store_makes_another_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    catalogue, found = open_catalogue(tmp_path, SLOTS + 5)
    assert len(found) == SLOTS
    catalogue.close()
    assert (tmp_path / SLOT_TABLE_NAME).stat().st_size == table_bytes(SLOTS + 5, RANKS * PART)


def test_dropped_rows_do_not_come_back_from_the_table(tmp_path: Path) -> None:
    filled(tmp_path)
    catalogue = Catalogue.open(tmp_path / CATALOGUE_NAME, layout_facts=FACTS)
    assert catalogue.drop_rows("slot = 4") == 1
    catalogue.close()
    catalogue, found = open_catalogue(tmp_path)
    assert 4 not in found.slots
    catalogue.close()


def test_owner_that_keeps_no_table_makes_it_void(tmp_path: Path) -> None:
    filled(tmp_path)
    catalogue = Catalogue.open(tmp_path / CATALOGUE_NAME, layout_facts=FACTS)
    catalogue.remove([4], lambda slots: None)
    catalogue.close()
    catalogue, found = open_catalogue(tmp_path)
    assert 4 not in found.slots
    catalogue.close()


def test_disk_that_refuses_the_table_costs_only_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(SlotTable, "put", refuse)
        catalogue, _ = open_catalogue(tmp_path)
        catalogue.put(record(2, 50, 9))
        assert catalogue.flush(10), catalogue.last_error
        catalogue.remove([7], lambda slots: None)
        assert catalogue.flush(10), catalogue.last_error
        catalogue.close()
    catalogue, found = open_catalogue(tmp_path)
    assert record(2, 50, 9) in list(found)
    assert 7 not in found.slots, "what came after it was given up is not believed of it"
    catalogue.close()


def test_residents_are_a_sequence_of_records(tmp_path: Path) -> None:
    filled(tmp_path)
    catalogue, found = open_catalogue(tmp_path)
    catalogue.close()
    assert len(found) == SLOTS
    assert found[0] == record(0, 0)
    assert found[-1] == record(SLOTS - 1, SLOTS - 1)
    assert found[2:4] == [record(2, 2), record(3, 3)]
    assert found.checksums.get(5) == record(5, 5).checksums
    found.checksums.set(5, (b"a" * PART, b"b" * PART))
    assert found.checksums.get(5) == (b"a" * PART, b"b" * PART)
    for slot, parts in ((SLOTS, (b"a" * PART,) * 2), (0, (b"a" * PART,)), (0, (b"a", b"b"))):
        with pytest.raises(ValueError):
            found.checksums.set(slot, parts)
    found.clear()
    assert len(found) == 0


def test_checksums_are_read_from_the_file_and_only_those_on_their_way_are_in_memory(tmp_path: Path) -> None:
    filled(tmp_path)
    catalogue, found = open_catalogue(tmp_path)
    sums = found.checksums
    assert sums.in_memory == 0
    new = (b"n" * PART, b"N" * PART)
    sums.set(3, new)
    assert (sums.get(3), sums.in_memory) == (new, 1), "seen before it is in the file"
    catalogue.put(Record(b"new", 3, 99, new, 7))
    assert catalogue.flush(10), catalogue.last_error
    assert (sums.get(3), sums.in_memory) == (new, 0)
    sums.set(4, new)
    sums.forget(4)
    assert sums.in_memory == 0
    catalogue.close()
    assert sums.get(5) == record(5, 5).checksums, "also after the end of its writer"


def test_checksums_move_to_the_file_once_it_is_complete(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / SLOT_TABLE_NAME).unlink()
    catalogue, found = open_catalogue(tmp_path)
    new = (b"n" * PART, b"N" * PART)
    found.checksums.set(3, new)
    catalogue.put(Record(b"new", 3, 99, new, 7))
    found.checksums.set(4, new)
    complete(catalogue)
    assert found.checksums.in_memory == 1, "what was never put stays where it is"
    assert [found.checksums.get(slot) for slot in (3, 4)] == [new, new]
    assert found.checksums.get(5) == record(5, 5).checksums
    catalogue.close()


def test_a_file_that_is_cut_short_gives_no_checksums_that_could_verify(tmp_path: Path) -> None:
    filled(tmp_path)
    catalogue, found = open_catalogue(tmp_path)
    os.truncate(tmp_path / SLOT_TABLE_NAME, 4096)
    assert found.checksums.get(5) == (bytes(PART), bytes(PART))
    catalogue.close()
