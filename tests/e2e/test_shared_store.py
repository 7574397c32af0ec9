# SPDX-License-Identifier: Apache-2.0
"""A prefix that one server computed is a hit on another, through a store that both share.

Server A is a process of its own and is killed on the way; B is an engine here, with pages to look into.
Both share a directory, and nothing else: each has a drive of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_BYTES, OPTIONS, Engine, prompt, settings_of

from tools.engine_process import EngineProcess, EngineSpec

KIND = "tutti_engine.testing.shared_stores:DirectoryStore"
PATIENT = {"shared_lookup_ms": 60_000, "shared_lookup_steps": 10_000_000, "shared_timeout_seconds": 60}
"""What is counted here must not depend on how busy the machine is."""

FIRST, SECOND, LONG, DAMAGED, CUT = (prompt(300 + n, 500) for n in range(5))


def sharing(pool: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a server that shares ``pool``."""
    return {"shared_store": {"kind": KIND, "path": str(pool)}, "shared_write": "always"} | PATIENT | more


def answer_and_pages(engine: Engine, tokens: list[int]) -> tuple[list[list[int]], dict[str, bytes]]:
    """Answer a prompt; return the answer and the KV of its whole chunks as it lies in the cache."""
    tables = engine.watch_blocks()
    answer = engine.answer(tokens)
    (table,) = (blocks for blocks in tables.values() if blocks)
    layers = [name for group in engine.kv_cache_config.kv_cache_groups for name in group.layer_names]
    count = (len(tokens) - 1) // (32 * BLOCKS_PER_CHUNK) * BLOCKS_PER_CHUNK
    return answer, engine.pages(layers, table[:count])


def chunks_moved(engine: Engine, before: dict[str, int]) -> tuple[int, int]:
    """Return how many chunks came from the shared store and went there, as bytes prove."""
    found = engine.moved(before)
    loaded, written = found.get("shared_load_chunks", 0), found.get("shared_store_chunks", 0)
    assert found.get("shared_read_bytes", 0) == loaded * CHUNK_BYTES
    assert found.get("shared_written_bytes", 0) == written * CHUNK_BYTES
    return loaded, written


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "pool"


@pytest.fixture(scope="module")
def server_a(model: Path, pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The server that computes; it has answered all prompts."""
    root = tmp_path_factory.mktemp("a")
    spec = EngineSpec(str(model), settings_of(root / "cache") | sharing(pool), OPTIONS)
    process = EngineProcess(spec, one_process=True)
    try:
        for one in (FIRST, SECOND, LONG, DAMAGED, CUT):
            assert process.answer(one).hit_tokens == 0
        # What the last step has stored may still be on its way; this one comes behind it.
        process.answer(prompt(310, 200))
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def cold(model: Path, vllm_loaded: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The KV of the first prompt as an engine computes it that shares nothing."""
    engine = Engine(model, settings_of(tmp_path_factory.mktemp("alone") / "cache"), {})
    _, pages = answer_and_pages(engine, FIRST)
    engine.close()
    return pages


@pytest.fixture(scope="module")
def server_b(
    model: Path, server_a: EngineProcess, cold: dict[str, bytes], pool: Path, tmp_path_factory: Any
) -> Iterator[Engine]:
    settings = settings_of(tmp_path_factory.mktemp("b") / "cache") | sharing(pool, shared_write="never")
    engine = Engine(model, settings, {})
    connect(engine)
    yield engine
    engine.close()


def connect(engine: Engine) -> None:
    """Wait for both clients of the store: who asks for something before they are there computes it."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    engine.answer(prompt(311, 40))  # the worker's client is made with the first orders
    worker = get_kv_transfer_group()._worker
    for store in (
        engine._core.scheduler.connector._scheduler.shared.tier._store,
        worker.shared._engine._backend._store,
    ):
        assert store.wait_settled(60) and store.why_not is None


@pytest.fixture
def b(server_b: Engine) -> Engine:
    """Server B with nothing in its memory and nothing on its drive."""
    server_b.forget_memory()
    server_b._core.scheduler.connector._scheduler.engine.reset()
    return server_b


def test_cold_on_a_is_a_hit_on_b_with_the_same_bytes(b, cold, reference):
    before = b.counters()
    answer, pages = answer_and_pages(b, FIRST)
    assert answer == reference(FIRST)
    assert chunks_moved(b, before) == (7, 0)
    assert all(any(each) for each in cold.values()) and len(cold) == 8
    assert pages == cold
    # It is on B's own drive now, and comes from there the next time.
    b.forget_memory()
    before = b.counters()
    assert b.answer(FIRST) == reference(FIRST)
    assert chunks_moved(b, before) == (0, 0)
    assert b.moved(before)["load_chunks"] == 7
    assert b.in_use() == {}


def test_b_still_hits_after_the_death_of_a(b, server_a, reference):
    server_a.kill()
    before = b.counters()
    assert b.answer(SECOND) == reference(SECOND)
    assert chunks_moved(b, before) == (7, 0)
    assert b.in_use() == {}


def test_one_request_loads_from_both_stores(b, reference):
    head = prompt(400, 257, shared=LONG[:256])
    b.answer(head)
    b.forget_memory()
    before = b.counters()
    assert b.answer(LONG) == reference(LONG)
    assert b.moved(before)["load_chunks"] == 4
    assert chunks_moved(b, before) == (3, 0)
    assert b.in_use() == {}


def test_bytes_that_changed_on_the_way_are_computed(b, pool, reference):
    for each in pool.glob("*.obj"):
        data = bytearray(each.read_bytes())
        data[-5000] ^= 1
        each.write_bytes(data)
    before = b.counters()
    assert b.answer(DAMAGED) == reference(DAMAGED)
    found = b.moved(before)
    assert (found["shared_load_failed_chunks"], found["shared_damaged_chunks"]) == (7, 7)
    assert b.in_use() == {}
    for each in pool.glob("*.obj"):
        data = bytearray(each.read_bytes())
        data[-5000] ^= 1
        each.write_bytes(data)


def test_a_store_that_is_cut_off_costs_no_answer_and_heals(b, pool, reference):
    side = b._core.scheduler.connector._scheduler
    (pool / "cut").touch()
    before = b.counters()
    assert b.answer(CUT) == reference(CUT)
    assert b.moved(before)["shared_lookup_errors"] >= 3
    assert "shared" in side.degraded()
    assert chunks_moved(b, before) == (0, 0)
    (pool / "cut").unlink()
    b.forget_memory()
    side.engine.reset()
    # The pause that the breaker makes, without waiting for it. Who asks first finds out; others go without
    # until it has.
    tier = side.shared.tier
    tier.lookup.breaker._retry_at = 0.0
    deadline = time.monotonic() + 60
    while tier.degraded() is not None:
        assert time.monotonic() < deadline, tier.degraded()
        tier.look([b"anything"])
    before = b.counters()
    assert b.answer(CUT) == reference(CUT)
    assert chunks_moved(b, before) == (7, 0)
    assert "shared" not in side.degraded()
    assert b.in_use() == {}
