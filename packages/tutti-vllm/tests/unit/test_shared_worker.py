# SPDX-License-Identifier: Apache-2.0
"""A worker's loads from both stores: a request hears of the last one, and nothing is written too late."""

import errno
import pickle
import time

import pytest

from tutti_engine import ChunkTransfer, ExecutionSettings, Geometry, LoadPlan, StorePlan, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.shared.backend import SharedBackend
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.store.layout import StoreLayout
from tutti_engine.testing.shared_stores import Faults, MemoryPool, MemorySharedStore
from tutti_vllm.messages import RequestLoad, StepOrders
from tutti_vllm.worker_side.shared_worker import SharedWorker
from tutti_vllm.worker_side.worker import WorkerSide

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
LAYOUT = StoreLayout(("/nowhere",), 2, 8192, 16384, 8, 8)
DIGEST = "ab" * 16
KEY = b"the key"


class Rig:
    def __init__(self, open_engine=None, io_timeout=30.0):
        self.pool, self.faults, self.now = MemoryPool(), Faults(), 100.0
        self.pages = [bytearray(16 * 4096) for _ in range(2)]
        self.shared = SharedWorker(0, open_engine or self._open, clock=lambda: self.now)
        backend = MemoryBackend(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
        self.side = WorkerSide(0, lambda layout: TuttiEngine(GEOMETRY, backend=backend), shared=self.shared)
        self.side.register(self._mover())
        self.shared.register(self._mover(), ExecutionSettings(io_timeout=io_timeout, store_stall=0.0))

    def _mover(self):
        return PlainMover(GEOMETRY, [memoryview(page) for page in self.pages])

    def _open(self, layout, namespace):
        store = MemorySharedStore(self.pool, self.faults)
        return TuttiEngine(GEOMETRY, backend=SharedBackend(store, ObjectNames(namespace), 0, GEOMETRY))

    def step(self, **orders):
        self.side.begin_step(StepOrders(LAYOUT, shared=DIGEST, **orders))
        self.side.start_loads()
        self.side.finish_step()
        self.side.collect()
        report = self.side.take_report()
        results = report.results[0] if report is not None else ()
        return self.side.take_received(), self.side.take_bad_blocks(), results

    def until(self, done):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            answer = self.step()
            if done(answer):
                return answer
        raise AssertionError("nothing came")

    def store(self, plan_id, chunk_id):
        """Store blocks 3 and 4, filled with ones, as a chunk."""
        for page in self.pages:
            page[3 * 4096 : 5 * 4096] = b"\1" * 8192
        plan = StorePlan(plan_id, (ChunkTransfer(KEY, chunk_id, ((3, 4),)),))
        answer = self.step(stores=(plan,))
        (result,) = (answer if answer[2] else self.until(lambda a: a[2]))[2]
        assert result.errno == 0
        return result

    def load(self, plan_id, chunk_id, blocks, sums=(), patience=60.0):
        plan = LoadPlan(plan_id, (ChunkTransfer(KEY, chunk_id, (blocks,), sums),))
        return RequestLoad("r", (), plan, patience=patience)

    def block(self, number):
        return {bytes(page[number * 4096 : (number + 1) * 4096]) for page in self.pages}

    def close(self):
        self.faults.running.set()
        self.side.shutdown(30.0)


ONES, NOTHING = {b"\1" * 4096}, {bytes(4096)}


@pytest.fixture
def rig():
    made = []

    def make(**options):
        made.append(Rig(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_chunk_goes_there_and_comes_back(rig):
    one = rig()
    one.store(-1, KEY)
    received, bad, results = one.step(loads=(one.load(-2, KEY, (8, 9)),))
    if not received:
        received, bad, results = one.until(lambda a: a[0])
    assert (received, bad, results[0].failed) == ({"r"}, set(), ())
    assert one.block(8) == one.block(9) == ONES


def test_a_request_hears_of_the_last_of_its_loads(rig):
    one = rig()
    sums = one.store(1, 0).checksums
    one.store(-1, KEY)
    one.faults.running.clear()
    both = (one.load(2, 0, (6, 7), sums), one.load(-2, KEY, (8, 9)))
    told = [one.step(loads=both)]
    while not any(results for _, _, results in told):
        told.append(one.step())
    told += [one.step() for _ in range(3)]
    assert not any(received for received, _, _ in told)
    one.faults.running.set()
    assert one.until(lambda a: a[0])[:2] == ({"r"}, set())
    assert one.block(6) == one.block(8) == ONES


def test_a_load_that_takes_too_long_has_failed_at_once_and_is_told_once(rig):
    one = rig()
    one.store(-1, KEY)
    one.faults.running.clear()
    assert one.step(loads=(one.load(-2, KEY, (8, 9), patience=1.0),)) == (set(), set(), ())
    one.now += 2
    received, bad, (result,) = one.step()
    assert (received, bad) == ({"r"}, {8, 9})
    assert (result.failed, result.errno, result.seconds) == ((0,), errno.ETIMEDOUT, 2.0)
    one.faults.running.set()
    deadline = time.monotonic() + 30
    while one.side.in_use()["shared_unfinished_plans"]:
        assert time.monotonic() < deadline
    assert one.step() == (set(), set(), ())
    assert one.block(8) == NOTHING, "its blocks are somebody else's by now"


def test_blocks_of_a_request_that_is_gone_are_left_alone(rig):
    one = rig()
    one.store(-1, KEY)
    one.faults.running.clear()
    one.step(loads=(one.load(-2, KEY, (8, 9)),))
    assert one.step(unwanted=(-2,))[0] == {"r"}
    one.faults.running.set()
    (result,) = one.until(lambda a: a[2])[2]
    assert result.failed == (0,)
    assert one.block(8) == one.block(9) == NOTHING


def test_orders_cross_processes_as_they_are(rig):
    one = rig()
    orders = StepOrders(LAYOUT, (one.load(-2, KEY, (8, 9)),), shared=DIGEST)
    told = pickle.loads(pickle.dumps(orders))
    assert told == orders
    assert told.loads[0].plan.columns.chunk_ids == (KEY,)
    one.store(-1, KEY)
    one.step(loads=told.loads)
    deadline = time.monotonic() + 30
    while one.block(8) != ONES:
        assert time.monotonic() < deadline
        one.step()


def test_a_sleeping_server_neither_loads_nor_stores(rig):
    one = rig()
    one.store(-1, KEY)
    one.side.sleep()
    received, bad, results = one.step(loads=(one.load(-2, KEY, (8, 9)),))
    assert (received, bad, results[0].errno) == ({"r"}, {8, 9}, errno.ECANCELED)
    one.side.wake()
    one.step(loads=(one.load(-3, KEY, (8, 9)),))
    assert one.until(lambda a: a[0] or one.block(8) == ONES)


def test_a_store_that_cannot_be_opened_fails_its_plans_and_leaves_the_drive_alone(rig):
    def broken(layout, namespace):
        raise OSError(errno.EACCES, "no")

    one = rig(open_engine=broken)
    received, bad, (result,) = one.step(loads=(one.load(-2, KEY, (8, 9)),))
    assert (received, bad, result.errno) == ({"r"}, {8, 9}, errno.ENOTCONN)
    sums = one.store(1, 0).checksums
    one.step(loads=(one.load(2, 0, (6, 7), sums),))
    deadline = time.monotonic() + 30
    while one.block(6) != ONES:
        assert time.monotonic() < deadline
        one.step()
