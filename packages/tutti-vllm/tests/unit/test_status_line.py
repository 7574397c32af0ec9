# SPDX-License-Identifier: Apache-2.0
"""One line when something changed, none when nothing did."""

import logging
import threading

import pytest

from tutti_engine import Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_vllm.metrics.meters import SchedulerMeter
from tutti_vllm.metrics.status_line import StatusLine, describe

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
MIB = 1 << 20


@pytest.fixture
def meter():
    return SchedulerMeter(TuttiEngine(GEOMETRY, chunk_ids=range(4)))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="tutti_vllm.metrics.status_line")
    return lambda: [record.message for record in caplog.records]


def test_a_line_says_what_happened_since_the_last_one(meter, lines):
    line = StatusLine(meter, 0)
    assert not line.write() and lines() == []
    meter.note_prompt(1000, 640)
    meter.note_prompt(1000, 0)
    assert line.write() and not line.write()
    meter.note_prompt(500, 0)
    assert line.write()
    assert lines() == [
        "Tutti: 1 of 2 prompts hit, 640 of 2,000 tokens (32.0%); 0 of 4 chunks are taken.",
        "Tutti: 0 of 1 prompts hit, 0 of 500 tokens (0.0%); 0 of 4 chunks are taken.",
    ]


def test_bytes_bandwidth_trouble_and_pauses_are_named():
    moved = {
        "read_bytes": 512 * MIB,
        "load_microseconds": 250_000,
        "written_bytes": 3 * MIB,
        "evicted_chunks": 7,
        "load_failed_chunks": 2,
        "corrupt_chunks": 1,
        "over_budget_chunks": 4,
        "break_even_refused": 5,
    }
    gauges = {"resident_chunks": 1200, "capacity_chunks": 5000, "store_breaker": 1.0}
    assert describe(moved, gauges) == (
        "Tutti: 512.0 MiB loaded at 2.00 GiB/s a rank; 3.0 MiB stored; 7 chunks evicted; 2 chunks failed to"
        " load; 1 chunks did not verify; 4 chunks over the write budget; 5 hits were faster to compute;"
        " 1,200 of 5,000 chunks are taken; paused: stores."
    )


def test_the_numbers_are_those_of_the_engine(meter, lines):
    engine = meter._engine
    line = StatusLine(meter, 0)
    plan = engine.plan_store([(b"a", ((0, 1),))])
    engine.complete_store(0, StoreResult(plan.plan_id, (b"s" * 16,), bytes_written=2 * MIB))
    plan = engine.plan_load([(b"a", ((0, 1),))])
    engine.complete_load(LoadResult(plan.plan_id, bytes_read=MIB, seconds=0.5))
    line.write()
    assert lines() == ["Tutti: 1.0 MiB loaded at 0.00 GiB/s a rank; 2.0 MiB stored; 1 of 4 chunks are taken."]


def test_the_thread_writes_and_the_end_writes_the_rest(meter, lines, monkeypatch):
    written = threading.Event()
    write = StatusLine.write

    def tell(self):
        if write(self):
            written.set()

    monkeypatch.setattr(StatusLine, "write", tell)
    line = StatusLine(meter, 0.01)
    meter.note_prompt(10, 0)
    assert written.wait(30)
    meter.note_prompt(20, 0)
    line.close()
    line.close()
    assert sum("prompts hit" in text for text in lines()) == 2
    assert not any(thread.name == "tutti-status" for thread in threading.enumerate())


def test_an_interval_of_0_writes_nothing(meter, lines):
    line = StatusLine(meter, 0)
    meter.note_prompt(10, 0)
    line.close()
    assert lines() == []
