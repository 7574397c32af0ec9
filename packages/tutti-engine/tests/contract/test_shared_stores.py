# SPDX-License-Identifier: Apache-2.0
"""The shared stores of the testing package pass the kit, and misbehave when they are told to."""

import errno
import threading
import time

import pytest

from tutti_engine.errors import BackendError
from tutti_engine.shared.blocking_store import BlockingStore
from tutti_engine.shared.kinds import check_shared_options, make_shared_store
from tutti_engine.shared.store import ObjectBatch, SharedStore
from tutti_engine.testing.shared_conformance import SharedBench, SharedStoreConformance
from tutti_engine.testing.shared_stores import DirectoryStore, Faults, MemoryPool, MemorySharedStore

PLACE = "tutti_engine.testing.shared_stores:DirectoryStore"


class TestMemory(SharedStoreConformance):
    @pytest.fixture
    def stores(self):
        pool = MemoryPool()
        return MemorySharedStore(pool), MemorySharedStore(pool)


class TestDirectory(SharedStoreConformance):
    @pytest.fixture
    def stores(self, tmp_path):
        return DirectoryStore(tmp_path / "pool"), make_shared_store(PLACE, path=str(tmp_path / "pool"))


THREADS = 2


class _WritesHang(BlockingStore):
    def __init__(self):
        super().__init__(threads=THREADS, objects_per_call=1)
        self.going_on = threading.Event()

    def put(self, names, pieces):
        self.going_on.wait()
        return [0] * len(names)

    def get(self, names, pieces):
        return [0] * len(names)

    def exists(self, names):
        return [True] * len(names)

    def remove(self, names):
        pass


@pytest.fixture
def bench():
    made = []

    def make(store):
        made.append(store)
        return SharedBench(store, 8, 4096, 4096)

    yield make
    for store in made:
        if isinstance(store, MemorySharedStore):
            store.faults.running.set()
        store.shutdown()


def test_a_call_that_hangs_keeps_its_slots_until_it_returns(bench):
    store = MemorySharedStore(MemoryPool(), threads=1)
    one = bench(store)
    store.faults.running.clear()
    handle = store.write_objects(ObjectBatch(["a"], [0], 1))
    assert not handle.wait(time.monotonic() + 0.05)
    with pytest.raises(RuntimeError):
        handle.status()
    store.faults.running.set()
    assert one.finish(handle) == [0]


def test_writes_that_hang_keep_no_read_waiting(bench):
    store = _WritesHang()
    bench(store)
    count = 3 * THREADS
    writes = store.write_objects(ObjectBatch([f"w{n}" for n in range(count)], range(count), 1))
    read = store.read_objects(ObjectBatch(["r"], [count], 1))
    try:
        assert read.wait(time.monotonic() + 30), "a read waits behind writes"
    finally:
        store.going_on.set()
    assert writes.wait(time.monotonic() + 30)


def test_faults_are_statuses_and_heal(bench):
    pool = MemoryPool()
    store = MemorySharedStore(pool)
    one = bench(store)
    one.fill(0, 1, "a")
    store.faults.error = errno.EIO
    assert one.write(["a"], [0], 1) == [errno.EIO]
    with pytest.raises(OSError):
        store.exists(["a"])
    store.faults.error = 0
    store.faults.cut_until = float("inf")
    assert one.write(["a"], [0], 1) == [errno.ECONNREFUSED]
    store.faults.cut_until = 0
    pool.capacity_bytes = 8191
    assert one.write(["a"], [0], 1) == [errno.ENOSPC]
    pool.capacity_bytes = 8192
    assert one.write(["a", "b"], [0, 1], 1) == [0, errno.ENOSPC]
    store.faults.lose = True
    assert one.read(["a"], [0], 1) == [errno.ENOENT]
    store.faults.lose = False
    assert one.read(["a"], [0], 1) == [0]


def test_a_directory_is_cut_full_and_whole_again_for_all_processes(bench, tmp_path):
    store = DirectoryStore(tmp_path)
    one = bench(store)
    (tmp_path / "full").touch()
    assert one.write(["a"], [0], 1) == [errno.ENOSPC]
    (tmp_path / "full").unlink()
    (tmp_path / "cut").touch()
    assert one.read(["a"], [0], 1) == [errno.ECONNREFUSED]
    (tmp_path / "cut").unlink()
    assert one.write(["a"], [0], 1) == [0]


def test_names_never_form_a_path(bench, tmp_path):
    one = bench(DirectoryStore(tmp_path / "in"))
    assert one.write(["../../out", "/etc/x"], [0, 1], 1) == [0, 0]
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


def test_a_wrong_kind_says_which_there_are():
    with pytest.raises(BackendError, match="did you mean 'mooncake'"):
        make_shared_store("moncake")
    with pytest.raises(BackendError, match=r"package\.module:Class"):
        make_shared_store("elephant")
    with pytest.raises(BackendError, match="cannot be used"):
        make_shared_store("nowhere.at.all:Store")
    with pytest.raises(BackendError, match="lacks bind_staging"):
        make_shared_store("builtins:object")
    with pytest.raises(TypeError, match="capacity_bytes"):
        check_shared_options(PLACE, {"path": "/x", "capacity": 1})


def test_a_store_is_one_by_its_methods():
    assert isinstance(MemorySharedStore(MemoryPool(), Faults()), SharedStore)
