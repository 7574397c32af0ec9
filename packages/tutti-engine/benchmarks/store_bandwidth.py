# SPDX-License-Identifier: Apache-2.0
"""Store and load bandwidth of the whole engine, with fio beside it on the same files in the same run.

    python benchmarks/store_bandwidth.py --folder /mnt/nvme0

Pages -> staging -> files, flushed, and back: files -> staging -> verified -> pages, on the CPU with
``tutti-runtime`` and ``tutti-kv-kernels``. Engine and fio take turns; medians of all rounds in GB/s (10^9
bytes). fio has the engine's files, O_DIRECT, io_uring, ``--fio-kib`` blocks in random order; its writes end
with a flush as the engine's do. The last line says what the verification of loads costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

import tutti_kv_kernels as kernels
from tutti_engine import ChunkKey, ExecutionSettings, Geometry, StorePlan, TuttiEngine
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.movers.kernels import KernelMover
from tutti_engine.store.layout import StoreLayout

MIB = 1024 * 1024


class Bench:
    """An engine with a prompt's worth of pages, and files for ``chunks`` chunks."""

    def __init__(self, folder: Path, geometry: Geometry, chunks: int, prompt: int) -> None:
        self.geometry = geometry
        self.chunks = chunks
        self.prompt = prompt
        self.layout = StoreLayout(
            directories=(str(folder),),
            num_layers=geometry.num_layers,
            segment_bytes=geometry.segment_bytes,
            chunk_bytes=geometry.chunk_bytes,
            chunks_per_file=chunks,
            num_chunks=chunks,
        )
        num_blocks = prompt * geometry.blocks_per_chunk
        size = num_blocks * geometry.page_bytes
        self.pages = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(geometry.num_layers)]
        layout = kernels.PagedLayout(0, geometry.page_bytes, geometry.page_bytes, num_blocks)
        backend = LocalStoreBackend(self.layout, 0)
        self.engine = TuttiEngine(geometry, chunk_ids=backend.chunk_ids(chunks), backend=backend)
        layers = {str(number): (pages, layout) for number, pages in enumerate(self.pages)}
        mover = KernelMover(kernels.PagedCache.from_layouts(layers))
        # Nothing is given up here for want of room: all of it is to be measured.
        self.engine.bind(mover, ExecutionSettings(store_stall=600.0, io_timeout=600.0))

    @property
    def total(self) -> int:
        """Bytes of all chunks."""
        return self.chunks * self.geometry.num_layers * self.geometry.segment_bytes

    @property
    def files(self) -> list[str]:
        """The segment files."""
        return [self.layout.file_path(0, number) for number in self.layout.files()]

    def prompts(self) -> list[list[tuple[ChunkKey, tuple[tuple[int, ...], ...]]]]:
        """Return all chunks in prompts, each of which uses all blocks."""
        blocks = self.geometry.blocks_per_chunk
        places = [(tuple(range(index * blocks, (index + 1) * blocks)),) for index in range(self.prompt)]
        return [
            [(ChunkKey(b"%d" % (start + index)), places[index]) for index in range(self.prompt)]
            for start in range(0, self.chunks, self.prompt)
        ]

    def store(self) -> float:
        """Store everything anew; return GB/s."""
        self.engine.reset()
        begin = time.perf_counter()
        for prompt in self.prompts():
            plan = self.engine.plan_store(prompt)
            assert isinstance(plan, StorePlan) and len(plan.transfers) == len(prompt)
            self.engine.store(plan)
        self.settle()
        return self.total / (time.perf_counter() - begin) / 1e9

    def load(self) -> float:
        """Load everything; return GB/s."""
        begin = time.perf_counter()
        for prompt in self.prompts():
            self.engine.load(self.engine.plan_load(prompt))
        self.settle()
        return self.total / (time.perf_counter() - begin) / 1e9

    def settle(self) -> None:
        """Wait for everything, and see that it went well."""
        if not self.engine.wait_idle(time.monotonic() + 600):
            raise RuntimeError("transfers did not end in ten minutes")
        for result in self.engine.settle():
            if getattr(result, "errno", 0):
                raise RuntimeError(f"a transfer failed: {result}")

    def copying(self) -> dict[str, float]:
        """GB/s of a checksum and of a copy, one thread each, on memory that is not in the caches."""
        size = 64 * MIB
        source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
        begin = time.perf_counter()
        kernels.checksum(source)
        middle = time.perf_counter()
        target.copy_(source)
        end = time.perf_counter()
        return {"checksum": size / (middle - begin) / 1e9, "memcpy": size / (end - middle) / 1e9}


def fio(files: list[str], mode: str, block: int, depth: int) -> float:
    """GB/s of one pass over all files."""
    command = ["fio", "--name=x", f"--filename={':'.join(files)}", f"--rw={mode}", f"--bs={block}"]
    command += [f"--iodepth={depth}", "--direct=1", "--ioengine=io_uring", "--output-format=json"]
    command += ["--fallocate=none", "--overwrite=1", "--end_fsync=1", "--file_service_type=sequential"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    kind = "read" if "read" in mode else "write"
    # The time with the flush; bw_bytes leaves it out.
    return float(job[kind]["io_bytes"] / (job["job_runtime"] / 1e3) / 1e9)


def measure(bench: Bench, rounds: int, block: int, depth: int) -> dict[str, list[float]]:
    """Let everything take turns."""
    rates: dict[str, list[float]] = defaultdict(list)
    with_fio = shutil.which("fio") is not None
    bench.store()  # the first write of a block costs a file system more than later ones
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        rates["engine store"].append(bench.store())
        rates["engine load"].append(bench.load())
        for name, rate in bench.copying().items():
            rates[name].append(rate)
        if with_fio:
            rates["fio read"].append(fio(bench.files, "randread", block, depth))
            rates["fio write"].append(fio(bench.files, "randwrite", block, depth))
    return rates


def report(medians: dict[str, float]) -> None:
    """Print the table."""
    for name, peer in (("load", "read"), ("store", "write")):
        rate = medians[f"engine {name}"]
        line = f"{name:6s} {rate:6.2f} GB/s"
        if f"fio {peer}" in medians:
            base = medians[f"fio {peer}"]
            line += f"   fio {peer:5s} {base:6.2f} GB/s   ratio {rate / base:5.2f}   (must reach 0.90)"
        print(line)
    verify, copy, load = medians["checksum"], medians["memcpy"], medians["engine load"]
    share = f"{load / verify:.1%} of one core at this load"
    print(f"verify {verify:6.2f} GB/s on one thread (memcpy {copy:.2f}): {share}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=Path, help="where files are made (default: the temporary folder)")
    parser.add_argument("--mib", type=int, default=1024, help="bytes of all chunks, in MiB")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--segment-kib", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=16, help="chunks of one plan")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fio-kib", type=int, default=1024)
    parser.add_argument("--fio-depth", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    options = parser.parse_args()
    blocks = 8
    geometry = Geometry(options.layers, 16, blocks, options.segment_kib * 1024 // blocks)
    chunks = max(1, options.mib * MIB // geometry.chunk_bytes // options.prompt) * options.prompt
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), geometry, chunks, options.prompt)
        try:
            rates = measure(bench, options.rounds, options.fio_kib * 1024, options.fio_depth)
        finally:
            bench.engine.shutdown(60)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print(
        f"{chunks} chunks of {options.layers} x {options.segment_kib} KiB, "
        f"{bench.total / MIB:.0f} MiB, medians of {options.rounds}"
    )
    report(medians)
    if "fio read" not in medians:
        print("fio is not installed: no ratio")
    if options.json:
        text = {"settings": vars(options), "rates": rates, "medians": medians}
        options.json.write_text(json.dumps(text, default=str, indent=1))


if __name__ == "__main__":
    main()
