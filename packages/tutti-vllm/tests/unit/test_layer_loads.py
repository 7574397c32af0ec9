# SPDX-License-Identifier: Apache-2.0
"""A worker's steps that wait for their loads layer by layer."""

import errno
import threading
import time

import pytest

from tutti_engine import SKIP_BLOCK, ChunkTransfer, Geometry, LoadPlan, StorePlan, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.store.layout import StoreLayout
from tutti_engine.testing.fakes import DelayedBackend, FailingBackend
from tutti_vllm.messages import RequestLoad, StepOrders
from tutti_vllm.worker_side.layer_loads import LayerLoads
from tutti_vllm.worker_side.worker import WorkerSide

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
LAYOUT = StoreLayout(("/nowhere",), 1, 16384, 16384, 8, 4)
NAMES = [f"model.layers.{n}.attn" for n in range(GEOMETRY.num_layers)]
PAGE = GEOMETRY.page_bytes


class Rig:
    """One rank; chunk 0 is stored from blocks 0 and 1, chunk 1 from blocks 2 and 3."""

    def __init__(self, wrap=lambda inner: inner, patience=30.0):
        self.backend = wrap(
            MemoryBackend(num_layers=GEOMETRY.num_layers, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
        )
        self.pages = [bytearray(16 * PAGE) for _ in NAMES]
        self.engine = TuttiEngine(GEOMETRY, backend=self.backend)
        self.side = WorkerSide(0, lambda layout: self.engine)
        self.side.register(PlainMover(GEOMETRY, [memoryview(p) for p in self.pages]), NAMES)
        self.side._layers = LayerLoads(NAMES, patience=patience)
        self.sums = {}
        for chunk, blocks in enumerate([(0, 1), (2, 3)]):
            for layer in range(len(NAMES)):
                for block in blocks:
                    self.fill(layer, block)
            self.side.begin_step(StepOrders(LAYOUT, stores=(self.store_plan(100 + chunk, chunk, blocks),)))
            self.run_layers()
            self.side.start_loads()
            self.side.finish_step()
            assert self.engine.wait_idle(time.monotonic() + 30)
            (result,) = self.report()
            self.sums[chunk] = result.checksums[0]

    def fill(self, layer, block):
        self.pages[layer][block * PAGE : (block + 1) * PAGE] = self.content(layer, block)

    @staticmethod
    def content(layer, block):
        return bytes([16 * (layer + 1) + block]) * PAGE

    def page(self, layer, block):
        return bytes(self.pages[layer][block * PAGE : (block + 1) * PAGE])

    @staticmethod
    def store_plan(plan_id, chunk, blocks):
        return StorePlan(plan_id, (ChunkTransfer(b"k", chunk, (blocks,)),))

    def order(self, plan_id, chunk, blocks, *, layerwise=True, request_id="r"):
        transfer = ChunkTransfer(b"k", chunk, (blocks,), (self.sums[chunk],))
        wanted = tuple(block for block in blocks if block != SKIP_BLOCK)
        return RequestLoad(request_id, wanted, LoadPlan(plan_id, (transfer,)), layerwise)

    def run_layers(self, look=lambda layer: None, names=NAMES):
        for layer, name in enumerate(names):
            self.side.wait_for_layer(name)
            look(layer)

    def report(self):
        self.side.collect()
        report = self.side.take_report()
        return () if report is None else report.results[0]

    def step(self, *loads, stores=(), look=lambda layer: None, names=NAMES):
        """Run a step as vLLM does one with loads that it waits for."""
        self.side.begin_step(StepOrders(LAYOUT, loads=loads, stores=stores))
        self.side.start_loads()
        self.run_layers(look, names)
        self.side.finish_step()
        results = self.report()
        return self.side.take_received(), self.side.take_bad_blocks(), results


@pytest.fixture
def rig():
    made = []

    def make(*args, **options):
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.side.shutdown(5.0)


def test_each_layer_has_its_pages_when_it_asks(rig):
    rig = rig()
    seen = []

    def look(layer):
        seen.append([rig.page(layer, block) == rig.content(layer, source) for block, source in checks])

    checks = [(8, 0), (9, 1), (11, 3)]
    received, bad, results = rig.step(
        rig.order(1, 0, (8, 9)), rig.order(2, 1, (SKIP_BLOCK, 11), request_id="s"), look=look
    )
    assert seen == [[True] * 3] * 3
    assert (received, bad) == (set(), set()), "vLLM fails on requests that were never parked"
    assert sorted(result.plan_id for result in results) == [1, 2]
    assert all(result.failed == () for result in results)


def test_a_layer_runs_while_later_ones_are_still_being_read(rig):
    rig = rig(DelayedBackendOfReads)
    ran = []

    def look(layer):
        # The next layer's read is asked for by another thread.
        deadline = time.monotonic() + 10
        while layer == 0 and not rig.backend.waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        ran.append((layer, rig.page(layer, 8) == rig.content(layer, 0), rig.backend.waiting))
        rig.backend.let_one_go()

    rig.backend.hold = True
    rig.backend.let_one_go()
    rig.step(rig.order(1, 0, (8, 9)), look=look)
    assert [(layer, right) for layer, right, _ in ran] == [(0, True), (1, True), (2, True)]
    assert ran[0][2] > 0, "the first layer waited for all of them"


class DelayedBackendOfReads(DelayedBackend):
    """Holds reads back once told to; each credit lets one more go."""

    hold = False
    credits = 0

    def let_one_go(self):
        self.credits += 1
        self._use_credits()

    def _use_credits(self):
        while self.credits and self.waiting:
            self.credits -= 1
            self.release(1)

    def _start(self, direction, batch):
        if direction == "write" or not self.hold:
            return self._start_inner(direction, batch)
        handle = super()._start(direction, batch)
        self._use_credits()
        return handle


def test_a_layer_that_never_asks_is_waited_for_before_the_first(rig):
    rig = rig(DelayedBackendOfReads)
    rig.side._layers._announced.discard(2)
    rig.backend.hold = True
    started = threading.Event()

    def start():
        rig.side.start_loads()
        started.set()

    rig.side.begin_step(StepOrders(LAYOUT, loads=(rig.order(1, 0, (8, 9)),)))
    thread = threading.Thread(target=start)
    thread.start()
    assert not started.wait(0.05)
    rig.backend.hold = False
    rig.backend.release()
    assert started.wait(30)
    thread.join()
    assert rig.page(2, 8) == rig.content(2, 0)
    rig.run_layers()
    rig.side.finish_step()


def test_a_strange_layer_waits_for_all(rig):
    rig = rig()
    right = []

    def look(layer):
        right.append([rig.page(each, 8) == rig.content(each, 0) for each in range(3)])

    rig.step(rig.order(1, 0, (8, 9)), look=look, names=["shared.attn"])
    assert right == [[True] * 3]


def test_asking_twice_and_without_a_load_costs_nothing(rig):
    rig = rig()
    rig.step(rig.order(1, 0, (8, 9)), names=[*NAMES, *NAMES])
    assert rig.step(names=[*NAMES, *NAMES]) == (set(), set(), ())


def fail_layer(layer):
    def wrap(inner):
        return FailingBackend(
            inner, errno.EIO, when=lambda direction, chunk, at, slot: direction == "read" and at == layer
        )

    return wrap


@pytest.mark.parametrize("layer", range(3))
def test_a_failed_layer_is_reported_in_the_same_step_and_nothing_of_the_step_is_stored(rig, layer):
    rig = rig(fail_layer(layer))
    store = rig.store_plan(7, 5, (12, 13))
    received, bad, results = rig.step(rig.order(1, 0, (8, 9)), stores=(store,))
    assert (received, bad) == (set(), {8, 9})
    by_plan = {result.plan_id: result for result in results}
    assert (by_plan[1].failed, by_plan[1].errno) == ((0,), errno.EIO)
    assert (by_plan[7].checksums, by_plan[7].errno) == ((None,), errno.ECANCELED)
    rig.backend.failing = False
    assert rig.step(rig.order(2, 0, (8, 9)), stores=(rig.store_plan(8, 5, (8, 9)),))[1] == set()


def test_a_load_without_a_plan_is_reported_in_the_same_step(rig):
    rig = rig()
    received, bad, results = rig.step(
        RequestLoad("r", (4, 5), None, layerwise=True), stores=(rig.store_plan(7, 5, (12, 13)),)
    )
    assert (received, bad) == (set(), {4, 5})
    assert [(r.plan_id, r.errno) for r in results] == [(7, errno.ECANCELED)]


def test_a_drive_that_does_not_answer_stops_the_step_for_a_bounded_time_and_writes_no_page_later(rig):
    rig = rig(DelayedBackendOfReads, patience=0.05)
    rig.backend.hold = True
    store = rig.store_plan(7, 5, (12, 13))
    received, bad, results = rig.step(rig.order(1, 0, (8, 9)), stores=(store,))
    assert (received, bad) == (set(), {8, 9})
    before = [rig.page(layer, 8) for layer in range(3)]
    rig.backend.hold = False
    rig.backend.release()
    assert rig.engine.wait_idle(time.monotonic() + 30)
    assert [rig.page(layer, 8) for layer in range(3)] == before, "the blocks may belong to others by now"
    late = [*results, *rig.report()]
    assert {result.plan_id for result in late} == {1, 7}
    assert rig.side.take_bad_blocks() == set(), "told once"


def test_a_model_that_runs_without_asking_may_have_read_rubbish(rig):
    rig = rig()
    received, bad, _ = rig.step(rig.order(1, 0, (8, 9)), names=[])
    assert (received, bad) == (set(), {8, 9})


def test_results_come_with_the_step_also_where_vllm_saves_last(rig):
    # With a drafter vLLM asks for results and bad blocks first and calls wait_for_save afterwards.
    rig = rig(fail_layer(1))
    rig.side.begin_step(StepOrders(LAYOUT, loads=(rig.order(1, 0, (8, 9)),)))
    rig.side.start_loads()
    rig.run_layers()
    assert [result.plan_id for result in rig.report()] == [1]
    assert rig.side.take_bad_blocks() == {8, 9}
    rig.side.finish_step()
    assert rig.side.take_bad_blocks() == set()


def test_parked_and_waited_for_loads_in_one_step(rig):
    rig = rig()
    received, bad, _ = rig.step(
        rig.order(1, 0, (8, 9), layerwise=False, request_id="parked"), rig.order(2, 1, (10, 11))
    )
    assert rig.engine.wait_idle(time.monotonic() + 30)
    rig.report()
    assert received | rig.side.take_received() == {"parked"}
    assert bad == set()


def test_a_store_that_cannot_be_opened_fails_the_step(rig):
    rig = rig()
    order = rig.order(1, 0, (8, 9))
    engine, rig.side._engine = rig.side._engine, None
    rig.side._open_engine = lambda layout: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only"))
    received, bad, results = rig.step(order, stores=(rig.store_plan(7, 5, (12, 13)),))
    assert (received, bad) == (set(), {8, 9})
    assert {r.plan_id: r.errno for r in results} == {1: errno.EROFS, 7: errno.ECANCELED}
    rig.side._engine = engine


@pytest.mark.parametrize("layerwise", [False, True])
def test_loads_that_a_defect_keeps_from_starting_are_reported_as_failed(rig, monkeypatch, layerwise):
    rig = rig()
    monkeypatch.setattr(rig.side._meter, "begin_load", lambda plan_id: 1 / 0)
    received, bad, results = rig.step(
        rig.order(1, 0, (8, 9), layerwise=layerwise), stores=(rig.store_plan(7, 5, (12, 13)),)
    )
    assert bad == {8, 9}
    assert received == (set() if layerwise else {"r"})
    if layerwise:
        assert {r.plan_id: r.errno for r in results} == {1: errno.EIO, 7: errno.ECANCELED}
