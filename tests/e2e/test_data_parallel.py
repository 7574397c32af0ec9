# SPDX-License-Identifier: Apache-2.0
"""Two data-parallel engines behind one port, on one root: each has a store of its own, also after a restart.

Ten processes start, which takes minutes on few cores:
``TUTTI_LONG_TESTS=1 pytest tests/e2e/test_data_parallel.py``.
"""

import asyncio
import json
import os

import pytest
from tests.e2e.conftest import BLOCKS_PER_CHUNK, CHUNK_TOKENS, prompt

from tools.engine_process import EngineSpec
from tools.online_server import OnlineServer, complete, read_metrics

pytestmark = pytest.mark.skipif(
    not os.environ.get("TUTTI_LONG_TESTS"), reason="takes minutes; TUTTI_LONG_TESTS=1 runs it"
)

CAPACITY = 64 << 20
ENGINES = 2


async def ask(server, asked):
    """Return the answers to (engine, prompt) pairs, all asked at once."""
    return await asyncio.gather(*(complete(server, tokens, 8, engine=engine) for engine, tokens in asked))


def test_engines_share_a_root_and_its_capacity_and_nothing_else(model, tmp_path, reference):
    root = tmp_path / "cache"
    connector = {
        "capacity_bytes": CAPACITY,
        "root": str(root),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
        "break_even": False,
        # vLLM tells engines of a dense model their number, but not how many there are.
        "replicas": ENGINES,
    }
    spec = EngineSpec(
        str(model),
        connector,
        {"max_model_len": 1024, "num_gpu_blocks_override": 64, "data_parallel_size": ENGINES},
    )
    prompts = [prompt(900 + number, 5 * CHUNK_TOKENS + 3) for number in range(4)]
    asked = [(number % ENGINES, tokens) for number, tokens in enumerate(prompts)]
    expected = reference(*prompts)
    with OnlineServer(spec) as server:
        server.wait_until_ready()
        assert asyncio.run(ask(server, asked)) == expected
        # Each engine's own store has its prompts; the other's are computed.
        across = [(1 - engine, tokens) for engine, tokens in asked[:2]]
        assert asyncio.run(ask(server, across)) == expected[:2]
        assert read_metrics(server)["vllm:external_prefix_cache_hits_total"] == 0
        assert server.stop() == 0, server.output
    stores = [json.loads(path.read_text()) for path in root.glob("*/namespace.json")]
    assert len(stores) == ENGINES and sum(each["reserved_bytes"] for each in stores) <= CAPACITY

    with OnlineServer(spec) as server:
        server.wait_until_ready()
        assert asyncio.run(ask(server, asked)) == expected
        assert read_metrics(server)["vllm:external_prefix_cache_hits_total"] == 4 * 5 * CHUNK_TOKENS
        assert server.stop() == 0, server.output
        assert "the server runs without" not in server.output and "the server goes on" not in server.output
