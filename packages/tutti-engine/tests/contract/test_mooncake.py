# SPDX-License-Identifier: Apache-2.0
"""Mooncake as a shared store and as a backend: the kits, over a real master and two nodes on loopback."""

import errno
import os
import signal
import threading
import time

import pytest

from tutti_engine.testing.mooncake import MooncakeCluster, mooncake_master

if mooncake_master() is None:
    pytest.skip("needs Mooncake: pip install mooncake-transfer-engine-non-cuda", allow_module_level=True)

from tutti_engine.backends import mooncake
from tutti_engine.backends.mooncake import MooncakeStore
from tutti_engine.doctor.mooncake import examine_mooncake
from tutti_engine.registry import make_backend
from tutti_engine.shared.kinds import make_shared_store
from tutti_engine.shared.store import ObjectBatch
from tutti_engine.testing.conformance import BackendConformance
from tutti_engine.testing.shared_conformance import SharedBench, SharedStoreConformance
from tutti_engine.testing.window import POISON

LONG = "TUTTI_LONG_TESTS" in os.environ


@pytest.fixture(scope="module")
def cluster():
    with MooncakeCluster() as cluster:
        for _ in range(2):
            cluster.start_node(64 << 20)
        yield cluster


class KeptClient:
    """A client that several stores have one after the other: to close one takes it a second."""

    def __init__(self, client):
        self._client, self._buffers = client, []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def register_buffer(self, address, nbytes):
        self._buffers.append(address)
        return self._client.register_buffer(address, nbytes)

    def close(self):
        while self._buffers:
            assert self._client.unregister_buffer(self._buffers.pop()) == 0


@pytest.fixture(scope="module")
def clients(cluster):
    made = [mooncake.connect(mooncake.MooncakeOptions(cluster.master)) for _ in range(2)]
    yield made
    for client in made:
        client.close()


@pytest.fixture
def kept(monkeypatch, clients):
    """Stores of this test have these clients, in turn; with TUTTI_LONG_TESTS each one its own."""
    if not LONG:
        some = [KeptClient(client) for client in clients]
        monkeypatch.setattr(mooncake, "connect", lambda options: some.pop())


@pytest.mark.usefixtures("kept")
class TestSharedStore(SharedStoreConformance):
    @pytest.fixture
    def stores(self, cluster):
        return MooncakeStore(cluster.master), make_shared_store("mooncake", master=cluster.master)

    def test_an_object_of_another_size_is_told_from_a_failed_transfer(self, benches):
        one, other = benches
        names = self.names(2)
        assert one.write(names, [0, 0], 2) == [0, 0]
        assert other.read(names, [0, 5], 1) == [errno.EBADMSG] * 2
        assert other.read(names, [0, 5], 3) == [errno.EBADMSG] * 2


@pytest.mark.usefixtures("kept")
class TestBackend(BackendConformance):
    @pytest.fixture
    def backend(self, cluster):
        return make_backend(
            "mooncake", master=cluster.master, num_layers=self.num_layers,
            segment_bytes=self.segment_bytes, num_chunks=self.num_chunks,
        )  # fmt: skip


@pytest.mark.usefixtures("kept")
class TestBackendOfManySmallCalls(BackendConformance):
    @pytest.fixture
    def backend(self, cluster):
        return make_backend(
            "mooncake", master=cluster.master, num_layers=self.num_layers, calls=5, objects_per_call=1,
            segment_bytes=self.segment_bytes, num_chunks=self.num_chunks,
        )  # fmt: skip


def test_a_full_cluster_says_so_and_readers_go_on():
    with MooncakeCluster() as small:
        small.start_node(16 << 20)
        store = MooncakeStore(small.master)
        bench = SharedBench(store, 2, 1 << 20, 4096)
        bench.fill(0, 1, "x")
        names = [f"n/{number}" for number in range(40)]
        statuses = []
        for name in names:
            statuses += bench.write([name], [0], 1)
            store.exists(names)  # what was asked for has a lease and is not evicted
        assert set(statuses) == {0, errno.ENOSPC}
        there = [name for name, status in zip(names, statuses) if not status]
        assert bench.read(there[:1], [1], 1) == [0]
        store.shutdown()


def test_without_any_node_there_is_no_room(cluster):
    with MooncakeCluster() as empty:
        store = MooncakeStore(empty.master)
        bench = SharedBench(store, 1, 4096, 4096)
        assert bench.write(["a"], [0], 1) == [errno.ENOSPC]
        assert bench.read(["a"], [0], 1) == [errno.ENOENT]
        assert list(store.exists(["a"])) == [False]
        store.remove(["a"])
        store.shutdown()


def test_a_call_that_hangs_holds_its_slots_and_nothing_else(cluster):
    store = MooncakeStore(cluster.master, timeout=0.2)
    bench = SharedBench(store, 4, 4096, 4096)
    client, go, hangs = store._client, threading.Event(), threading.Event()

    class Hanging:
        def __getattr__(self, name):
            return getattr(client, name)

        def batch_get_into_multi_buffers(self, names, *arguments):
            if names == ["hang"]:
                hangs.set()
                go.wait()
            return client.batch_get_into_multi_buffers(names, *arguments)

    store._client = Hanging()
    bench.fill(0, 1, "a")
    stuck = store.read_objects(ObjectBatch(["hang"], [3], 1))
    assert hangs.wait(30)
    name = TestSharedStore.names(1)
    assert bench.write(name, [0], 1) == bench.read(name, [1], 1) == [0]
    assert not stuck.wait(time.monotonic()) and not store.wait_idle(0.0)
    go.set()
    assert bench.finish(stuck) == [errno.ENOENT]
    store.shutdown()


def test_the_doctor_asks_the_master(cluster):
    findings = {each.name: each for each in examine_mooncake(cluster.master)}
    assert findings["mooncake"].verdict == findings["mooncake master"].verdict == "ok"


@pytest.mark.skipif(not LONG, reason="half a minute: set TUTTI_LONG_TESTS")
def test_nothing_is_written_to_a_slot_after_its_read_has_ended():
    """A node stops in the midst of a read, which fails, and goes on when the slots are somebody else's."""
    with MooncakeCluster(master_options=["--client_ttl=300"]) as alone:
        node = alone.start_node(256 << 20)
        store = MooncakeStore(alone.master, timeout=1.0)
        bench = SharedBench(store, 16, 8 << 20, 4096)
        names, slots = [f"n/{number}" for number in range(16)], list(range(16))
        for slot in slots:
            bench.fill(slot, 1, slot)
        assert bench.write(names, slots, 1) == [0] * 16
        for _ in range(3):
            handle = store.read_objects(ObjectBatch(names, slots, 1))
            node.send_signal(signal.SIGSTOP)
            failed = [slot for slot, status in enumerate(bench.finish(handle)) if status]
            bench.clear()
            node.send_signal(signal.SIGCONT)
            # The node is there again once it answers: what it still had to send it has sent by then.
            while bench.read(names[:1], [0], 1) != [0]:
                pass
            for slot in set(failed) - {0}:
                assert set(bench.seen(slot, 1)[1]) == {POISON}
        store.shutdown()


def test_a_store_that_is_shut_down_under_a_question_closes_its_client_only_after_it(cluster):
    store = MooncakeStore(cluster.master, timeout=30.0)
    client, go, asked, order = store._client, threading.Event(), threading.Event(), []

    class Slow:
        def batch_is_exist(self, names):
            asked.set()
            assert go.wait(30)
            order.append("answer")
            return client.batch_is_exist(names)

        def close(self):
            order.append("close")
            return client.close()

    store._client = Slow()
    question = threading.Thread(target=lambda: store.exists(["a"]))
    question.start()
    assert asked.wait(30)
    closing = threading.Thread(target=store.shutdown)
    closing.start()
    go.set()
    for thread in (question, closing):
        thread.join(60)
    assert order == ["answer", "close"]
    with pytest.raises(OSError, match="closed"):
        store.exists(["a"])


def test_a_smaller_object_that_was_read_without_a_complaint_is_no_success(cluster):
    store = MooncakeStore(cluster.master)
    bench = SharedBench(store, 2, 4096, 4096)
    client = store._client

    class Short:
        def __getattr__(self, name):
            return getattr(client, name)

        def batch_get_into_multi_buffers(self, names, places, sizes):
            return [4096 for _ in names]

    store._client = Short()
    assert bench.read(["a"], [0], 1) == [errno.EBADMSG]
    store._client = client
    store.shutdown()
