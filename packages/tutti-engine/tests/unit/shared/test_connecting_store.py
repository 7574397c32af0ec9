# SPDX-License-Identifier: Apache-2.0
"""A shared store that comes late, or never."""

import errno
import threading
import time

import pytest

from tutti_engine.errors import BackendError
from tutti_engine.shared import connecting_store
from tutti_engine.shared.connecting_store import ConnectingStore, PendingRead
from tutti_engine.shared.store import ObjectBatch
from tutti_engine.testing.shared_conformance import SharedBench, SharedStoreConformance
from tutti_engine.testing.shared_stores import MemoryPool, MemorySharedStore
from tutti_engine.testing.window import POISON


class TestConnecting(SharedStoreConformance):
    @pytest.fixture
    def stores(self):
        pool = MemoryPool()
        made = [ConnectingStore(lambda: MemorySharedStore(pool)) for _ in range(2)]
        assert all(store.wait_settled(30) for store in made)
        return tuple(made)


def test_until_it_is_there_nothing_waits_and_then_all_works():
    go, tries = threading.Event(), []

    def connect():
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ECONNREFUSED, "nobody listens")
        go.wait()
        return MemorySharedStore(MemoryPool())

    store = ConnectingStore(connect, first_pause=0.001)
    bench = SharedBench(store, 4, 4096, 4096)
    assert bench.write(["a"], [0], 1) == bench.read(["a"], [0], 1) == [errno.ENOTCONN]
    with pytest.raises(OSError, match="not there"):
        store.exists(["a"])
    assert store.why_not and store.data_path == "connecting"
    go.set()
    assert store.wait_settled(30) and store.why_not is None
    assert bench.write(["a"], [0], 1) == [0]
    assert list(store.exists(["a"])) == [True]
    store.shutdown()


def test_what_is_wrong_for_good_is_tried_once():
    tries = []

    def connect():
        tries.append(1)
        raise BackendError("mooncake is not installed")

    store = ConnectingStore(connect, first_pause=0.0)
    assert store.wait_settled(30)
    assert store.is_hopeless and "not installed" in store.why_not
    assert len(tries) == 1
    store.shutdown()


def test_a_store_that_answers_after_the_end_is_let_go():
    go, made = threading.Event(), MemorySharedStore(MemoryPool())

    def connect():
        go.wait()
        return made

    store = ConnectingStore(connect)
    store.shutdown()
    go.set()
    store._thread.join(30)
    with pytest.raises(RuntimeError, match="no staging window"):
        made.read_objects(ObjectBatch(["a"], [0], 1))
    assert made._closed


def test_a_store_that_takes_no_memory_is_let_go_and_tried_again():
    made = []

    class Picky(MemorySharedStore):
        def bind_staging(self, window, headers):
            if len(made) < 2:
                raise OSError(errno.ENOMEM, "cannot pin")
            super().bind_staging(window, headers)

    go = threading.Event()

    def connect():
        go.wait()
        made.append(Picky(MemoryPool()))
        return made[-1]

    store = ConnectingStore(connect, first_pause=0.001)
    bench = SharedBench(store, 4, 4096, 4096)
    go.set()
    assert store.wait_settled(30)
    assert made[0]._closed and bench.write(["a"], [0], 1) == [0]
    store.shutdown()
    assert store.wait_idle(time.monotonic() + 30)


@pytest.mark.parametrize("outcome", ["there", "not there", "shut down", "hangs"])
def test_a_read_waits_for_the_end_of_the_first_try_and_no_longer(outcome, monkeypatch):
    monkeypatch.setattr(connecting_store, "LONGEST_WAIT", 0.01 if outcome == "hangs" else 1e9)
    pool, go = MemoryPool(), threading.Event()
    pool.objects["a"] = bytes(8192)

    def connect():
        go.wait()
        if outcome == "not there":
            raise OSError(errno.ECONNREFUSED, "nobody listens")
        return MemorySharedStore(pool)

    store = ConnectingStore(connect, first_pause=1e9)
    bench = SharedBench(store, 4, 4096, 4096)
    bench.clear()
    read = store.read_objects(ObjectBatch(["a"], [0], 1))
    if outcome != "hangs":
        assert not read.wait(time.monotonic()) and not store.wait_idle(time.monotonic())
        with pytest.raises(RuntimeError, match="waits for its store"):
            read.status()
    assert bench.write(["b"], [1], 1) == [errno.ENOTCONN], "a write is given up at once"
    if outcome == "shut down":
        store.shutdown()
    elif outcome != "hangs":
        go.set()
    assert bench.finish(read) == [0 if outcome == "there" else errno.ENOTCONN]
    if outcome == "hangs":
        go.set()
        assert store.wait_settled(30)
    if outcome != "there":
        assert bench.seen(0, 1) == (bytes([POISON]) * 4096,) * 2, "what was given up is not read any more"
    else:
        assert bench.seen(0, 1) == (bytes(4096),) * 2
    go.set()
    store.shutdown()


def test_memory_that_is_bound_for_ever_holds_up_neither_reads_nor_the_end():
    binding, go = threading.Event(), threading.Event()

    class Stuck(MemorySharedStore):
        def bind_staging(self, window, headers):
            binding.set()
            go.wait()
            super().bind_staging(window, headers)

    connected, made = threading.Event(), Stuck(MemoryPool())

    def connect():
        connected.wait()
        return made

    store, ends = ConnectingStore(connect), []
    bench = SharedBench(store, 4, 4096, 4096)
    connected.set()
    assert binding.wait(30)

    def use():
        ends.append(store.read_objects(ObjectBatch(["a"], [0], 1)))
        ends.append(bench.write(["a"], [0], 1))
        store.shutdown()
        ends.append(bench.finish(ends[0]))

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(30)
    try:
        assert ends[1:] == [[errno.ENOTCONN]] * 2
    finally:
        go.set()
    store._thread.join(30)
    assert made._closed and store._store is None


def test_reads_that_were_given_up_are_forgotten_while_a_try_hangs(monkeypatch):
    monkeypatch.setattr(connecting_store, "LONGEST_WAIT", 0.0)
    go = threading.Event()

    def connect():
        go.wait()
        raise OSError(errno.ECONNREFUSED, "nobody listens")

    store = ConnectingStore(connect)
    bench = SharedBench(store, 4, 4096, 4096)
    for _ in range(100):
        assert bench.read(["a"], [0], 1) == [errno.ENOTCONN]
    assert len(store._pending) <= 2
    go.set()
    store.shutdown()


def test_a_read_that_the_store_refuses_to_begin_has_failed():
    go = threading.Event()

    class Full(MemorySharedStore):
        def read_objects(self, batch):
            raise ValueError("slots that are none")

    def connect():
        go.wait()
        return Full(MemoryPool())

    store = ConnectingStore(connect)
    bench = SharedBench(store, 4, 4096, 4096)
    read = store.read_objects(ObjectBatch(["a"], [0], 1))
    go.set()
    assert store.wait_settled(30) and bench.finish(read) == [errno.ENOTCONN]
    store.shutdown()


def test_a_read_begins_once():
    begun = []
    read = PendingRead(ObjectBatch(["a"], [0], 1))

    def begin(batch):
        begun.append(batch)
        return MemorySharedStore(MemoryPool()).write_objects(batch)

    with pytest.raises(RuntimeError, match="no staging window"):
        read.begin(begin)
    for _ in range(2):
        read.begin(connecting_store._refused)
    read.begin(begin)
    assert len(begun) == 1 and read.status() == [errno.ENOTCONN]


def test_a_store_that_takes_its_memory_after_the_end_is_let_go():
    binding, go = threading.Event(), threading.Event()

    class Slow(MemorySharedStore):
        def bind_staging(self, window, headers):
            binding.set()
            go.wait()
            super().bind_staging(window, headers)

    connected, made = threading.Event(), Slow(MemoryPool())
    store = ConnectingStore(lambda: (connected.wait(), made)[1])
    SharedBench(store, 4, 4096, 4096)
    connected.set()
    assert binding.wait(30)
    store._closing.set()
    go.set()
    store._thread.join(30)
    assert made._closed and store._store is None
