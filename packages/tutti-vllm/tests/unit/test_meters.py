# SPDX-License-Identifier: Apache-2.0
"""What is measured is what happened, once, and a step in which nothing happened says nothing."""

import errno
import logging
import time

import pytest

from tutti_engine import ChunkTransfer, Geometry, LoadPlan, LoadResult, StorePlan, StoreResult, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.counters import Counters
from tutti_engine.movers.plain import PlainMover
from tutti_vllm.metrics import meters
from tutti_vllm.metrics.meters import SchedulerMeter, WorkerMeter
from tutti_vllm.payload import Deltas, make_payload, merge

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
CHUNK_BYTES = 2 * 2 * 4096
SUM = b"s" * 16


class Scheduler:
    """A planning engine with its meter, and the sum of what the meter told."""

    def __init__(self, places=4, **options):
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(places), **options)
        self.meter = SchedulerMeter(self.engine)
        self.sum = make_payload()

    def take(self, broken=False):
        payload = self.meter.take(broken=broken)
        if payload is not None:
            merge(self.sum, payload)
        return payload

    def store(self, *keys, code=0):
        plan = self.engine.plan_store([(key, ((0, 1),)) for key in keys])
        sums = (None if code else SUM,) * len(plan.transfers)
        size = 0 if code else len(plan.transfers) * CHUNK_BYTES
        self.engine.complete_store(0, StoreResult(plan.plan_id, sums, errno=code, bytes_written=size))

    def load(self, key, code=0):
        plan = self.engine.plan_load([(key, ((0, 1),))])
        failed = (0,) if code else ()
        self.engine.complete_load(LoadResult(plan.plan_id, failed, code, CHUNK_BYTES, 0.5))


def test_counts_add_up_to_the_engines_own():
    scheduler = Scheduler()
    assert scheduler.take()["gauges"]["capacity_chunks"] == 4, "what there is shows before anything happened"
    scheduler.store(b"a", b"b", b"c")
    scheduler.take()
    scheduler.load(b"a")
    scheduler.store(b"d", b"e")
    scheduler.take()
    scheduler.load(b"b", errno.EIO)
    scheduler.take()
    counters = scheduler.engine.planner.counters.snapshot()
    assert scheduler.sum["counts"] == counters | {"load_tokens": 32}
    assert counters["store_chunks"] == 5 and counters["load_failed_chunks"] == 1
    gauges = scheduler.sum["gauges"]
    assert gauges["resident_chunks"] == scheduler.engine.planner.resident_chunks
    assert gauges["resident_bytes"] == scheduler.engine.planner.resident_chunks * CHUNK_BYTES
    assert gauges["capacity_bytes"] == 4 * CHUNK_BYTES


def test_a_step_in_which_nothing_happened_says_nothing_and_copies_nothing(monkeypatch):
    scheduler = Scheduler()
    scheduler.store(b"a")
    assert scheduler.take() is not None
    monkeypatch.setattr(Counters, "snapshot", lambda self: pytest.fail("counters were copied"))
    assert scheduler.take() is None
    assert scheduler.take() is None


def test_a_plan_that_begins_shows_although_nothing_was_counted():
    scheduler = Scheduler()
    scheduler.store(b"a")
    scheduler.take()
    plan = scheduler.engine.plan_load([(b"a", ((0, 1),))])
    assert scheduler.take()["gauges"]["pending_loads"] == 1
    scheduler.engine.complete_load(LoadResult(plan.plan_id))
    assert scheduler.take()["gauges"]["pending_loads"] == 0


def test_a_pause_and_its_end_show_and_the_end_is_told_at_once(caplog):
    scheduler = Scheduler()
    scheduler.take()
    for key in (b"a", b"b", b"c"):
        scheduler.store(key, code=errno.EIO)
    gauges = scheduler.take()["gauges"]
    assert (gauges["store_breaker"], gauges["load_breaker"], gauges["degraded"]) == (1, 0, 1)
    scheduler.engine.planner.store_breaker.succeeded()
    with caplog.at_level(logging.INFO):
        assert scheduler.take()["gauges"]["degraded"] == 0
    assert caplog.messages[0].startswith("Tutti: the cache cannot store now (Input/output error)")
    assert caplog.messages[1:] == ["Tutti: the cache can store again."]


def test_a_cache_that_cannot_be_used_is_degraded():
    scheduler = Scheduler()
    assert scheduler.take()["gauges"]["degraded"] == 0
    assert scheduler.take(broken=True)["gauges"]["degraded"] == 1
    assert scheduler.take(broken=True) is None


def test_a_reset_takes_nothing_back():
    scheduler = Scheduler()
    scheduler.store(b"a", b"b")
    scheduler.take()
    scheduler.engine.reset()
    payload = scheduler.take()
    assert all(amount > 0 for amount in payload["counts"].values())
    assert payload["gauges"]["resident_chunks"] == 0
    assert scheduler.sum["counts"]["store_chunks"] == 2


def test_prompts_and_hits_are_counted_once_a_prompt():
    scheduler = Scheduler()
    scheduler.meter.note_prompt(100, 64)
    scheduler.meter.note_prompt(50, 0)
    assert scheduler.take()["counts"] == {"prompts": 2, "prompt_tokens": 150, "hits": 1, "hit_tokens": 64}


def test_totals_that_begin_anew_are_all_new():
    deltas = Deltas()
    assert deltas.take({"a": 10, "b": 5}) == {"a": 10, "b": 5}
    assert deltas.take({"a": 12, "b": 5}) == {"a": 2}
    assert deltas.take({"a": 3, "b": 5}) == {"a": 3}
    assert deltas.take({"a": 3}) == {}


class Worker:
    def __init__(self):
        self.clock_now = 10.0
        self.meter = WorkerMeter(3, clock=lambda: self.clock_now)
        backend = MemoryBackend(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
        self.engine = TuttiEngine(GEOMETRY, backend=backend)
        self.engine.bind(PlainMover(GEOMETRY, [memoryview(bytearray(16 * 4096)) for _ in range(2)]))
        self.executor = self.engine.executor

    def finish(self):
        assert self.engine.wait_idle(time.monotonic() + 30)
        results = self.engine.take_results()
        for result in results:
            self.meter.end(result)
        return results


@pytest.fixture
def worker():
    one = Worker()
    yield one
    one.engine.shutdown()


def test_a_rank_tells_bytes_times_and_waits_by_path(worker):
    worker.meter.take(worker.executor)
    worker.engine.store(StorePlan(1, (ChunkTransfer(b"k", 2, ((3, 4),)),)))
    (stored,) = worker.finish()
    payload = worker.meter.take(worker.executor)
    assert payload["counts"]["store_bytes@MemoryBackend"] == stored.bytes_written == CHUNK_BYTES
    assert payload["counts"]["store_seconds@MemoryBackend"] > 0
    assert payload["counts"]["worker.store_waves"] == 1
    assert payload["gauges"]["store_rate@MemoryBackend@3"] > 0
    assert payload["gauges"]["stores_under_way@3"] == 0

    worker.meter.begin_load(2)
    worker.engine.load(LoadPlan(2, (ChunkTransfer(b"k", 2, ((5, 6),), (stored.checksums[0],)),)))
    worker.clock_now += 7
    worker.finish()
    payload = worker.meter.take(worker.executor)
    assert payload["samples"] == {"load_wait": [7.0]}
    assert payload["counts"]["load_bytes@MemoryBackend"] == CHUNK_BYTES
    assert "store_bytes@MemoryBackend" not in payload["counts"], "told once"
    assert not any("errors" in key for key in payload["counts"])
    assert worker.meter.take(worker.executor) is None


def test_errors_are_told_by_kind_also_without_an_execution_side():
    meter = WorkerMeter(0)
    meter.end(LoadResult(1, (0,), errno.EBADMSG))
    meter.end(LoadResult(2, (0,), errno.EIO))
    meter.end(LoadResult(3, (0,), errno.EIO))
    meter.end(StoreResult(4, (None,), errno=errno.ENOSPC))
    assert meter.take(None)["counts"] == {
        "load_errors@checksum": 1,
        "load_errors@EIO": 2,
        "store_errors@no_space": 1,
    }
    assert meter.take(None) is None


def test_an_execution_side_that_is_opened_anew_counts_on(worker):
    worker.engine.store(StorePlan(1, (ChunkTransfer(b"k", 2, ((3, 4),)),)))
    worker.finish()
    worker.meter.take(worker.executor)
    other = Worker()
    other.engine.store(StorePlan(1, (ChunkTransfer(b"k", 2, ((3, 4),)),)))
    for result in other.finish():
        worker.meter.end(result)
    payload = worker.meter.take(other.executor)
    assert payload["counts"]["worker.store_waves"] == 1
    assert all(amount > 0 for amount in payload["counts"].values())
    other.engine.shutdown()


def test_error_kinds_are_distinct():
    assert len(set(meters.ERROR_KINDS.values())) == len(meters.ERROR_KINDS)
