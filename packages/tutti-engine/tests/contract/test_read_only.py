# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine import Geometry, LoadResult
from tutti_engine.backend import SegmentBatch
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.errors import CatalogueError, RootError
from tutti_engine.namespace import Namespace
from tutti_engine.planning.planner import Planner
from tutti_engine.store.follow import ViewFollower
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.store.view import LocalStoreView
from tutti_engine.testing.window import HostWindow

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
NAMESPACE = Namespace({"test": "read only"})
CHUNKS = 8


class Side:
    """One process' backend with its window."""

    def __init__(self, store: LocalStore | LocalStoreView) -> None:
        self.store = store
        self.backend = LocalStoreBackend(store.layout, 0)
        self.window = HostWindow(2, GEOMETRY.segment_bytes)
        self.backend.bind_staging(self.window)

    def checksums(self) -> bytes:
        return b"".join(hashlib.blake2b(self.window.slot(layer), digest_size=8).digest() for layer in (0, 1))

    def write(self, slot: int, byte: int) -> Record:
        self.window.memory[:] = bytes([byte]) * self.window.nbytes
        handle = self.backend.write_segments(SegmentBatch([slot, slot], [0, 1], [0, 1]))
        assert handle.wait(time.monotonic() + 30)
        assert list(handle.status()) == [0, 0]
        return Record(b"key-%d" % byte, slot, byte, (self.checksums(),), 1)

    def read(self, slot: int) -> bytes:
        handle = self.backend.read_segments(SegmentBatch([slot, slot], [0, 1], [0, 1]))
        assert handle.wait(time.monotonic() + 30)
        assert list(handle.status()) == [0, 0]
        return self.checksums()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Side]:
    capacity = bytes_needed(CHUNKS, geometry=GEOMETRY, ranks=1, roots=1)
    with LocalStore.open([tmp_path / "kv"], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=capacity) as store:
        side = Side(store)
        for slot in range(4):
            store.catalogue.put(side.write(slot, slot + 1))
        assert store.catalogue.flush(10)
        yield side
        side.backend.shutdown()


def view(tmp_path: Path, **changes: object) -> LocalStoreView:
    arguments: dict = {"ranks": 1, "geometry": GEOMETRY, "namespace": NAMESPACE, **changes}
    return LocalStoreView.open([tmp_path / "kv"], **arguments)


def everything_below(path: Path) -> dict[str, tuple[int, int]]:
    # SQLite's index of the log is shared memory of all that have the database open.
    found = (each for each in path.rglob("*") if not each.name.endswith("-shm"))
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in found}


def test_reader_sees_what_is_committed_and_changes_nothing(owner: Side, tmp_path: Path) -> None:
    before = everything_below(tmp_path)
    with view(tmp_path) as seen:
        side = Side(seen)
        assert len(seen.records) == 4
        for record in seen.records:
            assert side.read(record.slot) == record.checksums[0]
        with pytest.raises(RuntimeError, match="read only"):
            side.backend.write_segments(SegmentBatch([0, 0], [0, 1], [0, 1]))
        side.backend.shutdown()
    assert everything_below(tmp_path) == before


def test_place_that_the_owner_filled_anew_is_a_miss(owner: Side, tmp_path: Path) -> None:
    with view(tmp_path) as seen:
        side = Side(seen)
        planner = Planner(GEOMETRY, seen.chunk_ids, records=seen.records, read_only=True)
        removed: list[int] = []
        owner.store.catalogue.remove([2], removed.extend)  # type: ignore[union-attr]
        assert owner.store.catalogue.flush(10)  # type: ignore[union-attr]
        owner.store.catalogue.put(owner.write(2, 77))  # type: ignore[union-attr]
        assert owner.store.catalogue.flush(10)  # type: ignore[union-attr]
        (plan,) = [planner.plan_load([(b"key-3", ((0,),))])]
        (transfer,) = plan.transfers
        assert side.read(transfer.chunk_id) != transfer.checksums[0], "not the bytes that were promised"
        planner.complete_load(LoadResult(plan.plan_id, failed=(0,), errno=errno.EBADMSG, corrupt=(0,)))
        assert planner.lookup_prefix([b"key-3"]) == 0
        assert planner.plan_store([(b"key-3", ((0,),))]) is None
        assert b"key-77" in seen.look().keys
        side.backend.shutdown()


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_follower_shows_what_was_stored_since_and_what_is_gone(owner: Side, tmp_path: Path) -> None:
    catalogue = owner.store.catalogue  # type: ignore[union-attr]
    with view(tmp_path) as seen:
        side = Side(seen)
        planner = Planner(GEOMETRY, seen.chunk_ids, records=seen.records, read_only=True)
        follower = ViewFollower(seen, planner, interval=0.02)
        seen.records.clear()
        assert planner.lookup_prefix([b"key-3"]) == 1
        loading = planner.plan_load([(b"key-3", ((0,),))])
        catalogue.remove([2], lambda slots: None)
        assert catalogue.flush(10)
        wait_until(lambda: not planner.lookup_prefix([b"key-3"]), "what is gone is still shown")
        catalogue.put(owner.write(2, 77))
        catalogue.put(owner.write(5, 78))
        assert catalogue.flush(10)
        wait_until(lambda: planner.lookup_prefix([b"key-77", b"key-78"]) == 2, "it is not shown")
        assert planner.resident_chunks == 5
        planner.complete_load(LoadResult(loading.plan_id, failed=(0,), errno=errno.EBADMSG, corrupt=(0,)))
        assert planner.lookup_prefix([b"key-77"]) == 1, "the place is another chunk's now"
        plan = planner.plan_load([(b"key-77", ((0,),)), (b"key-78", ((0,),))])
        for transfer in plan.transfers:
            assert side.read(transfer.chunk_id) == transfer.checksums[0]
        catalogue.remove([5], lambda slots: None)
        catalogue.flush(10)
        catalogue.put(owner.write(6, 78))
        assert catalogue.flush(10)
        wait_until(lambda: planner.plan_load([(b"key-78", ((0,),))]).transfers[0].chunk_id == 6, "not moved")
        follower.close()
        side.backend.shutdown()


def test_a_place_that_is_read_and_dropped_is_shown_later(owner: Side, tmp_path: Path) -> None:
    catalogue = owner.store.catalogue  # type: ignore[union-attr]
    with view(tmp_path) as seen:
        planner = Planner(GEOMETRY, seen.chunk_ids, records=seen.records, read_only=True)
        first = planner.plan_load([(b"key-3", ((0,),))])
        second = planner.plan_load([(b"key-3", ((0,),))])
        planner.complete_load(LoadResult(first.plan_id, failed=(0,), errno=errno.EBADMSG, corrupt=(0,)))
        record = owner.write(2, 77)
        assert planner.adopt([(2, record)]) == [2]
        planner.complete_load(LoadResult(second.plan_id, failed=(0,), errno=errno.EBADMSG, corrupt=(0,)))
        assert planner.adopt([(2, record)]) == []
        assert planner.lookup_prefix([b"key-77"]) == 1
        assert catalogue.flush(10)
    with pytest.raises(RuntimeError, match="read_only"):
        Planner(GEOMETRY, range(4)).adopt([])


def test_store_without_an_owner_can_be_read(tmp_path: Path, owner: Side) -> None:
    owner.store.close()
    with view(tmp_path) as seen:
        assert sorted(seen.records.keys) == [b"key-1", b"key-2", b"key-3", b"key-4"]
    assert not list(tmp_path.rglob("*-wal"))


def test_missing_file_is_told_and_not_made(tmp_path: Path, owner: Side) -> None:
    owner.store.close()
    (path,) = tmp_path.rglob("*.seg")
    path.unlink()
    with view(tmp_path) as seen, pytest.raises(RootError, match=r"cannot open .*0\.seg"):
        LocalStoreBackend(seen.layout, 0)
    assert not path.exists()


def test_nothing_to_read_is_told(tmp_path: Path, owner: Side) -> None:
    with pytest.raises(RootError, match="there is no store"):
        view(tmp_path, namespace=Namespace({"test": "another"}))
    with pytest.raises(CatalogueError, match="other roots, ranks or sizes"):
        view(tmp_path, ranks=2)
    assert sorted(each.name for each in (tmp_path / "kv").iterdir()) == sorted(
        [NAMESPACE.digest, "opening.lock"]
    )
