# SPDX-License-Identifier: Apache-2.0
"""How segments should lie in a file: measures the alternatives on one file of one drive, alternating.

`python benchmarks/layout.py --directory /mnt/nvme0`. Two orders: `chunk` keeps the layers of a chunk
together, as `StoreLayout` does; `layer` keeps one layer of all chunks together. Three alignments of a chunk's
start. Two ways to read: `whole` takes all layers of some chunks, as an asynchronous load does; `layers` takes
them layer after layer, as a layer-wise load does. O_DIRECT where the file system has it; the page cache is
dropped from the file before each round. Bandwidth counts data, not padding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tutti_runtime
from tutti_engine.testing.window import HostWindow

KIB = 1024


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def offsets(order: str, alignment: int, chunks: int, layers: int, segment: int) -> np.ndarray[Any, Any]:
    """Return the place of each segment as an array [chunk, layer]."""
    chunk, layer = np.arange(chunks)[:, None], np.arange(layers)[None, :]
    if order == "chunk":
        return chunk * align_up(layers * segment, alignment) + layer * segment
    stride = align_up(segment, alignment)
    return layer * (chunks * stride) + chunk * stride


class Reader:
    """One file, one window, and the runtime between them."""

    def __init__(self, path: Path, window: HostWindow, size: int) -> None:
        self.runtime = tutti_runtime.make_file_runtime()
        self.window = window
        self.memory = self.runtime.register_memory(window.address, window.nbytes, kind="host")
        self.target = self.runtime.open(f"file://{path}")
        self.path = path
        self.size = size
        self.batch = self.runtime.caps()["max_batch_requests"]

    def read(self, places: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> float:
        """Read runs, a window's worth at a time; return the seconds."""
        begin = time.perf_counter()
        start = 0
        while start < len(places):
            ends = np.cumsum(lengths[start : start + self.batch])
            count = max(1, int(np.searchsorted(ends, self.window.nbytes, side="right")))
            array = np.zeros(min(count, len(ends)), tutti_runtime.REQUEST_DTYPE)
            some = slice(start, start + len(array))
            array["direction"] = tutti_runtime.READ
            array["memory"] = self.memory
            array["memory_offset"] = np.concatenate([[0], ends[: len(array) - 1]])
            array["target"] = self.target
            array["target_offset"] = places[some]
            array["length"] = lengths[some]
            result = self.runtime.submit(array)
            assert result.accepted.all(), result.errors
            completion = self.runtime.wait(result.handle, 60)
            assert not completion.status.any(), completion.status
            start += len(array)
        return time.perf_counter() - begin

    def drop_cache(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def runs(places: np.ndarray[Any, Any], segment: int, longest: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Join neighbours, as the backend does."""
    heads = np.ones(len(places), bool)
    heads[1:] = np.diff(places) != segment
    index = np.flatnonzero(heads)
    within = np.arange(len(places)) - index[np.cumsum(heads) - 1]
    index = np.flatnonzero(within % max(1, longest // segment) == 0)
    return places[index], np.diff(np.append(index, len(places))) * segment


def measure(reader: Reader, arguments: argparse.Namespace) -> dict[str, float]:
    chance = random.Random(1)
    chunks, layers, segment = arguments.chunks, arguments.layers, arguments.segment_kib * KIB
    series: dict[str, list[float]] = {}
    for turn in range(arguments.rounds):
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr)
        for order, alignment, way in product(("chunk", "layer"), (4, 16, 32), ("whole", "layers")):
            places = offsets(order, alignment * KIB, chunks, layers, segment)
            chosen = places[chance.sample(range(chunks), arguments.loaded)]
            parts = [chosen.reshape(-1)] if way == "whole" else list(chosen.T)
            reader.drop_cache()
            seconds = 0.0
            for part in parts:
                seconds += reader.read(*runs(part, segment, 1 << 20))
            rate = arguments.loaded * layers * segment / seconds / 1e6
            series.setdefault(f"{order}-{alignment}k-{way}", []).append(rate)
    return {name: statistics.median(values) for name, values in series.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--segment-kib", type=int, default=260, help="an odd size shows what alignment does")
    parser.add_argument("--loaded", type=int, default=32, help="chunks of one load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    segment = arguments.segment_kib * KIB
    size = arguments.chunks * arguments.layers * align_up(segment, 32 * KIB)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = Path(folder) / "data"
        print(f"writing {size >> 20} MiB", file=sys.stderr)
        with path.open("wb") as file:
            for _ in range(0, size, 1 << 20):
                file.write(os.urandom(1 << 12) * 256)
            file.flush()
            os.fsync(file.fileno())
        window = HostWindow(64, 1 << 20)
        reader = Reader(path, window, size)
        result = measure(reader, arguments)
        reader.runtime.shutdown(5)
    for name, rate in result.items():
        print(f"{name:20} {rate:9.0f} MB/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
