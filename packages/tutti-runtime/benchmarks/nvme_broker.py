# SPDX-License-Identifier: Apache-2.0
"""What a broker costs: reads from a soft controller of this process beside reads from one that a broker owns.

    python benchmarks/nvme_broker.py --json nvme_broker.json

Both controllers are the same code on memory; the brokered one runs in a process of its own, which carries its
doorbells. Rounds alternate. Prints medians, and the brokered one's ratio to the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tutti_runtime as tr
from tutti_runtime import nvmed

MIB = 1 << 20
SPACE = 64 * MIB
CASES = {
    "4 KiB, 1 at once": (4096, 1),
    "4 KiB, 64 at once": (4096, 64),
    "256 KiB, 32 at once": (256 << 10, 32),
}


class Reader:
    def __init__(self, runtime: tr.Runtime, uri: str) -> None:
        self.runtime = runtime
        self.memory = nvmed.SharedMemory(16 * MIB)
        self.handle = runtime.register_memory(self.memory.address, self.memory.size)
        self.target = runtime.open(uri)
        self.random = np.random.default_rng(1)

    def measure(self, length: int, depth: int, seconds: float) -> float:
        """Reads a second, in batches of ``depth``."""
        rows = np.zeros(depth, tr.REQUEST_DTYPE)
        rows["direction"], rows["memory"], rows["target"] = tr.READ, self.handle, self.target
        rows["length"], rows["memory_offset"] = length, np.arange(depth) * length
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            rows["target_offset"] = self.random.integers(0, SPACE // length, depth) * length
            result = self.runtime.submit(rows)
            if result.handle is None or self.runtime.wait(result.handle).status.any():
                raise RuntimeError(f"not read: {result.errors}")
            done += depth
        return done / (time.perf_counter() - begin)


def start_daemon(folder: Path) -> tuple[subprocess.Popen[str], str]:
    path = str(folder / "tutti" / "nvmed.sock")
    spec = {"transport": "soft", "name": "disk", "memory_bytes": SPACE}
    (folder / "settings.json").write_text(json.dumps({"socket": path, "controllers": [spec]}))
    command = [sys.executable, "-m", "tutti_runtime.nvmed", "--config", str(folder / "settings.json")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    if process.stderr is None or "listening" not in (line := process.stderr.readline()):
        raise RuntimeError(f"the daemon did not start: {line}")
    return process, path


def run(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {case: {"own": [], "brokered": []} for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        process, path = start_daemon(Path(folder))
        try:
            spec = {"transport": "soft", "name": "disk", "memory_bytes": SPACE}
            uri = f"nvme://disk/1?broker={path}"
            with tr.make_nvme_runtime(controllers=[spec]) as own, tr.make_runtime(uri) as brokered:
                readers = {"own": Reader(own, "nvme://disk/1"), "brokered": Reader(brokered, uri)}
                for i in range(rounds):
                    print(f"round {i + 1} of {rounds}", file=sys.stderr)
                    for case, (length, depth) in CASES.items():
                        for name, reader in readers.items():
                            found[case][name].append(reader.measure(length, depth, seconds))
        finally:
            process.terminate()
            process.communicate()
    report = {}
    for case, rates in found.items():
        own_rate, brokered_rate = (statistics.median(rates[name]) for name in ("own", "brokered"))
        report[case] = {"own": own_rate, "brokered": brokered_rate, "ratio": brokered_rate / own_rate}
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options.rounds, options.seconds)
    print(f"{'reads a second':22s} {'own':>12s} {'brokered':>12s} {'ratio':>7s}")
    for case, row in report.items():
        print(f"{case:22s} {row['own']:12.0f} {row['brokered']:12.0f} {row['ratio']:7.2f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
