# SPDX-License-Identifier: Apache-2.0
"""What statistics cost: a step in which nothing happened, one in which something did, and the front end.

    python benchmarks/stats_time.py [--json FILE]

Prints medians in microseconds, and their share of the 50 us that the design allows all callbacks of a step
with nothing to do. Times are of computing in this thread alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig

from tutti_engine import Geometry, LoadResult, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover
from tutti_vllm.metrics.meters import SchedulerMeter, WorkerMeter
from tutti_vllm.metrics.prom_metrics import TuttiPromMetrics
from tutti_vllm.payload import make_payload, merge

GEOMETRY = Geometry(num_layers=32, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
LIMIT_MICROSECONDS = 50.0
COUNTERS = 40


def microseconds(call: Callable[[], object], calls: int, runs: int) -> float:
    """Return the median over runs of a call's time."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(found)


def scheduler() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return an idle and a busy step of the scheduler's side."""
    engine = TuttiEngine(GEOMETRY, chunk_ids=range(100_000))
    meter = SchedulerMeter(engine)
    for number in range(COUNTERS):
        engine.planner.counters.add(f"counter {number}")
    meter.take(broken=False)

    def busy() -> object:
        engine.planner.counters.add("load_chunks")
        return meter.take(broken=False)

    return lambda: meter.take(broken=False), busy


def worker() -> tuple[TuttiEngine, Callable[[], object], Callable[[], object]]:
    """Return an engine to shut down, and an idle and a busy step of a worker's side."""
    backend = MemoryBackend(num_layers=32, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
    engine = TuttiEngine(GEOMETRY, backend=backend)
    engine.bind(PlainMover(GEOMETRY, [memoryview(bytearray(8 * 4096)) for _ in range(32)]))
    meter = WorkerMeter(0)
    meter.take(engine.executor)

    def busy() -> object:
        meter.begin_load(1)
        meter.end(LoadResult(1, bytes_read=1 << 20, seconds=0.01))
        return meter.take(engine.executor)

    return engine, lambda: meter.take(engine.executor), busy


def front_end(payload: dict[str, dict[str, object]]) -> Callable[[], object]:
    """Return how a front end records a payload."""
    registry = CollectorRegistry()
    kinds = {
        kind: lambda kind=kind, **more: kind(registry=registry, **more)
        for kind in (Counter, Gauge, Histogram)
    }
    transfer = KVTransferConfig(kv_connector="TuttiConnectorV1", kv_role="kv_both")
    metrics = TuttiPromMetrics(
        SimpleNamespace(kv_transfer_config=transfer), kinds, ["model_name", "engine"], {0: ["model", "0"]}
    )
    return lambda: metrics.observe(payload, 0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    idle_scheduler, busy_scheduler = scheduler()
    engine, idle_worker, busy_worker = worker()
    payload = make_payload()
    for part in (busy_scheduler(), busy_worker()):
        assert isinstance(part, dict)
        merge(payload, part)
    found = {
        name: microseconds(call, options.calls, options.runs)
        for name, call in (
            ("scheduler, nothing happened", idle_scheduler),
            ("worker, nothing happened", idle_worker),
            ("scheduler, something happened", busy_scheduler),
            ("worker, a load ended", busy_worker),
            ("front end, one payload", front_end(payload)),
        )
    }
    engine.shutdown()
    for name, spent in found.items():
        share = f"{spent / LIMIT_MICROSECONDS:6.1%} of a step's 50 us" if "nothing" in name else ""
        print(f"{name:32} {spent:8.2f} us  {share}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
