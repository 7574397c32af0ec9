# SPDX-License-Identifier: Apache-2.0
"""Read bandwidth while writes are pending, beside read-only bandwidth, on the same drive in the same run.

    python benchmarks/reads_under_writes.py --folder /mnt/nvme0
    python benchmarks/reads_under_writes.py --device-mbs 500     # a modelled drive: the same on every machine

Rounds alternate between reads alone, reads with a deep queue of writes under the default policy, and the same
without pacing. Prints medians and the ratio to reads alone; the target is 0.90 and more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tutti_runtime as tr
from tutti_runtime import testing
from tutti_runtime.bench.settings import MIB, work_file
from tutti_runtime.host_memory import HostMemory

BLOCK = MIB // 2
DEPTH = 32
UNPACED = tr.WritePolicy(share=1.0, busy_bytes_in_flight=1 << 40, bytes_in_flight=1 << 40, max_wait=0.0)


class Load:
    """Keeps a number of random blocks of one direction in flight."""

    def __init__(self, runtime: tr.Runtime, direction: int, target: int, memory: int, blocks: int) -> None:
        self.runtime, self.blocks = runtime, blocks
        self.row = np.zeros(4, tr.REQUEST_DTYPE)
        self.row["direction"], self.row["target"], self.row["memory"] = direction, target, memory
        self.row["length"] = BLOCK
        self.slots = [np.arange(i, i + 4) * BLOCK for i in range(0, DEPTH, 4)]
        self.random = np.random.default_rng(direction)
        self.handles: list[int] = []
        self.begun = 0

    def start(self) -> None:
        self.row["memory_offset"] = self.slots[self.begun % len(self.slots)]
        self.row["target_offset"] = self.random.choice(self.blocks, 4, replace=False) * BLOCK
        result = self.runtime.submit(self.row)
        if result.handle is None or not result.accepted.all():
            raise RuntimeError(f"not accepted: {result.errors}")
        self.handles.append(result.handle)
        self.begun += 1

    def fill(self) -> None:
        while len(self.handles) < len(self.slots):
            self.start()

    def finish_one(self) -> None:
        if self.runtime.wait(self.handles.pop(0)).status.any():
            raise RuntimeError("an item failed")

    def collect(self) -> None:
        """Take what has finished, and keep the queue as deep as it was."""
        while self.handles and self.runtime.poll(self.handles[0]):
            self.finish_one()
            self.start()

    def end(self) -> None:
        while self.handles:
            self.finish_one()


def measure(runtime: tr.Runtime, reads: Load, writes: Load | None, seconds: float) -> tuple[float, float]:
    """GB/s read, GB/s written."""
    if writes is not None:
        reads.fill()
        writes.fill()
    before, begin = runtime.stats(), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        reads.fill()
        reads.finish_one()
        if writes is not None:
            writes.collect()
    after, took = runtime.stats(), time.perf_counter() - begin
    reads.end()
    if writes is not None:
        writes.end()
    rates = [(after[key] - before[key]) / took / 1e9 for key in ("bytes_read", "bytes_written")]
    return rates[0], rates[1]


def make(options: argparse.Namespace) -> tr.Runtime:
    if not options.device_mbs:
        return tr.make_file_runtime(queue_depth=DEPTH)
    plan = testing.paced(options.device_mbs * 1e6, write_cost=2.0)
    return testing.make_fault_runtime("auto", plan, queue_depth=DEPTH, direct="off")


def run(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {"reads alone": [], "paced": [], "not paced": []}
    size = options.file_mib * MIB
    where = options.folder or Path(tempfile.gettempdir())
    data = HostMemory(2 * DEPTH * BLOCK)
    data.bytes[:] = np.resize(np.random.default_rng(0).integers(0, 256, MIB, dtype=np.uint8), data.size)
    with work_file(where, size) as path, make(options) as runtime:
        memory = [runtime.register_memory(data.address + i * DEPTH * BLOCK, DEPTH * BLOCK) for i in range(2)]
        target = runtime.open(path.as_uri())
        reads = Load(runtime, tr.READ, target, memory[0], size // BLOCK)
        writes = Load(runtime, tr.WRITE, target, memory[1], size // BLOCK)
        for i in range(options.rounds):
            for name, rounds in found.items():
                runtime.set_write_policy(UNPACED if name == "not paced" else tr.WritePolicy())
                pending = None if name == "reads alone" else writes
                print(f"round {i + 1} of {options.rounds}: {name}", file=sys.stderr)
                rounds.append(measure(runtime, reads, pending, options.seconds))
    alone = statistics.median(read for read, _ in found["reads alone"])
    return {
        name: {
            "read_gbs": statistics.median(read for read, _ in rounds),
            "write_gbs": statistics.median(written for _, written in rounds),
            "read_ratio": statistics.median(read for read, _ in rounds) / alone,
        }
        for name, rounds in found.items()
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the file is made (default: the temporary folder)")
    parser.add_argument("--file-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--device-mbs", type=float, default=0, help="model a drive of so many MB/s")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options)
    print(f"{'':12s} {'read GB/s':>10s} {'write GB/s':>11s} {'of reads alone':>15s}")
    for name, row in report.items():
        print(f"{name:12s} {row['read_gbs']:10.2f} {row['write_gbs']:11.2f} {row['read_ratio']:15.2f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
