# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Record
from tutti_engine.errors import GeometryError, RootError, StoreBusyError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.plan import ChunkKey, StorePlan, StoreResult
from tutti_engine.planning.planner import Planner
from tutti_engine.store import local_store
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.local_store import LocalStore, bytes_needed, chunks_that_fit
from tutti_engine.store.slot_order import slot_order

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
NAMESPACE = Namespace({"model": "../../etc/passwd"})
SUMS = (b"s" * 16,)


def capacity_for(chunks: int, *, ranks: int = 1, roots: int = 1, geometry: Geometry = GEOMETRY) -> int:
    return bytes_needed(chunks, geometry=geometry, ranks=ranks, roots=roots)


def open_store(*roots: Path, chunks: int = 8, ranks: int = 1, geometry: Geometry = GEOMETRY) -> LocalStore:
    capacity = capacity_for(chunks, ranks=ranks, roots=len(roots), geometry=geometry)
    return LocalStore.open(roots, NAMESPACE, geometry, ranks=ranks, capacity_bytes=capacity)


def fill(store: LocalStore, ranks: int = 1) -> None:
    for slot in store.chunk_ids:
        store.catalogue.put(Record(b"key-%d" % slot, slot, 1, SUMS * ranks, 1))


def make_files(layout: StoreLayout, ranks: int = 1) -> None:
    for rank in range(ranks):
        for number in layout.files():
            path = Path(layout.file_path(rank, number))
            path.parent.mkdir(exist_ok=True)
            path.touch()
            os.truncate(path, layout.file_bytes(number))


def slots(store: LocalStore) -> list[int]:
    return sorted(record.slot for record in store.records)


def test_store_comes_back_with_its_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(tmp_path / "new" / "root") as store:
        assert store.records == []
        assert store.chunk_ids == range(8)
        fill(store)
        before = store.layout
    with open_store(tmp_path / "new" / "root") as store:
        assert store.layout == before
        assert slots(store) == list(range(8))
        assert store.dropped_records == 0
    assert not caplog.records


def test_only_the_digest_names_a_path_and_all_is_private(tmp_path: Path) -> None:
    root = tmp_path / "cache" / "kv"
    with open_store(root) as store:
        assert store.directory == root / NAMESPACE.digest
        assert "../../etc/passwd" in (store.directory / "namespace.json").read_text()
        for path in (root.parent, root, store.directory):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in store.directory.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_namespaces_do_not_meet(tmp_path: Path) -> None:
    other = Namespace({"model": "other"})
    with (
        open_store(tmp_path) as one,
        LocalStore.open([tmp_path], other, GEOMETRY, ranks=1, capacity_bytes=2 * capacity_for(8)) as two,
    ):
        fill(one)
        assert one.catalogue.flush(10)
        assert two.catalogue.records() == []


def test_other_namespaces_in_the_roots_are_told_in_one_line_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roots = (tmp_path / "a", tmp_path / "b")
    old = [Namespace({"model": "old", "version": version}) for version in range(3)]
    for namespace in old:
        capacity = 3 * capacity_for(8, roots=2)
        with LocalStore.open(roots, namespace, GEOMETRY, ranks=1, capacity_bytes=capacity) as store:
            for number in store.layout.files():
                path = Path(store.layout.file_path(0, number))
                path.parent.mkdir()
                path.write_bytes(bytes(store.layout.file_bytes(number)))
    (roots[0] / "holiday-photos").mkdir()
    (roots[0] / "holiday-photos" / "beach.jpg").write_bytes(bytes(1 << 20))
    (roots[1] / ("0" * 32)).symlink_to(roots[0] / "holiday-photos")
    (roots[1] / ("1" * 32)).write_bytes(bytes(1 << 20))
    directories = [root / namespace.digest for root in roots for namespace in old]
    before = sorted(path for each in directories for path in each.rglob("*"))
    used = sum(path.lstat().st_blocks * 512 for path in before if path.is_file())
    caplog.clear()
    with open_store(*roots, chunks=500) as store:
        assert len(caplog.records) == 1
        assert f"3 other stores in the same place take {used} bytes of capacity_bytes" in caplog.text
        assert "can be removed" in caplog.text
        assert 0 < store.layout.num_chunks < 500, "they count"
    assert sorted(path for each in directories for path in each.rglob("*")) == before


def test_second_owner_is_refused_by_any_shared_root(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    with open_store(first, second):
        with pytest.raises(StoreBusyError) as caught:
            open_store(second)
        assert caught.value.pid == os.getpid()
    open_store(second).close()


def test_failed_open_leaves_no_lock(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    bad.write_text("a file")
    with pytest.raises(RootError, match="not a directory"):
        open_store(good, bad)
    open_store(good).close()


def link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def link_namespace(path: Path) -> None:
    path.mkdir()
    (path.parent / "elsewhere").mkdir()
    (path / NAMESPACE.digest).symlink_to(path.parent / "elsewhere")


def link_rank(path: Path) -> None:
    open_store(path).close()
    (path.parent / "elsewhere").mkdir()
    (path / NAMESPACE.digest / "rank-0").symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("prepare", [link, link_namespace, link_rank])
def test_links_from_the_root_downwards_are_refused(prepare: Callable[[Path], None], tmp_path: Path) -> None:
    prepare(tmp_path / "root")
    with pytest.raises(RootError, match="symbolic link"):
        open_store(tmp_path / "root")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_link_above_the_root_is_the_users_business(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "shortcut").symlink_to(tmp_path / "real")
    open_store(tmp_path / "shortcut" / "root").close()
    assert (tmp_path / "real" / "root").is_dir()


def test_root_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RootError, match="twice"):
        open_store(tmp_path / "a", tmp_path / "x" / ".." / "a")


def test_shared_directory_is_used_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    open_store(root).close()
    assert "chmod 700" in caplog.text


def test_capacity_below_one_chunk_names_the_smallest_that_works(tmp_path: Path) -> None:
    smallest = capacity_for(1)
    with pytest.raises(GeometryError, match=f"the smallest that works is {smallest}$"):
        LocalStore.open([tmp_path / "r"], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=smallest - 1)
    assert not (tmp_path / "r").exists()
    with LocalStore.open([tmp_path / "r"], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=smallest) as store:
        assert store.layout.num_chunks == 1


@given(st.integers(1, 10**13), st.integers(1, 4), st.integers(1, 3), st.integers(1, 200))
def test_capacity_is_used_up_and_never_passed(capacity: int, ranks: int, roots: int, layers: int) -> None:
    geometry = Geometry(num_layers=layers, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
    shape = {"geometry": geometry, "ranks": ranks, "roots": roots}
    try:
        count = chunks_that_fit(capacity, **shape)
    except GeometryError:
        assert bytes_needed(1, **shape) > capacity
    else:
        assert bytes_needed(count, **shape) <= capacity < bytes_needed(count + 1, **shape)


def test_everything_on_disk_stays_within_the_capacity(tmp_path: Path) -> None:
    ranks, chunks = 2, 300
    geometry = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=1, page_bytes=4096)
    roots = (tmp_path / "a", tmp_path / "b")
    with open_store(*roots, chunks=chunks, ranks=ranks, geometry=geometry) as store:
        for rank in range(ranks):
            for number in store.layout.files():
                path = Path(store.layout.file_path(rank, number))
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"x" * store.layout.file_bytes(number))
        for turn in range(3):
            for slot in store.chunk_ids:
                store.catalogue.put(Record(os.urandom(64), slot, turn, (b"s" * 24,) * ranks, 1))
            store.catalogue.flush(10)
        used = sum(
            path.lstat().st_blocks * 512
            for directory in store.layout.directories
            for path in [Path(directory), *Path(directory).rglob("*")]
        )
    assert used <= capacity_for(chunks, ranks=ranks, roots=2, geometry=geometry)


def test_growing_keeps_every_chunk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(tmp_path, chunks=8) as store:
        fill(store)
        small = store.layout
    with open_store(tmp_path, chunks=50) as store:
        assert slots(store) == list(range(8))
        assert store.layout.num_chunks == 50
        assert [store.layout.locate(slot, 1) for slot in range(8)] == [
            small.locate(slot, 1) for slot in range(8)
        ]
    assert not caplog.records


def test_shrinking_drops_chunks_without_a_place_and_frees_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = (tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(local_store, "choose_chunks_per_file", lambda **sizes: 3)
    with open_store(*roots, chunks=20) as store:
        fill(store)
        make_files(store.layout)
        keep = store.directory / "rank-0" / "notes.txt"
        keep.write_text("not ours")
    with open_store(*roots, chunks=5) as store:
        assert slots(store) == list(range(5))
        assert store.dropped_records == 15
        found = {
            path: path.stat().st_size
            for directory in store.layout.directories
            for path in Path(directory).rglob("*.seg")
        }
        layout = store.layout
        assert found == {Path(layout.file_path(0, n)): layout.file_bytes(n) for n in layout.files()}
        assert keep.exists()


@pytest.mark.parametrize(("before", "after"), [("a", "ab"), ("ab", "a"), ("ab", "abc"), ("abc", "ab")])
def test_other_number_of_roots_leaves_no_file_in_a_place_that_is_not_its_own(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "choose_chunks_per_file", lambda **sizes: 3)
    with open_store(*(tmp_path / name for name in before), chunks=24) as store:
        make_files(store.layout)
        assert len(store.layout.files()) > len(before)
    with open_store(*(tmp_path / name for name in after), chunks=24) as store:
        found = {path for each in store.layout.directories for path in Path(each).rglob("*.seg")}
        assert found <= {Path(store.layout.file_path(0, number)) for number in store.layout.files()}
        assert found, "files that are in their place stay"


def test_database_of_a_larger_store_is_cut_to_its_new_share(tmp_path: Path) -> None:
    tall = Geometry(num_layers=400, block_tokens=16, blocks_per_chunk=1, page_bytes=4096)
    with open_store(tmp_path, chunks=2000, geometry=tall) as store:
        for slot in store.chunk_ids:
            store.catalogue.put(Record(b"key-%d" % slot, slot, 1, (bytes(3200),), 1))
    path = store.directory / CATALOGUE_NAME
    before = path.stat().st_size
    with open_store(tmp_path, chunks=50, geometry=tall) as store:
        assert slots(store) == list(range(50))
        assert path.stat().st_size < before // 10


def test_growth_beyond_the_file_bound_starts_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_store, "choose_chunks_per_file", lambda **sizes: 1)
    with open_store(tmp_path, chunks=30) as store:
        fill(store)
    monkeypatch.undo()
    with open_store(tmp_path, chunks=40) as store:
        assert store.records == []
        assert len(store.layout.files()) == 1
    assert "larger files" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("change", ["roots", "order", "ranks", "geometry"])
def test_other_shape_starts_empty_with_one_line(
    change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, three = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    with open_store(one, two, ranks=1) as store:
        fill(store)
        make_files(store.layout)
    other = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=4096)
    with {
        "roots": lambda: open_store(one, three),
        "order": lambda: open_store(two, one),
        "ranks": lambda: open_store(one, two, ranks=2),
        "geometry": lambda: open_store(one, two, geometry=other),
    }[change]() as store:
        assert store.records == []
        assert not (two / NAMESPACE.digest / CATALOGUE_NAME).exists() or change == "order"
        assert not (one / NAMESPACE.digest / CATALOGUE_NAME).exists() or change != "order"
    # In another order the old catalogue is not even read: it lies in what is now the second root.
    assert len(caplog.records) == (0 if change == "order" else 1)


def test_drive_that_is_not_mounted_starts_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    with open_store(one, two) as store:
        fill(store)
        first_id = store.layout.store_id
    two.rename(tmp_path / "unplugged")
    with open_store(one, two) as store:
        assert store.records == []
        assert store.layout.store_id != first_id
    assert "is its drive mounted?" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "column",
    [
        "slot = -1",
        "slot = 8",
        "checksums = x'00'",
        "ranks = 2",
        "key = 'text'",
        "last_used = 'never'",
        "last_used = -1",
        "last_used = 9223372036854775807",
        "generation = -1",
        "generation = 9223372036854775807",
        "generation = 4611686018427387905",
    ],
)
def test_rows_that_no_planner_wrote_are_dropped_and_counted(column: str, tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store)
    with sqlite3.connect(store.directory / CATALOGUE_NAME) as connection:
        connection.execute(f"UPDATE chunks SET {column} WHERE slot = 3")
    connection.close()
    with open_store(tmp_path) as store:
        assert slots(store) == [0, 1, 2, 4, 5, 6, 7]
        assert store.dropped_records == 1
        assert len(store.catalogue.records()) == 7


def test_place_that_failed_twice_is_left_out_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path, chunks=32) as store:
        fill(store)
        for _ in range(2):
            store.catalogue.remove([5], lambda slots: None, suspect=True)
        assert store.catalogue.flush(10)
    with open_store(tmp_path, chunks=32) as store:
        assert set(range(32)) - set(store.chunk_ids) == {5}
        assert 5 not in slots(store)
    assert "1 places are not used any more" in caplog.text


def test_store_in_memory_fills_its_files_in_turn_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "slot_order", lambda layout: slot_order(layout, lambda directory: True))
    large = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=64 << 20)
    keys = [ChunkKey(b"key-%d" % number) for number in range(6)]
    with open_store(tmp_path, chunks=24, geometry=large) as store:
        planner = Planner(large, store.chunk_ids, journal=store.catalogue)
        plan = planner.plan_store([(key, ((number,),)) for number, key in enumerate(keys)])
        assert isinstance(plan, StorePlan)
        places = [each.chunk_id for each in plan.transfers]
        assert [store.layout.locate(place, 0)[0] for place in places] == [0, 1, 2, 0, 1, 2]
        planner.complete_store(0, StoreResult(plan.plan_id, (b"s" * 16,) * 6))
        assert store.catalogue.flush(10)
    with open_store(tmp_path, chunks=24, geometry=large) as store:
        planner = Planner(large, store.chunk_ids, records=store.records, journal=store.catalogue)
        assert planner.lookup_prefix(keys) == 6
        loaded = planner.plan_load([(key, ((number,),)) for number, key in enumerate(keys)])
        assert [each.chunk_id for each in loaded.transfers] == places


def test_damaged_catalogue_starts_empty_and_its_copy_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        fill(store)
    path = store.directory / CATALOGUE_NAME
    path.write_bytes(b"x" * 100_000)
    with open_store(tmp_path) as store:
        assert store.records == []
        assert store.layout.num_chunks < 8, "the copy takes room of the capacity"
    assert len([entry for entry in caplog.records if entry.levelno == logging.WARNING]) == 1
    assert path.with_name(f"{CATALOGUE_NAME}.damaged-1").stat().st_size == 100_000


def test_damaged_catalogues_never_use_up_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(tmp_path) as store:
        full = store.layout.num_chunks
    path = store.directory / CATALOGUE_NAME
    for number in range(1, 30):  # as stores left them that kept all
        path.with_name(f"{CATALOGUE_NAME}.damaged-{number}").write_bytes(b"x" * 50_000)
    with open_store(tmp_path) as store:
        assert 0 < store.layout.num_chunks < full
    assert [each.name for each in path.parent.glob("*.damaged-*")] == [f"{CATALOGUE_NAME}.damaged-29"]
    assert not caplog.records
    path.write_bytes(b"x" * capacity_for(8))
    with open_store(tmp_path) as store:
        assert store.layout.num_chunks == full
    assert "removed to make room" in caplog.text
    assert list(path.parent.glob("*.damaged-*")) == []


def test_deleted_catalogue_of_a_running_store_holds_what_comes_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        fill(store)
        assert store.catalogue.flush(10)
        for path in store.directory.glob(f"{CATALOGUE_NAME}*"):
            path.unlink()
        store.catalogue.put(Record(b"new", 3, 9, SUMS, 1))
        assert store.catalogue.flush(10)
    assert len(caplog.records) == 1
    with open_store(tmp_path) as store:
        assert slots(store) == [3]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("again", [False, True])
def test_deleted_directory_of_a_running_store_is_told_and_not_made_again(
    again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    fill(store)
    assert store.catalogue.flush(10)
    shutil.rmtree(store.directory)
    if again:
        other = open_store(tmp_path)
    store.catalogue.put(Record(b"new", 3, 9, SUMS, 1))
    assert not store.catalogue.flush(0.2)
    assert "restart the server" in (store.catalogue.last_error or "")
    assert len(caplog.records) == 1
    if again:
        other.catalogue.put(Record(b"theirs", 5, 9, SUMS, 1))
        assert other.catalogue.flush(10)
        assert [record.key for record in other.catalogue.records()] == [b"theirs"]
        other.close()
    else:
        assert not store.directory.exists()
    store.catalogue.close(0.01)
    store.close()


def test_store_stays_owned_while_its_catalogue_may_still_write(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    entered, gate = threading.Event(), threading.Event()
    store.catalogue.remove([1], lambda slots: (entered.set(), gate.wait(10)))
    assert entered.wait(10)
    assert not store.catalogue.close(0)
    store.close()
    store.close()
    with pytest.raises(StoreBusyError):
        open_store(tmp_path)
    stopped = threading.Event()
    store.catalogue.when_stopped(stopped.set)
    gate.set()
    assert stopped.wait(10)
    open_store(tmp_path).close()


def test_close_twice_does_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close()
    with open_store(tmp_path) as second:
        # The first one's second close must not give up what is another's now.
        store.close()
        with pytest.raises(StoreBusyError):
            open_store(tmp_path)
        assert second.records == []


def test_planning_side_needs_neither_numpy_nor_the_runtime() -> None:
    script = """
import sys
sys.modules["numpy"] = sys.modules["tutti_runtime"] = None
import tutti_engine.store.local_store
try:
    import tutti_engine.backends.local
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env=environment)
    assert "pip install 'tutti-engine[local]'" in said
