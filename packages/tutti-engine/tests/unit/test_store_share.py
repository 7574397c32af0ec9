# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Record
from tutti_engine.errors import GeometryError, RootError, StoreBusyError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store import admin as store_admin
from tutti_engine.store import share as store_share
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.store.share import opening_turn, other_stores

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
SUMS = (b"s" * 16,)
ONE, TWO, THREE = (Namespace({"model": name}) for name in ("one", "two", "three"))
FIXED = bytes_needed(1, geometry=GEOMETRY, ranks=1, roots=1)
"""What a store takes beside its chunks."""


def open_store(root: Path, namespace: Namespace, capacity: int, **options: object) -> LocalStore:
    return LocalStore.open([root], namespace, GEOMETRY, ranks=1, capacity_bytes=capacity, **options)


def make_data(store: LocalStore, chunks: int) -> None:
    """Write segments and rows of some chunks."""
    path = Path(store.layout.file_path(0, 0))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(chunks * store.layout.chunk_bytes))
    for slot in range(chunks):
        store.catalogue.put(Record(b"%d" % slot, slot, 1, SUMS, 1))


def on_disk(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def age(root: Path, namespace: Namespace, days: float) -> None:
    for path in (root / namespace.digest).glob(f"{CATALOGUE_NAME}*"):
        found = path.stat().st_mtime
        os.utime(path, (found - days * 86400,) * 2)


def test_one_capacity_is_for_all_stores_of_a_root(tmp_path: Path) -> None:
    capacity = 8 << 20
    with open_store(tmp_path, ONE, capacity) as first:
        everything = first.layout.num_chunks
        with pytest.raises(GeometryError, match=r"beside .* of other stores"):
            # The running one may grow to all of it.
            open_store(tmp_path, TWO, capacity)
    with open_store(tmp_path, ONE, capacity // 2) as first:
        make_data(first, first.layout.num_chunks)
        with open_store(tmp_path, TWO, capacity) as second:
            assert 0 < second.layout.num_chunks < everything
            total = sum(
                bytes_needed(store.layout.num_chunks, geometry=GEOMETRY, ranks=1, roots=1)
                for store in (first, second)
            )
            assert total <= capacity
            make_data(second, second.layout.num_chunks)
    assert on_disk(tmp_path) <= capacity
    with open_store(tmp_path, THREE, 2 * capacity) as third:
        # Nobody runs them: what they have counts, not what they might take.
        assert third.layout.num_chunks * third.layout.chunk_bytes <= 2 * capacity - on_disk(tmp_path) + (
            1 << 20
        )


def test_store_of_another_model_shrinks_ours_and_drops_what_has_no_place(tmp_path: Path) -> None:
    with open_store(tmp_path, ONE, 8 << 20) as first:
        make_data(first, first.layout.num_chunks)
        before = first.layout.num_chunks
    with open_store(tmp_path, TWO, 12 << 20) as second:
        make_data(second, 2)
        with open_store(tmp_path, ONE, 8 << 20) as first:
            assert len(first.records) == first.layout.num_chunks < before
            path = Path(first.layout.file_path(0, 0))
            assert path.stat().st_size == first.layout.file_bytes(0)


def test_unused_stores_are_removed_only_when_that_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for days, namespace in ((40, ONE), (10, TWO)):
        with open_store(tmp_path, namespace, 64 << 20) as store:
            make_data(store, 60)
        age(tmp_path, namespace, days)
    stray = tmp_path / ONE.digest / f"{CATALOGUE_NAME}.backup"
    stray.write_text("mine")
    for name in (f"{CATALOGUE_NAME}.damaged-1", f"{CATALOGUE_NAME}.newer-2", f"{CATALOGUE_NAME}.newer-2-wal"):
        (tmp_path / ONE.digest / name).write_bytes(b"set aside")
    with pytest.raises(GeometryError):
        open_store(tmp_path, THREE, FIXED + (1 << 20))
    caplog.clear()
    with open_store(tmp_path, THREE, 8 << 20, reclaim_unused_days=30):
        assert [entry.message.split(":")[0] for entry in caplog.records if "removed," in entry.message] == [
            str(tmp_path / ONE.digest)
        ]
    assert [each.name for each in (tmp_path / ONE.digest).iterdir()] == [stray.name], "not ours to remove"
    assert (tmp_path / TWO.digest / CATALOGUE_NAME).exists()


def test_a_running_store_is_never_removed(tmp_path: Path) -> None:
    with open_store(tmp_path, ONE, 4 << 20) as first:
        make_data(first, 4)
        assert first.catalogue.flush(10)
        age(tmp_path, ONE, 100)
        with open_store(tmp_path, TWO, 64 << 20, reclaim_unused_days=1):
            assert first.catalogue.flush(10)
        (other,) = [each for each in other_stores([tmp_path]) if each.name == ONE.digest]
        assert other.owned
        with pytest.raises(StoreBusyError):
            store_share.remove_store(other)
        assert len(first.catalogue.records()) == 4


def test_replicas_have_stores_of_their_own_and_equal_shares(tmp_path: Path) -> None:
    capacity = 12 << 20
    with open_store(tmp_path, ONE, capacity) as alone:
        everything = alone.layout.num_chunks
    names = []
    with open_store(tmp_path, ONE, capacity, replica=(0, 2)) as zero:
        with pytest.raises(StoreBusyError):
            open_store(tmp_path, ONE, capacity, replica=(0, 2))
        with open_store(tmp_path, ONE, capacity, replica=(1, 2)) as one:
            for store in (zero, one):
                names.append(store.directory.name)
                assert 0 < store.layout.num_chunks <= everything // 2
            zero.catalogue.put(Record(b"mine", 0, 1, SUMS, 1))
            assert zero.catalogue.flush(10)
            assert one.catalogue.records() == []
            total = 2 * max(
                bytes_needed(each.layout.num_chunks, geometry=GEOMETRY, ranks=1, roots=1)
                for each in (zero, one)
            )
            assert total + on_disk(tmp_path / ONE.digest) <= capacity
    assert names == [f"{ONE.digest}-0of2", f"{ONE.digest}-1of2"]
    with open_store(tmp_path, ONE, capacity, replica=(0, 2)) as zero:
        assert [record.key for record in zero.records] == [b"mine"]


@pytest.mark.parametrize("replica", [(2, 2), (-1, 1), (0, 0)])
def test_impossible_replicas_are_named(replica: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(GeometryError, match="replica"):
        open_store(tmp_path, ONE, 8 << 20, replica=replica)


def test_stores_that_open_at_once_never_share_out_the_same_room(tmp_path: Path) -> None:
    capacity = 10 << 20
    opened: list[LocalStore] = []
    refused: list[GeometryError] = []

    def work(number: int) -> None:
        try:
            opened.append(open_store(tmp_path, Namespace({"model": number}), capacity))
        except GeometryError as error:
            refused.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) + len(refused) == 6
    assert opened
    total = sum(
        bytes_needed(store.layout.num_chunks, geometry=GEOMETRY, ranks=1, roots=1) for store in opened
    )
    assert total <= capacity
    for store in opened:
        store.close()


def test_opening_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_share, "TURN_SECONDS", 0.05)
    with opening_turn([tmp_path]):
        with pytest.raises(RootError, match="another server has been opening"):
            open_store(tmp_path, ONE, 8 << 20)
    open_store(tmp_path, ONE, 8 << 20).close()


def test_admin_lists_removes_and_collects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for namespace in (ONE, TWO, THREE):
        with open_store(tmp_path, namespace, 64 << 20) as store:
            make_data(store, 3)
    age(tmp_path, TWO, 9)
    assert store_admin.main(["list", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(TWO.digest), "the one unused for longest comes first"
    assert {line.split()[-1] for line in lines} == {'"one"', '"two"', '"three"'}
    assert store_admin.main(["gc", str(tmp_path), "--unused-days", "5"]) == 0
    assert not (tmp_path / TWO.digest).exists()
    assert store_admin.main(["remove", str(tmp_path), "--name", ONE.digest]) == 0
    assert not (tmp_path / ONE.digest).exists()
    assert store_admin.main(["remove", str(tmp_path), "--name", ONE.digest]) == 1
    with open_store(tmp_path, THREE, 64 << 20):
        assert store_admin.main(["remove", str(tmp_path), "--name", THREE.digest]) == 1
    assert "is in use by process" in capsys.readouterr().err
