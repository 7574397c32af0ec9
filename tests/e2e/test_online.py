# SPDX-License-Identifier: Apache-2.0
"""A server with an HTTP port under concurrent load: conversations that return, and clients that hang up."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.e2e.conftest import BLOCKS_PER_CHUNK, MODEL

from tools import monitoring
from tools.engine_process import EngineSpec, store_directory
from tools.online_server import Conversation, OnlineServer, complete, converse, metric_families, read_metrics
from tutti_engine import warming

CONVERSATIONS = 8
# Two or three of the longest conversations: the others have to come back from disk.
BLOCKS = 48
MOST_TOKENS = 640


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Receives spans by OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        spans = self.spans = []
        came = self.came = threading.Condition()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["Content-Length"]))
                with came:
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        spans.extend(span for scope in resource.scope_spans for span in scope.spans)
                    came.notify_all()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def told(collector: Collector, name: str) -> list[tuple[Any, dict[str, Any]]]:
    """Return the spans of a name and their attributes."""
    return [
        (span, {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes})
        for span in collector.spans
        if span.name == name
    ]


def our_stores(collector: Collector) -> list[tuple[Any, dict[str, Any]]]:
    """Return the stores of the request that named the span it is part of."""
    return [each for each in told(collector, "tutti store") if each[0].trace_id.hex() == TRACE]


def spans_tell_of_loads_and_stores(collector: Collector, loaded: float) -> None:
    """Compare what a collector got with what the metrics say, and with the span that a client was in."""
    loads = [values for _, values in told(collector, "tutti load")]
    assert sum(values["tutti.chunks"] for values in loads) >= loaded > 0
    assert {values["tutti.outcome"] for values in loads} <= {"ok", "partial", "failed"}
    assert any(values["tutti.bytes"] > 0 and values["tutti.outcome"] == "ok" for values in loads)
    ours = our_stores(collector)
    assert ours and {span.parent_span_id.hex() for span, _ in ours} == {PARENT}
    assert sum(values["tutti.chunks"] for _, values in ours) == 3


def warms_up(server: OnlineServer) -> None:
    """Send prompts as ``tutti warm`` does and compare what is told of them with what must be stored."""
    lines = [json.dumps({"prompt": [9 + number] * 200}) for number in range(3)]
    there = warming.Server(f"http://127.0.0.1:{server.port}")
    # What others asked for before is still being stored.
    warming.settled(there)
    report = warming.warm(there, warming.read_prompts(lines), model=there.model(), concurrency=2)
    assert (report.sent, report.failed, report.prompt_tokens) == (3, [], 600)
    assert report.moved is not None and report.moved["prompt_tokens"] == 600
    assert report.moved["stored_chunks"] >= 9 and report.moved["hit_tokens"] == 0


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
    with Collector() as collector:
        options = {
            "max_model_len": 1024,
            "num_gpu_blocks_override": BLOCKS,
            "otlp_traces_endpoint": collector.url,
        }
        spec = EngineSpec(str(model), connector, options)
        turns = serve_conversations(spec, collector)
    assert store_directory(tmp_path / "cache") is not None
    for prompt, most, answer in turns:
        assert reference(prompt, max_tokens=most) == [answer]


def serve_conversations(spec: EngineSpec, collector: Collector) -> list[tuple[list[int], int, list[int]]]:
    """Return what was asked and answered; look at everything else that can be seen of the server."""
    with OnlineServer(spec, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf") as server:
        server.wait_until_ready()
        conversations = asyncio.run(load(server))
        metrics = settled(server)
        assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
        assert metrics["vllm:external_prefix_cache_hits_total"] > 0
        asks_only_for_what_is_shown(metric_families(server))
        # Whoever hung up left nothing behind: the server still has all its blocks.
        again = conversations[0].turns[-1]
        assert asyncio.run(complete(server, again[0], again[1])) == again[2]
        asyncio.run(complete(server, [7] * 200, 1, trace=f"00-{TRACE}-{PARENT}-01"))
        warms_up(server)
        assert settled(server)["vllm:kv_cache_usage_perc"] == 0
        # A server that is told to end does not wait for what is still to be exported.
        with collector.came:
            assert collector.came.wait_for(lambda: our_stores(collector), timeout=60)
        assert server.stop() == 0
        deadline = time.monotonic() + 20
        while server.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not server.processes()
        assert "Tutti: the server runs without" not in server.output
        assert "the server goes on" not in server.output, "no callback failed"
    spans_tell_of_loads_and_stores(collector, metrics["vllm:tutti_loaded_chunks_total"])
    turns = [turn for conversation in conversations for turn in conversation.turns]
    assert len(turns) >= 2 * CONVERSATIONS
    assert sum(conversation.left for conversation in conversations) >= 3
    return turns
