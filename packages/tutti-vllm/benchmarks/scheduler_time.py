# SPDX-License-Identifier: Apache-2.0
"""What the connector costs vLLM's scheduler: a step with nothing to do, and a long new request.

    python benchmarks/scheduler_time.py [--json FILE]

Calls the connector's own callbacks as the scheduler does, with requests that have what it reads of vLLM's,
and a planner whose index is full of chunks. Prints medians and the limits: 100 us a step with 64 running
requests, 50 us a worker's step, 1 ms for a new request of 128K tokens until its orders can be sent: its hit
is found, admitted (pinned and planned), ordered and pickled. Times are of computing in this thread alone.

Beside prompts that were hit before, those that are hit for the first time since a restart are measured, and
prompts whose chunks lie in single places all over the store. Chunks are of 64 tokens, as Llama-3-8B has them
in bfloat16 on one device: the shortest, and so the most, that the automatic choice makes of a common model.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import pickle
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tutti_engine import Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.catalogue.checksum_table import StoredChecksums
from tutti_engine.catalogue.record import Record
from tutti_engine.catalogue.residents import Residents
from tutti_engine.movers.plain import PlainMover
from tutti_engine.store.layout import StoreLayout
from tutti_vllm.connector_v1 import TuttiConnectorV1, TuttiMetadata, TuttiWorkerMetadata
from tutti_vllm.messages import StepOrders, StepReport
from tutti_vllm.scheduler_side.load_mode import LoadRules
from tutti_vllm.scheduler_side.scheduler import SchedulerSide
from tutti_vllm.worker_side.worker import WorkerSide

BLOCK_TOKENS = 16
GEOMETRY = Geometry(num_layers=32, block_tokens=BLOCK_TOKENS, blocks_per_chunk=4, page_bytes=65536)
LONG = 131_072
RUNNING = 64
SUM = bytes(8 * GEOMETRY.num_layers)
RESTORED = 1_000_000
"""First seed of prompts that were stored before a restart."""


class Request(SimpleNamespace):
    """What the connector reads of a request of vLLM's."""

    def __init__(self, name: str, seed: int, tokens: int) -> None:
        blocks = tokens // BLOCK_TOKENS
        super().__init__(
            request_id=name,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            num_computed_tokens=0,
            # Never read here: token ids are for KV events only.
            all_token_ids=range(tokens),
            cache_salt=None,
            lora_request=None,
            pooling_params=None,
            skip_reading_prefix_cache=False,
            block_hashes=[hashlib.sha256(b"%d %d" % (seed, block)).digest() for block in range(blocks)],
        )


class Blocks:
    """A block table as ``update_state_after_alloc`` gets it, and as a step's output tells it."""

    def __init__(self, tokens: int) -> None:
        self._table = ([*range(1, tokens // BLOCK_TOKENS + 2)],)

    def get_block_ids(self, request_id: str = "") -> tuple[list[int], ...]:
        """Return the one group's block ids."""
        return self._table


class Scheduler:
    """The scheduler's side of a connector, and the calls that one step makes."""

    def __init__(self, chunks: int, records: Iterable[Record] = ()) -> None:
        rules = LoadRules(mode="async")
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(chunks), records=records)
        self.side = SchedulerSide(self.engine, None, hash_tokens=BLOCK_TOKENS, rules=rules)
        self.connector = TuttiConnectorV1.__new__(TuttiConnectorV1)
        self.connector._scheduler, self.connector._worker = self.side, None

    def build(self, scheduled: dict[str, int], blocks: Blocks) -> Any:
        """Return a step's orders."""
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_spec_decode_tokens={},
            preempted_req_ids=set(),
            finished_req_ids=set(),
            kv_connector_block_state=blocks,
        )
        return self.connector.build_connector_meta(output).orders

    def end(self, report: StepReport | None) -> None:
        """Make the calls that follow a step."""
        metadata = None if report is None else TuttiWorkerMetadata(report)
        self.connector.update_connector_output(SimpleNamespace(kv_connector_worker_meta=metadata))
        self.connector.get_kv_connector_stats()
        self.connector.take_events()
        self.connector.has_pending_push_work()

    def store(self, request: Request) -> None:
        """Make the whole request a hit."""
        self.connector.on_new_request(request)
        orders = self.build({request.request_id: request.num_tokens}, Blocks(request.num_tokens))
        results = [StoreResult(plan.plan_id, (SUM,) * len(plan.transfers)) for plan in orders.stores]
        self.end(StepReport({0: tuple(results)}))
        self.connector.request_finished(request, [])


def timed(into: list[float], call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call, note the seconds of computing that it takes, and return what it returns."""
    start = time.thread_time()
    answer = call(*arguments)
    into.append(time.thread_time() - start)
    return answer


def measure_idle_step(scheduler: Scheduler, steps: int) -> float:
    """Return the median seconds of all calls in a step of running requests that complete no chunk."""
    requests = [Request(f"running {n}", 1000 + n, 1024) for n in range(RUNNING)]
    blocks = Blocks(2048)
    for request in requests:
        scheduler.connector.on_new_request(request)
        scheduler.build({request.request_id: 1024}, blocks)
        request.num_computed_tokens, request.num_tokens = 1024, 1025
    scheduler.end(None)
    scheduled = dict.fromkeys((request.request_id for request in requests), 1)
    found: list[float] = []
    for _ in range(steps):
        timed(found, lambda: (scheduler.build(scheduled, blocks), scheduler.end(None)))
    for request in requests:
        scheduler.connector.request_finished(request, [])
    return statistics.median(found)


def measure_worker_step(steps: int) -> float:
    """Return the median seconds of all calls that a worker's step makes, every layer's included."""
    small = Geometry(num_layers=GEOMETRY.num_layers, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
    backend = MemoryBackend(num_layers=small.num_layers, segment_bytes=small.segment_bytes, num_chunks=1)
    names = [f"model.layers.{layer}.self_attn.attn" for layer in range(small.num_layers)]
    pages = [memoryview(bytearray(small.page_bytes)) for _ in names]
    side = WorkerSide(0, lambda layout: TuttiEngine(small, backend=backend))
    side.register(PlainMover(small, pages), names)
    connector = TuttiConnectorV1.__new__(TuttiConnectorV1)
    connector._scheduler, connector._worker, connector._connector_metadata = None, side, None

    def step(orders: StepOrders) -> None:
        metadata = TuttiMetadata(orders)
        connector.handle_preemptions(metadata)
        connector.bind_connector_metadata(metadata)
        for name in names:
            connector.wait_for_layer_load(name)
            connector.save_kv_layer(name, None, None)
        connector.start_load_kv(None)
        connector.wait_for_save()
        connector.get_transfer_results(set())
        connector.get_block_ids_with_load_errors()
        connector.get_kv_connector_stats()
        connector.build_connector_worker_meta()
        connector.clear_connector_metadata()

    step(StepOrders(StoreLayout(("/nowhere",), 1, small.chunk_bytes, small.chunk_bytes, 1, 1)))
    found: list[float] = []
    for _ in range(steps):
        timed(found, step, StepOrders())
    side.shutdown(1.0)
    return statistics.median(found)


def stored_before(prompts: int, *, single: bool) -> Residents:
    """Return what a start finds of so many long prompts, checksums in a file, maybe in single places."""
    each = GEOMETRY.blocks_per_chunk
    keys = [
        key for n in range(prompts) for key in Request("", RESTORED + n, LONG).block_hashes[each - 1 :: each]
    ]
    places = list(range(len(keys)))
    if single:
        random.Random(1).shuffle(places)
    sums = StoredChecksums(len(keys), 1, len(SUM))
    with tempfile.TemporaryFile() as file:
        file.write(SUM * len(keys))
        file.flush()
        sums.use_file(file.fileno(), 0)
    # The generation's low bits are the policy's and the tenant's.
    generations = array("q", (number + 1 << 24 for number in range(len(keys))))
    return Residents(keys, array("q", places), generations, array("q", (1,)) * len(keys), sums)


def measure_new_request(scheduler: Scheduler, seeds: Sequence[int], *, hit: bool) -> dict[str, float]:
    """Return the median seconds of each call that a new request of 128K tokens causes.

    Args:
        scheduler: who is asked.
        seeds: one request's each, the same one for the same prompt.
        hit: whether all of them are stored.
    """
    times: dict[str, list[float]] = {
        name: []
        for name in ("lookup", "admission", "first_orders", "pickle", "lookup_again", "unpickle", "end")
    }
    connector, blocks = scheduler.connector, Blocks(LONG + BLOCK_TOKENS)
    for run, seed in enumerate(seeds):
        request = Request(f"new {run}", seed, LONG)
        connector.on_new_request(request)
        for what in ("lookup", "lookup_again"):
            tokens, _ = timed(times[what], connector.get_num_new_matched_tokens, request, 0)
        assert bool(tokens) is hit
        timed(times["admission"], connector.update_state_after_alloc, request, blocks, tokens)
        step = {} if hit else {request.request_id: 2048}
        orders = timed(times["first_orders"], scheduler.build, step, blocks)
        sent = timed(times["pickle"], pickle.dumps, orders, pickle.HIGHEST_PROTOCOL)
        timed(times["unpickle"], pickle.loads, sent)
        results: list[Any] = [LoadResult(load.plan.plan_id) for load in orders.loads]
        results += [StoreResult(plan.plan_id, (None,) * len(plan.transfers)) for plan in orders.stores]
        timed(times["end"], scheduler.end, StepReport({0: tuple(results)}))
        connector.request_finished(request, [])
    found = {what: statistics.median(each) for what, each in times.items()}
    whole = zip(*(times[what] for what in ("lookup", "admission", "first_orders", "pickle")))
    return {"all of it": statistics.median(map(sum, whole))} | found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--chunks", type=int, default=262_144, help="places in the store")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"filling {options.chunks} chunks", file=sys.stderr)
    scheduler = Scheduler(options.chunks)
    long_chunks = LONG // GEOMETRY.chunk_tokens
    for number in range(options.chunks // long_chunks - 1):
        scheduler.store(Request("filler", 10_000 + number, LONG))
    scheduler.store(Request("stored", 7, LONG))
    # As vLLM's engine does once it has started: else each of Python's collections walks through all of vLLM.
    gc.collect()
    gc.freeze()
    print("measuring", file=sys.stderr)
    step = measure_idle_step(scheduler, options.steps)
    worker = measure_worker_step(options.steps)
    found = {
        "hit": measure_new_request(scheduler, [7] * options.runs, hit=True),
        "miss": measure_new_request(scheduler, range(100, 100 + options.runs), hit=False),
    }
    del scheduler
    for name, single in (("hit after a restart", False), ("same, places all over the store", True)):
        print(f"measuring: {name}", file=sys.stderr)
        prompts = max(2, min(options.runs, options.chunks // long_chunks))
        restarted = Scheduler(prompts * long_chunks, stored_before(prompts, single=single))
        seeds = range(RESTORED, RESTORED + prompts)
        found[name] = measure_new_request(restarted, seeds, hit=True)
    print("| what | time | limit |")
    print("| --- | ---: | ---: |")
    print(f"| a step with {RUNNING} running requests and nothing to do | {step * 1e6:,.0f} us | 100 us |")
    layers = GEOMETRY.num_layers
    print(f"| a worker's step of {layers} layers and nothing to do | {worker * 1e6:,.0f} us | 50 us |")
    for name, times in found.items():
        for what, seconds in times.items():
            limit = "1,000 us" if what == "all of it" else "-"
            label = what.replace("_", " ")
            print(f"| new request of {LONG:,} tokens, {name}: {label} | {seconds * 1e6:,.0f} us | {limit} |")
    result = {"step": step, "worker_step": worker, **found}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
