# SPDX-License-Identifier: Apache-2.0
"""Spans of loads and stores, as an exporter gets them."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tutti_engine import Geometry, LoadPlan, LoadResult, StoreResult, TuttiEngine
from tutti_vllm.messages import StepReport
from tutti_vllm.metrics import transfer_spans
from tutti_vllm.metrics.transfer_spans import TransferSpans, find_tracer
from tutti_vllm.scheduler_side.scheduler import SchedulerSide

pytest.importorskip("opentelemetry.sdk", reason="extra otel")

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

GEOMETRY = Geometry(num_layers=1, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
CHUNK = 64
SUM = b"s" * 8
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@dataclass
class Request:
    request_id: str
    num_tokens: int
    trace_headers: dict[str, str] | None = None
    num_computed_tokens: int = 0
    cache_salt: str | None = None
    block_hashes: list = field(default_factory=list)

    def __post_init__(self):
        self.block_hashes = [f"{self.num_tokens} {n}".encode() for n in range(self.num_tokens // 16)]


class Rig:
    """A scheduler's side of two ranks whose spans end up in a list."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(64), ranks=2)
        self.side = SchedulerSide(self.engine, None, hash_tokens=16)
        tracer = self.provider.get_tracer("test")
        self.side.spans = TransferSpans(tracer, chunk_tokens=CHUNK, load_ranks=2, store_ranks=2)

    def store(self, *requests):
        for request in requests:
            self.side.add_request(request)
        scheduled = {request.request_id: request.num_tokens for request in requests}
        (plan,) = self.side.build_orders(scheduled, {}, lambda request_id: (list(range(100, 200)),)).stores
        return plan

    def load(self, request):
        self.side.add_request(request)
        tokens = self.side.matched_tokens(request, 0)
        self.side.plan_load(request, (list(range(1, 60)),), tokens)
        (load,) = self.side.build_orders({}, {}, lambda request_id: ([],)).loads
        return load.plan

    def report(self, *results):
        for rank, result in enumerate(results):
            self.side.take_report(StepReport({rank: (result,)}))

    def stored(self, plan, rank_two=SUM):
        count = len(plan.transfers)
        self.report(
            StoreResult(plan.plan_id, (SUM,) * count, bytes_written=1000),
            StoreResult(plan.plan_id, (SUM,) * (count - 1) + (rank_two,), bytes_written=1000),
        )

    @property
    def spans(self):
        return [
            (span.name, dict(span.attributes), span.parent, span)
            for span in self.exporter.get_finished_spans()
        ]


@pytest.fixture
def rig():
    return Rig()


def test_a_load_is_a_child_of_its_request_and_says_what_it_moved(rig):
    rig.stored(rig.store(Request("first", 256)))
    rig.exporter.clear()
    plan = rig.load(Request("again", 256, HEADERS))
    first, second = (LoadResult(plan.plan_id, bytes_read=500) for _ in range(2))
    rig.side.take_report(StepReport({0: (first,)}))
    assert rig.spans == [], "one rank is still loading"
    rig.side.take_report(StepReport({1: (second,)}))
    ((name, attributes, parent, span),) = rig.spans
    assert name == "tutti load"
    assert attributes == {
        "gen_ai.request.id": "again",
        "tutti.tokens": 3 * CHUNK,
        "tutti.chunks": 3,
        "tutti.tier": "local",
        "tutti.mode": "async",
        "tutti.bytes": 1000,
        "tutti.outcome": "ok",
        "tutti.failed_chunks": 0,
    }
    assert f"{parent.span_id:016x}" == PARENT and f"{span.context.trace_id:032x}" == TRACE
    assert span.status.is_ok and span.end_time >= span.start_time


def test_what_fails_on_one_rank_or_on_both_counts_once(rig):
    rig.stored(rig.store(Request("first", 256)))
    plan = rig.load(Request("again", 256, HEADERS))
    rig.report(
        LoadResult(plan.plan_id, failed=(0, 1), errno=errno.ECANCELED, untried=(0, 1)),
        LoadResult(plan.plan_id, failed=(1,), errno=errno.EBADMSG, corrupt=(1,)),
    )
    _, attributes, _, span = rig.spans[-1]
    assert (attributes["tutti.outcome"], attributes["tutti.failed_chunks"]) == ("partial", 2)
    assert attributes["error.type"] == "checksum", "the graver of the two"
    assert not span.status.is_ok


def test_a_store_of_one_request_is_its_child_and_of_several_is_linked(rig):
    rig.stored(rig.store(Request("one", 128, HEADERS)))
    _, attributes, parent, span = rig.spans[-1]
    assert (attributes["tutti.chunks"], attributes["tutti.tokens"], attributes["tutti.bytes"]) == (
        2,
        128,
        2000,
    )
    assert f"{parent.span_id:016x}" == PARENT and span.links == ()
    rig.stored(rig.store(Request("two", 192, HEADERS), Request("three", 320)))
    _, attributes, parent, span = rig.spans[-1]
    assert parent is None and [f"{each.context.span_id:016x}" for each in span.links] == [PARENT]
    assert attributes["tutti.outcome"] == "ok" and attributes["tutti.chunks"] == 8


def test_a_store_that_one_rank_did_not_make_durable_is_partial(rig):
    rig.stored(rig.store(Request("one", 128)), rank_two=None)
    _, attributes, parent, _ = rig.spans[-1]
    assert parent is None
    assert (attributes["tutti.outcome"], attributes["tutti.failed_chunks"]) == ("partial", 1)


def test_a_report_that_comes_twice_counts_once(rig):
    plan = rig.store(Request("one", 128))
    once = StoreResult(plan.plan_id, (SUM, SUM), bytes_written=7)
    rig.side.take_report(StepReport({0: (once,)}))
    rig.side.take_report(StepReport({0: (once,)}))
    assert rig.spans == []
    rig.side.take_report(StepReport({1: (once,)}))
    assert rig.spans[-1][1]["tutti.bytes"] == 14


def test_headers_that_are_no_trace_make_a_span_of_its_own(rig):
    for headers in ({"traceparent": "nonsense"}, {"x": "y"}, {"traceparent": "00-" + "0" * 32 + "-1-01"}):
        rig.stored(rig.store(Request(str(headers), len(rig.spans) * 64 + 64, headers)))
        assert rig.spans[-1][2] is None


def test_a_shared_tier_is_named(rig):
    spans = rig.side.spans
    spans.begin_load(LoadPlan(-3, ()), Request("r", 64), tokens=64, layerwise=True)
    rig.report(LoadResult(-3), LoadResult(-3))
    assert rig.spans[-1][1]["tutti.tier"] == "shared" and rig.spans[-1][1]["tutti.mode"] == "layerwise"


def test_the_end_of_the_server_ends_what_is_open(rig):
    rig.store(Request("one", 128))
    rig.side.shutdown()
    assert rig.spans[-1][1]["tutti.outcome"] == "unknown"
    assert rig.side.spans._open == {}


def test_a_tracer_that_fails_costs_no_transfer(rig, monkeypatch):
    monkeypatch.setattr(rig.side.spans, "_tracer", None)
    rig.stored(rig.store(Request("first", 256)))
    assert rig.engine.planner.resident_chunks == 4
    plan = rig.load(Request("again", 256, HEADERS))
    rig.report(LoadResult(plan.plan_id), LoadResult(plan.plan_id))
    assert rig.side.in_use()["unreported_loads"] == 0
    assert rig.spans == []


def config(endpoint=None):
    return SimpleNamespace(observability_config=SimpleNamespace(otlp_traces_endpoint=endpoint))


def test_spans_are_made_only_where_somebody_records_them(monkeypatch):
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    assert find_tracer(config()) is None and find_tracer(object()) is None
    assert find_tracer(config("http://localhost:4317")) is not None
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert find_tracer(config()) is not None
    monkeypatch.setattr(transfer_spans, "sys", SimpleNamespace(modules={}))
    assert find_tracer(config("http://localhost:4317")) is None, "not installed"


def test_nothing_is_imported_for_it():
    code = (
        "import sys; import tutti_vllm.scheduler_side.scheduler, tutti_vllm.metrics.transfer_spans as spans"
    )
    code += "; spans.find_tracer(None)"
    code += "; print(any(name.startswith('opentelemetry') for name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_processor_that_raises_keeps_no_store_open(rig):
    class Broken(SpanProcessor):
        def on_end(self, span):
            raise RuntimeError("no exporter")

    rig.provider.add_span_processor(Broken())
    closed = []
    side = SchedulerSide(rig.engine, None, hash_tokens=16, close=lambda: closed.append(True))
    side.spans, rig.side = rig.side.spans, side
    rig.store(Request("one", 128))
    side.shutdown()
    assert closed == [True]
