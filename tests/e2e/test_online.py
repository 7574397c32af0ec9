# SPDX-License-Identifier: Apache-2.0
"""A server with an HTTP port under concurrent load: conversations that return, and clients that hang up."""

from __future__ import annotations

import asyncio
import time

from tests.e2e.conftest import BLOCKS_PER_CHUNK, MODEL

from tools import monitoring
from tools.engine_process import EngineSpec, store_directory
from tools.online_server import Conversation, OnlineServer, complete, converse, metric_families, read_metrics

CONVERSATIONS = 8
# Two or three of the longest conversations: the others have to come back from disk.
BLOCKS = 48
MOST_TOKENS = 640


async def load(server: OnlineServer) -> list[Conversation]:
    return await asyncio.gather(
        *(
            converse(server, seed, turns=3, vocabulary=MODEL.vocabulary, most_tokens=MOST_TOKENS)
            for seed in range(CONVERSATIONS)
        )
    )


def settled(server: OnlineServer) -> dict[str, float]:
    """Return the metrics once no request is left, also of those whose clients hung up."""
    deadline = time.monotonic() + 30
    while (metrics := read_metrics(server))["vllm:num_requests_running"] and time.monotonic() < deadline:
        time.sleep(0.1)
    return metrics


def asks_only_for_what_is_shown(families: dict[str, str]) -> None:
    """Compare the dashboard and the alert rules with a server's own ``/metrics``."""
    shown = {
        name + end
        for name, kind in families.items()
        for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    asked = {
        name
        for file in ("dashboard.json", "alerts.yml")
        for name in monitoring.metric_names((monitoring.FOLDER / file).read_text())
    }
    assert len(asked) > 25 and asked <= shown, asked - shown


def test_conversations_over_http_are_answered_as_by_vllm_alone(model, tmp_path, reference):
    connector = {
        "capacity_bytes": 256 << 20,
        "root": str(tmp_path / "cache"),
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "strict": True,
    }
    options = {"max_model_len": 1024, "num_gpu_blocks_override": BLOCKS}
    with OnlineServer(EngineSpec(str(model), connector, options)) as server:
        server.wait_until_ready()
        conversations = asyncio.run(load(server))
        metrics = settled(server)
        assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
        assert metrics["vllm:external_prefix_cache_hits_total"] > 0
        asks_only_for_what_is_shown(metric_families(server))
        # Whoever hung up left nothing behind: the server still has all its blocks.
        again = conversations[0].turns[-1]
        assert asyncio.run(complete(server, again[0], again[1])) == again[2]
        assert settled(server)["vllm:kv_cache_usage_perc"] == 0
        assert server.stop() == 0
        deadline = time.monotonic() + 20
        while server.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not server.processes()
        assert "Tutti: the server runs without" not in server.output
        assert "the server goes on" not in server.output, "no callback failed"
    assert store_directory(tmp_path / "cache") is not None
    turns = [turn for conversation in conversations for turn in conversation.turns]
    assert len(turns) >= 2 * CONVERSATIONS
    assert sum(conversation.left for conversation in conversations) >= 3
    for prompt, most, answer in turns:
        assert reference(prompt, max_tokens=most) == [answer]
