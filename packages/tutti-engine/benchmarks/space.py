# SPDX-License-Identifier: Apache-2.0
"""What the first filling of a place costs by how it was made: sparse, allocated, or written with zeros.

`python benchmarks/space.py --directory /mnt/nvme0`. For each way, alternating: a new store, its places
prepared (timed), then every place stored once in batches that are each made durable (timed), then once more,
when the blocks are there however they came (the peer of the first filling).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tutti_engine import Geometry
from tutti_engine.backend import SegmentBatch
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.store.slots import PREPARATIONS, SlotFiles
from tutti_engine.testing.window import HostWindow

NAMESPACE = Namespace({"benchmark": "space"})
BATCH = 4


def fill(backend: LocalStoreBackend, layers: int, chunks: int) -> float:
    """Store every place; return the seconds."""
    begin = time.perf_counter()
    for first in range(0, chunks, BATCH):
        slots = [slot for slot in range(first, min(first + BATCH, chunks)) for _ in range(layers)]
        batch = SegmentBatch(slots, list(range(layers)) * (len(slots) // layers), range(len(slots)))
        handle = backend.write_segments(batch)
        assert handle.wait(time.monotonic() + 120)
        assert not any(handle.status())
    return time.perf_counter() - begin


def once(directory: Path, prepare: str, chunks: int, layers: int, segment: int) -> dict[str, float]:
    geometry = Geometry(num_layers=layers, block_tokens=16, blocks_per_chunk=16, page_bytes=segment // 16)
    root = directory / prepare
    capacity = bytes_needed(chunks, geometry=geometry, ranks=1, roots=1)
    data = chunks * geometry.num_layers * segment / 1e6
    with LocalStore.open([root], NAMESPACE, geometry, ranks=1, capacity_bytes=capacity) as store:
        files = SlotFiles(store.layout, 1, prepare)
        begin = time.perf_counter()
        for slot in store.chunk_ids:
            files.prepare(slot)
        prepared = time.perf_counter() - begin
        backend = LocalStoreBackend(store.layout, 0)
        backend.bind_staging(HostWindow(BATCH * layers, geometry.segment_bytes))
        first, again = (fill(backend, layers, len(store.chunk_ids)) for _ in range(2))
        backend.shutdown()
    shutil.rmtree(root)
    return {
        "prepare_s": prepared,
        "first_mb_s": data / first,
        "again_mb_s": data / again,
        "ratio": again / first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--segment-kib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    series: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        for turn in range(arguments.rounds):
            for prepare in PREPARATIONS:
                print(f"round {turn + 1} of {arguments.rounds}: {prepare}", file=sys.stderr)
                sizes = (arguments.chunks, arguments.layers, arguments.segment_kib << 10)
                for name, value in once(Path(folder), prepare, *sizes).items():
                    series.setdefault(prepare, {}).setdefault(name, []).append(value)
    result = {
        prepare: {name: statistics.median(values) for name, values in found.items()}
        for prepare, found in series.items()
    }
    for prepare, found in result.items():
        print(f"{prepare:10}", "  ".join(f"{name} {value:9.2f}" for name, value in found.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
