# SPDX-License-Identifier: Apache-2.0
"""What the engine itself adds to its two sides."""

from __future__ import annotations

import errno
import time

import pytest

from tutti_engine import ChunkKey, Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
KEY = ChunkKey(b"k")


@pytest.fixture
def engine():
    backend = MemoryBackend(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=4)
    engine = TuttiEngine(GEOMETRY, chunk_ids=backend.chunk_ids(4), backend=backend)
    pages = [memoryview(bytearray(bytes([layer + 1]) * 8 * 4096)) for layer in range(2)]
    engine.bind(PlainMover(GEOMETRY, pages))
    engine.store(engine.plan_store([(KEY, ((0, 1),))]))
    assert engine.wait_idle(time.monotonic() + 30) and engine.settle()
    yield engine
    assert engine.shutdown()


def test_layers_are_loaded_in_order_and_can_be_waited_for(engine):
    first, second = engine.load_layers(engine.plan_load([(KEY, ((2, 3),))]))
    assert second.wait(time.monotonic() + 30) and first.poll() and first.ok and second.ok
    assert [result.failed for result in engine.settle()] == [()]


def test_completed_loads_are_measured_and_computing_is_told(engine):
    assert engine.should_load(32).why == "load: too few measurements of load yet (0 of 3)"
    for _ in range(3):
        engine.load(engine.plan_load([(KEY, ((2, 3),))]))
        assert engine.wait_idle(time.monotonic() + 30) and engine.settle()
    assert engine.should_load(32).why == "load: too few measurements of compute yet (0 of 3)"
    for _ in range(3):
        engine.note_compute(1000, 1e-9)
    assert not engine.should_load(32)
    for _ in range(30):
        engine.note_compute(1000, 3600.0)
    assert engine.should_load(32)


def test_a_load_that_failed_is_no_measurement():
    engine = TuttiEngine(GEOMETRY, chunk_ids=range(4))
    for plan_id in range(5):
        engine.complete_load(LoadResult(plan_id, failed=(1,), errno=5, bytes_read=1 << 20, seconds=1.0))
        engine.complete_load(LoadResult(plan_id, seconds=1.0))
    assert "load: 0 of 3" in engine.break_even.explain()


def two_ranks():
    """Return an engine of two ranks that have stored a chunk."""
    engine = TuttiEngine(GEOMETRY, chunk_ids=range(4), ranks=2)
    plan = engine.plan_store([(KEY, ((0, 1),))])
    for rank in range(2):
        engine.take(rank, StoreResult(plan.plan_id, (bytes(16),)))
    return engine


def test_a_report_that_comes_twice_is_one_measurement_and_one_rank():
    engine = two_ranks()
    for number in range(2):
        load = engine.plan_load([(KEY, ((0, 1),))])
        for _ in range(3):
            engine.take(0, LoadResult(load.plan_id, bytes_read=1 << 20, seconds=1.0))
        assert engine.planner.pending_loads == 1
        engine.take(1, LoadResult(load.plan_id, bytes_read=1 << 20, seconds=1.0))
        assert f"load: {number + 1} of 3" in engine.break_even.explain()


def test_a_load_takes_as_long_as_its_slowest_rank_and_one_that_a_rank_failed_is_no_measurement():
    """A request waits for all of them."""
    engine = two_ranks()
    for slow in (0, 1, 0, 1):
        load = engine.plan_load([(KEY, ((0, 1),))])
        for rank in range(2):
            seconds = 1.0 if rank == slow else 0.1
            engine.take(rank, LoadResult(load.plan_id, bytes_read=1 << 20, seconds=seconds))
    assert engine.break_even.load_seconds(32) == pytest.approx(1.0)
    for _ in range(5):
        load = engine.plan_load([(KEY, ((0, 1),))])
        engine.take(0, LoadResult(load.plan_id, bytes_read=1 << 20, seconds=1e-3))
        engine.take(1, LoadResult(load.plan_id, (0,), errno.ECANCELED, untried=(0,)))
    assert engine.break_even.load_seconds(32) == pytest.approx(1.0)


def test_each_side_says_what_it_lacks():
    with pytest.raises(RuntimeError, match="give it chunk_ids"):
        TuttiEngine(GEOMETRY).lookup_prefix([])
    with pytest.raises(RuntimeError, match="call bind first"):
        TuttiEngine(GEOMETRY).take_results()
    with pytest.raises(RuntimeError, match="give it a backend"):
        TuttiEngine(GEOMETRY).bind(PlainMover(GEOMETRY, []))
