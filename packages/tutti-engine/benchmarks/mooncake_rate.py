# SPDX-License-Identifier: Apache-2.0
"""Loads of a whole engine from a Mooncake cluster, with Mooncake's own client beside it in the same run.

    python benchmarks/mooncake_rate.py --json rate.json

Starts a master and a node of its own on loopback, in processes of their own. Engine: objects -> staging ->
verified -> pages. Client: the same objects, as many a call, into registered memory. They take turns; medians
of all rounds in GB/s (10^9 bytes).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

import tutti_kv_kernels as kernels
from tutti_engine import ChunkKey, ExecutionSettings, Geometry
from tutti_engine.backends.mooncake import MooncakeStore
from tutti_engine.block_rows import ChunkBlocks
from tutti_engine.execution.executor import Executor
from tutti_engine.movers.kernels import KernelMover
from tutti_engine.plan import LoadPlan, StorePlan
from tutti_engine.shared.backend import SharedBackend
from tutti_engine.shared.object_header import ObjectNames, header_bytes
from tutti_engine.testing.mooncake import MooncakeCluster
from tutti_engine.testing.window import HostWindow
from tutti_engine.transfers import Transfers, as_column

MIB = 1 << 20
PATIENCE = 600.0


class Engine:
    """One rank with pages for a prompt."""

    def __init__(self, master: str, geometry: Geometry, chunks: int, options: argparse.Namespace) -> None:
        self.geometry = geometry
        blocks = chunks * geometry.blocks_per_chunk
        size = blocks * geometry.page_bytes
        self.pages = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(geometry.num_layers)]
        layout = kernels.PagedLayout(0, geometry.page_bytes, geometry.page_bytes, blocks)
        layers = {str(number): (pages, layout) for number, pages in enumerate(self.pages)}
        self.names = ObjectNames("00" * 16)
        self.executor = Executor(
            geometry,
            SharedBackend(MooncakeStore(master, calls=options.calls, timeout=30.0), self.names, 0, geometry),
            KernelMover(kernels.PagedCache.from_layouts(layers)),
            ExecutionSettings(
                store_stall=PATIENCE, io_timeout=PATIENCE, load_bank_bytes=options.bank_mib * MIB
            ),
        )
        self.keys = [ChunkKey(b"%016d" % number) for number in range(chunks)]
        per = geometry.blocks_per_chunk
        places = [(tuple(range(number * per, (number + 1) * per)),) for number in range(chunks)]
        self.transfers = Transfers(ChunkBlocks.of(list(zip(self.keys, places))), as_column(list(self.keys)))
        self.plans = 0

    def store(self) -> float:
        """Write all chunks; return seconds."""
        return self.run(self.executor.store, StorePlan(self.next_plan(), self.transfers))

    def load(self) -> float:
        """Load all chunks; return seconds."""
        return self.run(self.executor.load, LoadPlan(self.next_plan(), self.transfers))

    def next_plan(self) -> int:
        """Return a plan's number."""
        self.plans += 1
        return self.plans

    def run(self, start, plan) -> float:  # type: ignore[no-untyped-def]
        """Carry a plan out; return seconds."""
        begin = time.perf_counter()
        start(plan)
        if not self.executor.wait_idle(time.monotonic() + PATIENCE):
            raise RuntimeError("transfers did not end in ten minutes")
        seconds = time.perf_counter() - begin
        for result in self.executor.take_results():
            if result.errno or getattr(result, "failed", ()):
                raise RuntimeError(f"a transfer failed: {result}")
        return seconds


class Client:
    """Mooncake's own client with memory for a prompt."""

    def __init__(self, master: str, engine: Engine, batch: int) -> None:
        self.store = MooncakeStore(master, timeout=30.0)
        geometry = engine.geometry
        self.nbytes = header_bytes(geometry.num_layers) + geometry.chunk_bytes
        self.window = HostWindow(len(engine.keys), self.nbytes)
        self.store._client.register_buffer(self.window.address, self.window.nbytes)
        self.names = [engine.names.name(0, 0, key) for key in engine.keys]
        self.batch = batch

    def load(self) -> float:
        """Get all objects; return seconds."""
        begin = time.perf_counter()
        for start in range(0, len(self.names), self.batch):
            names = self.names[start : start + self.batch]
            places = [self.window.address + (start + n) * self.nbytes for n in range(len(names))]
            sizes = [self.nbytes] * len(names)
            if self.store._client.batch_get_into(names, places, sizes) != sizes:
                raise RuntimeError("the client did not get its objects")
        return time.perf_counter() - begin


def measure(engine: Engine, client: Client, rounds: int) -> dict[str, list[float]]:
    """Let both take turns, the one and the other first."""
    size = len(engine.keys) * engine.geometry.chunk_bytes
    rates: dict[str, list[float]] = defaultdict(list)
    ways = [("engine", engine.load), ("client", client.load)]
    for number in range(-1, rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for name, load in ways if number % 2 else ways[::-1]:
            seconds = load()
            if number >= 0:
                rates[name].append(size / seconds / 1e9)
    return rates


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--mib", type=int, default=512, help="bytes of all objects, in MiB")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--segment-kib", type=int, default=256)
    parser.add_argument("--bank-mib", type=int, default=128, help="the engine's staging memory for loads")
    parser.add_argument("--batch", type=int, default=0, help="objects a call of the client; 0: all")
    parser.add_argument("--calls", type=int, default=1, help="of MooncakeStore")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    options = parser.parse_args()
    blocks = 8
    geometry = Geometry(options.layers, 16, blocks, options.segment_kib * 1024 // blocks)
    chunks = max(1, options.mib * MIB // geometry.chunk_bytes)
    with MooncakeCluster() as cluster:
        cluster.start_node(2 * options.mib * MIB + (256 << 20))
        engine = Engine(cluster.master, geometry, chunks, options)
        stored = chunks * geometry.chunk_bytes / engine.store() / 1e9
        client = Client(cluster.master, engine, options.batch or chunks)
        rates = measure(engine, client, options.rounds)
        engine.executor.shutdown(time.monotonic() + 10)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratio = medians["engine"] / medians["client"]
    print(f"{chunks} objects of {geometry.chunk_bytes / MIB:.0f} MiB, medians of {options.rounds}")
    print(f"store  {stored:6.2f} GB/s, once")
    print(
        f"load   {medians['engine']:6.2f} GB/s   client {medians['client']:6.2f} GB/s   "
        f"ratio {ratio:5.2f}   (must reach 0.85)"
    )
    if options.json:
        text = {"settings": vars(options), "rates": rates, "medians": medians, "ratio": ratio}
        options.json.write_text(json.dumps(text, default=str, indent=1))


if __name__ == "__main__":
    main()
