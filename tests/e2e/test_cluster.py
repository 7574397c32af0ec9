# SPDX-License-Identifier: Apache-2.0
"""vLLM engines over one Mooncake cluster, some of which dies on the way. All of it with TUTTI_LONG_TESTS.

Server A is a process of its own and is killed; B is an engine here, with pages to look into.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import OPTIONS, Engine, prompt, settings_of
from tests.e2e.test_shared_store import answer_and_pages, chunks_moved

from tools.engine_process import EngineProcess, EngineSpec
from tutti_engine.testing.mooncake import MooncakeCluster, mooncake_master

pytestmark = [
    pytest.mark.skipif("TUTTI_LONG_TESTS" not in os.environ, reason="minutes: set TUTTI_LONG_TESTS"),
    pytest.mark.skipif(
        mooncake_master() is None, reason="needs Mooncake: pip install mooncake-transfer-engine-non-cuda"
    ),
]

DEMO = Path(__file__).parents[2] / "tools" / "cluster_demo.py"
PATIENCE = 120.0

FIRST, SECOND, THIRD = (prompt(700 + n, 500) for n in range(3))


def sharing(cluster: MooncakeCluster) -> dict[str, Any]:
    """Return the settings of a server of the cluster."""
    return {
        "shared_store": {"kind": "mooncake", "master": cluster.master},
        "shared_write": "always",
        "shared_lookup_ms": 5000,
        "shared_lookup_steps": 10_000_000,
        "shared_timeout_seconds": 20,
        "shared_hit_seconds": 1,
        "shared_miss_seconds": 1,
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[MooncakeCluster]:
    with MooncakeCluster() as cluster:
        for _ in range(2):
            cluster.start_node(512 << 20)
        yield cluster


@pytest.fixture(scope="module")
def server_a(model: Path, cluster: MooncakeCluster, tmp_path_factory: Any) -> Iterator[EngineProcess]:
    """The server that computes; it has answered all prompts."""
    settings = settings_of(tmp_path_factory.mktemp("a") / "cache") | sharing(cluster)
    process = EngineProcess(EngineSpec(str(model), settings, OPTIONS), one_process=True)
    try:
        for one in (FIRST, SECOND, THIRD):
            assert process.answer(one).hit_tokens == 0
        # What the last step has stored may still be on its way; this one comes behind it.
        process.answer(prompt(710, 200))
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def cold(model: Path, vllm_loaded: None, tmp_path_factory: Any) -> dict[str, bytes]:
    """The KV of the first prompt as an engine computes it that shares nothing."""
    engine = Engine(model, settings_of(tmp_path_factory.mktemp("alone") / "cache"), {})
    _, pages = answer_and_pages(engine, FIRST)
    engine.close()
    return pages


@pytest.fixture(scope="module")
def server_b(
    model: Path, server_a: EngineProcess, cold: Any, cluster: MooncakeCluster, tmp_path_factory: Any
) -> Iterator[Engine]:
    settings = settings_of(tmp_path_factory.mktemp("b") / "cache") | sharing(cluster)
    engine = Engine(model, settings, {})
    yield engine
    engine.close()


def forget(engine: Engine) -> None:
    """Leave a server nothing in its memory and nothing on its drive."""
    engine.forget_memory()
    engine._core.scheduler.connector._scheduler.engine.reset()


@pytest.fixture
def b(server_b: Engine) -> Engine:
    forget(server_b)
    return server_b


def shares_again(engine: Engine, reference: Callable[[list[int]], Any], seed: int) -> None:
    """Answer new prompts until one is written to the cluster and is a hit from there."""
    end = time.monotonic() + PATIENCE
    while True:
        tokens = prompt(seed, 500)
        seed += 1
        assert engine.answer(tokens) == reference(tokens)
        forget(engine)
        before = engine.counters()
        assert engine.answer(tokens) == reference(tokens)
        if chunks_moved(engine, before)[0] == 7:
            return
        assert time.monotonic() < end, "the cluster did not heal"


def test_cold_on_a_is_a_hit_on_b_with_the_same_bytes(b, cold, reference):
    before = b.counters()
    answer, pages = answer_and_pages(b, FIRST)
    assert answer == reference(FIRST)
    assert chunks_moved(b, before)[0] == 7
    assert pages == cold
    assert b.in_use() == {}


def test_b_still_hits_after_the_death_of_a(b, server_a, reference):
    server_a.kill()
    before = b.counters()
    assert b.answer(SECOND) == reference(SECOND)
    assert chunks_moved(b, before)[0] == 7
    assert b.in_use() == {}


def test_a_node_that_dies_costs_hits_and_no_answer(b, cluster, reference):
    cluster.nodes[0].kill()
    cluster.nodes[0].wait()
    for tokens in (THIRD, FIRST, SECOND):
        forget(b)
        assert b.answer(tokens) == reference(tokens)
    assert b.in_use() == {}
    shares_again(b, reference, 720)


def test_a_master_that_dies_costs_hits_and_no_answer(b, cluster, reference):
    cluster.kill_master()
    before = b.counters()
    for tokens in (THIRD, FIRST, SECOND):
        forget(b)
        assert b.answer(tokens) == reference(tokens)
    assert chunks_moved(b, before)[0] == 0
    cluster.start_master()
    shares_again(b, reference, 820)
    assert b.in_use() == {}


def test_the_demonstration_shows_what_it_is_to_show(tmp_path):
    command = [sys.executable, DEMO, "--length", "1024", "--root", tmp_path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
