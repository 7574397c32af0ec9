# SPDX-License-Identifier: Apache-2.0
"""From storage to a GPU's pages and back through the whole engine, beside what either half of the way allows.

    python benchmarks/device_bandwidth.py --folder /dev/shm

Load: files -> pinned staging -> pages, verified. Store: pages -> pinned staging -> files. Beside it, in the
same rounds: the files read and written by threads of their own with ``preadv`` and ``pwritev`` ("files"), and
as many bytes copied between pinned memory and the device ("link"). Medians in GB/s (10^9 bytes). The ratio is
to the lower of the two; a load must reach 0.90 of it. The last line tells what threads write that always take
the next block of all, so that they are at the same file: a file system may let them do so one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import tutti_kv_kernels as kernels
from tutti_engine import ChunkKey, ExecutionSettings, Geometry, StorePlan, TuttiEngine
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.movers.device import DeviceMover
from tutti_engine.store.layout import StoreLayout

MIB = 1 << 20
BLOCK = MIB
SECONDS = 600.0


class Bench:
    """An engine with pages on a device, files for as many chunks, and pinned memory for the peers."""

    def __init__(self, folder: Path, geometry: Geometry, chunks: int, settings: ExecutionSettings) -> None:
        self.geometry, self.chunks = geometry, chunks
        per_file = max(1, (256 * MIB) // geometry.chunk_bytes)
        self.layout = StoreLayout(
            directories=(str(folder),),
            num_layers=geometry.num_layers,
            segment_bytes=geometry.segment_bytes,
            chunk_bytes=geometry.chunk_bytes,
            chunks_per_file=per_file,
            num_chunks=chunks,
        )
        blocks = chunks * geometry.blocks_per_chunk
        shape = (geometry.num_layers, blocks * geometry.page_bytes)
        self.pages = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        self.order = torch.randperm(blocks).view(chunks, -1).tolist()
        backend = LocalStoreBackend(self.layout, 0)
        self.data_path = backend.data_path
        self.engine = TuttiEngine(geometry, chunk_ids=backend.chunk_ids(chunks), backend=backend)
        layout = kernels.PagedLayout(0, geometry.page_bytes, geometry.page_bytes, blocks)
        layers = {str(n): (self.pages[n].clone(), layout) for n in range(geometry.num_layers)}
        cache = kernels.PagedCache.from_layouts(layers)
        self.layers = [layer for layer, _ in layers.values()]
        self.engine.bind(DeviceMover(cache), settings)
        self.pinned = torch.zeros(256 * MIB, dtype=torch.uint8, pin_memory=True)
        self.there = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda")

    @property
    def total(self) -> int:
        """Bytes of all chunks."""
        return self.chunks * self.geometry.chunk_bytes

    def plan(self) -> list[tuple[ChunkKey, tuple[tuple[int, ...], ...]]]:
        """All chunks, in blocks in random order."""
        return [(ChunkKey(b"%d" % number), (tuple(row),)) for number, row in enumerate(self.order)]

    def store(self) -> None:
        """Store everything anew."""
        self.engine.reset()
        plan = self.engine.plan_store(self.plan())
        assert isinstance(plan, StorePlan) and len(plan.transfers) == self.chunks
        self.engine.store(plan)
        self.settle()

    def load(self) -> None:
        """Load everything."""
        self.engine.load(self.engine.plan_load(self.plan()))
        self.settle()

    def settle(self) -> None:
        """Wait for everything, and see that it went well."""
        if not self.engine.wait_idle(time.monotonic() + SECONDS):
            raise RuntimeError("transfers did not end in time")
        for result in self.engine.settle():
            if getattr(result, "errno", 0):
                raise RuntimeError(f"a transfer failed: {result}")

    def files(self, threads: int, *, write: bool, in_order: bool = False) -> None:
        """Move all bytes of the files, each thread in blocks of its own, or each the next one of all."""
        memory = memoryview(self.pinned.numpy())
        opened = [os.open(self.layout.file_path(0, n), os.O_RDWR) for n in self.layout.files()]
        work = [(fd, at) for fd in opened for at in range(0, os.fstat(fd).st_size, BLOCK)]
        move = os.pwritev if write else os.preadv
        room = len(memory) // threads // BLOCK * BLOCK

        following = iter(work)
        lock = threading.Lock()

        def next_ones() -> Iterator[tuple[int, int]]:
            while True:
                with lock:
                    block = next(following, None)
                if block is None:
                    return
                yield block

        def run(thread: int) -> None:
            for turn, (fd, at) in enumerate(next_ones() if in_order else work[thread::threads]):
                start = thread * room + turn * BLOCK % room
                move(fd, [memory[start : start + min(BLOCK, os.fstat(fd).st_size - at)]], at)

        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, range(threads)))
        finally:
            for fd in opened:
                os.close(fd)

    def link(self, *, write: bool) -> None:
        """Copy as many bytes between pinned memory and the device."""
        target, source = (self.pinned, self.there) if write else (self.there, self.pinned)
        for _ in range(max(1, self.total // target.numel())):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    def link_bytes(self) -> int:
        """Bytes that ``link`` copies."""
        return max(1, self.total // self.there.numel()) * self.there.numel()


def rate(work: Callable[[], None], nbytes: int) -> float:
    """GB/s."""
    begin = time.perf_counter()
    work()
    return nbytes / (time.perf_counter() - begin) / 1e9


def measure(bench: Bench, rounds: int, threads: int) -> dict[str, list[float]]:
    """Let everything take turns; see that what comes back is what was stored."""
    rates: dict[str, list[float]] = defaultdict(list)
    bench.store()  # the first write of a block costs a file system more than later ones
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        rates["engine store"].append(rate(bench.store, bench.total))
        for layer in bench.layers:
            layer.zero_()
        torch.cuda.synchronize()
        rates["engine load"].append(rate(bench.load, bench.total))
        for layer, expected in zip(bench.layers, bench.pages):
            if not torch.equal(layer, expected):
                raise RuntimeError("what was loaded is not what was stored")
        for name, write in (("load", False), ("store", True)):
            rates[f"link {name}"].append(
                rate(lambda write=write: bench.link(write=write), bench.link_bytes())
            )
        rates["files load"].append(rate(lambda: bench.files(threads, write=False), bench.total))
    for _ in range(rounds):  # last, as it writes over what was stored
        rates["files store"].append(rate(lambda: bench.files(threads, write=True), bench.total))
        rates["files store in order"].append(
            rate(lambda: bench.files(threads, write=True, in_order=True), bench.total)
        )
    return rates


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=Path, help="where files are made (default: the temporary folder)")
    parser.add_argument("--mib", type=int, default=8192, help="bytes of all chunks, in MiB")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--page-kib", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of a chunk")
    parser.add_argument("--bank-mib", type=int, default=512, help="staging for loads, and for stores, in MiB")
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1), help="of the peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    options = parser.parse_args()
    geometry = Geometry(options.layers, 16, options.blocks, options.page_kib * 1024)
    chunks = max(1, options.mib * MIB // geometry.chunk_bytes)
    bank = options.bank_mib * MIB
    settings = ExecutionSettings(load_bank_bytes=bank, store_bank_bytes=bank, io_timeout=SECONDS)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), geometry, chunks, settings)
        try:
            rates = measure(bench, options.rounds, options.threads)
        finally:
            bench.engine.shutdown(60)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print(
        f"{torch.cuda.get_device_name()}, {chunks} chunks of {options.layers} x"
        f" {geometry.segment_bytes // 1024} KiB, pages of {options.page_kib} KiB,"
        f" {bench.total / MIB:.0f} MiB, {bench.data_path}, medians of {options.rounds}"
    )
    for name in ("load", "store"):
        engine, files, link = (medians[f"{each} {name}"] for each in ("engine", "files", "link"))
        print(
            f"{name:6s} engine {engine:6.2f}   files {files:6.2f}   link {link:6.2f} GB/s"
            f"   ratio {engine / min(files, link):5.2f}"
        )
    print(f"files written in order, all threads at the same file: {medians['files store in order']:.2f} GB/s")
    if options.json:
        options.json.write_text(
            json.dumps({"settings": vars(options), "rates": rates, "medians": medians}, default=str, indent=1)
        )


if __name__ == "__main__":
    main()
