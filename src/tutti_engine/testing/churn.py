# SPDX-License-Identifier: Apache-2.0
"""Stores far more than fits, for a long time, and watches the disk: `python -m tutti_engine.testing.churn`.

A thread adds up what the root occupies as often as it can, and compares that with the capacity. In between
chunks are loaded and compared, and the store is closed and opened. Exit status 1 when the capacity was passed
by a byte or a chunk came back wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tutti_engine import Geometry
from tutti_engine.testing.small_server import SmallServer

__all__ = ["Sampler", "run"]

GEOMETRY = Geometry(num_layers=4, block_tokens=16, blocks_per_chunk=2, page_bytes=32 * 1024)

SAMPLE_PAUSE = 0.002


def occupied(root: Path) -> int:
    """Return the bytes on disk of everything below a directory, itself included."""
    total = 0
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118
            try:
                total += os.lstat(path).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


class Sampler:
    """Looks at a directory all the time.

    Attributes:
        highest: most bytes that were seen.
        samples: looks so far.
    """

    def __init__(self, root: Path) -> None:
        self.highest = 0
        self.samples = 0
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_PAUSE):
            self.highest = max(self.highest, occupied(self._root))
            self.samples += 1

    def stop(self) -> None:
        """End, after a last look."""
        self._stop.set()
        self._thread.join()
        self.highest = max(self.highest, occupied(self._root))
        self.samples += 1


def run(
    seconds: float, *, directory: Path, capacity_bytes: int, times: float, seed: int, progress: bool = False
) -> dict[str, Any]:
    """Store for some time, at least ``times`` the capacity, and return the counts."""
    chance = random.Random(seed)
    root = directory / "kv"
    root.mkdir(parents=True)
    sampler = Sampler(root)
    result: dict[str, Any] = {"seed": seed, "capacity_bytes": capacity_bytes}
    result |= {"right": 0, "wrong": 0, "miss": 0}
    recent: list[bytes] = []
    stored = number = openings = 0
    begin = told = time.monotonic()

    def is_done() -> bool:
        enough = stored * GEOMETRY.chunk_bytes >= times * capacity_bytes
        return enough and time.monotonic() - begin > seconds

    try:
        while not is_done():
            with SmallServer([root], capacity_bytes=capacity_bytes, geometry=GEOMETRY) as server:
                openings += 1
                for _ in range(chance.randint(50, 400)):
                    count = chance.randint(1, server.batch)
                    keys = [b"%d-%d" % (seed, number + each) for each in range(count)]
                    number += count
                    planned = server.store_chunks(keys)
                    if planned < count:
                        # Evictions have to become durable before there is room again.
                        server.store.catalogue.flush(30)
                    stored += planned
                    recent = (recent + keys[:planned])[-40:]
                    result[server.load_chunk(chance.choice(recent or keys))] += 1
                    if is_done():
                        break
            if progress and time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{told - begin:.0f} s, {stored} chunks, {sampler.highest} bytes", file=sys.stderr)
    finally:
        sampler.stop()
    result |= {
        "seconds": time.monotonic() - begin,
        "openings": openings,
        "stored_bytes": stored * GEOMETRY.chunk_bytes,
        "times_capacity": stored * GEOMETRY.chunk_bytes / capacity_bytes,
        "highest_bytes": sampler.highest,
        "passed_by_bytes": max(0, sampler.highest - capacity_bytes),
        "samples": sampler.samples,
    }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Churn of a local store at many times its capacity")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--times", type=float, default=100, help="store at least so many times the capacity")
    parser.add_argument("--capacity-bytes", type=int, default=64 << 20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--directory", type=Path, help="where the store is made; default: a temporary directory"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        result = run(
            arguments.seconds,
            directory=directory,
            capacity_bytes=arguments.capacity_bytes,
            times=arguments.times,
            seed=random.randrange(1 << 32) if arguments.seed is None else arguments.seed,
            progress=True,
        )
    finally:
        shutil.rmtree(directory)
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(result["passed_by_bytes"] or result["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
