# SPDX-License-Identifier: Apache-2.0
"""Time to open a store of many chunks, with and without its slot table, and the memory that it takes.

`python benchmarks/open_store.py --chunks 1000000`. Peer in the same run: what SQLite alone needs to hand the
same rows to Python. Nothing is read but the catalogue; segment files are not even made.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tutti_engine.catalogue.mirror import MIN_SLOTS
from tutti_engine.catalogue.slot_table import SLOT_TABLE_NAME
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.planning.planner import Planner
from tutti_engine.store.local_store import LocalStore, bytes_needed

NAMESPACE = Namespace({"benchmark": "open store"})


def rss() -> int:
    """Return the memory of this process's own in bytes, what it maps of files left out."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(facts["RssAnon"].split()[0]) * 1024


def open_store(root: Path, chunks: int, layers: int) -> LocalStore:
    geometry = Geometry(num_layers=layers, block_tokens=16, blocks_per_chunk=16, page_bytes=16384)
    capacity = bytes_needed(chunks, geometry=geometry, ranks=1, roots=1)
    return LocalStore.open([root], NAMESPACE, geometry, ranks=1, capacity_bytes=capacity)


def make(root: Path, chunks: int, layers: int) -> None:
    """Fill the catalogue by SQL: a million puts would take minutes."""
    with open_store(root, chunks, layers) as store:
        path = store.directory / "catalogue.db"
    connection = sqlite3.connect(path)
    generator = random.Random(1)
    sums = generator.randbytes(8 * layers)
    rows = (
        # As after some time of serving: neighbouring places were filled and used at any times.
        (slot, generator.randbytes(32), number << 24, 1, sums, 1_700_000_000 + number // 16)
        for slot, number in enumerate(generator.sample(range(1, chunks + 1), chunks))
    )
    with connection:
        connection.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("DELETE FROM meta WHERE name = 'slot_table'")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def bare_fetch(path: Path) -> float:
    """Return the seconds in which SQLite alone hands over all rows."""
    gc.disable()
    begin = time.perf_counter()
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT * FROM chunks").fetchall()
    seconds = time.perf_counter() - begin
    gc.enable()
    connection.close()
    del rows
    return seconds


def timed_open(root: Path, chunks: int, layers: int, wait: bool = False) -> dict[str, float]:
    gc.collect()
    before = rss()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    store = open_store(root, chunks, layers)
    opened, opened_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    held = rss() - before
    begin = time.perf_counter()
    planner = Planner(store_geometry(layers), store.chunk_ids, records=store.records, journal=store.catalogue)
    planned = time.perf_counter() - begin
    computed = time.process_time() - begin_cpu
    store.records.clear()
    gc.collect()
    with_planner = rss() - before
    assert planner.resident_chunks == chunks
    while wait and not store.catalogue.table_complete:
        time.sleep(0.1)
    begin = time.perf_counter()
    store.close()
    return {
        "open": opened,
        "open_processor": opened_cpu,
        "planner": planned,
        "processor_of_both": computed,
        "close": time.perf_counter() - begin,
        "bytes_a_chunk_open": held / chunks,
        "bytes_a_chunk_planner": with_planner / chunks,
    }


def store_geometry(layers: int) -> Geometry:
    return Geometry(num_layers=layers, block_tokens=16, blocks_per_chunk=16, page_bytes=16384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, help="directory to work in; default: a temporary one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.chunks < MIN_SLOTS:
        parser.error(f"--chunks must be at least {MIN_SLOTS}: smaller stores have no slot table")
    root = Path(tempfile.mkdtemp(dir=arguments.root))
    try:
        result = measure(root, arguments.chunks, arguments.layers, arguments.rounds)
    finally:
        shutil.rmtree(root)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:32} {value:10.3f}")


def measure(root: Path, chunks: int, layers: int, rounds: int) -> dict[str, float]:
    print(f"making a catalogue of {chunks} chunks", file=sys.stderr)
    make(root, chunks, layers)
    print("first opening, from the database; the slot table is made behind it", file=sys.stderr)
    first = timed_open(root, chunks, layers, wait=True)
    series: dict[str, list[float]] = {}
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
        series.setdefault("sqlite_alone", []).append(bare_fetch(next(root.glob("*/catalogue.db"))))
        for name, value in timed_open(root, chunks, layers).items():
            series.setdefault(name, []).append(value)
    result = {"open_from_database": first["open"]}
    result |= {name: statistics.median(values) for name, values in series.items()}
    result["slot_table_megabytes"] = next(root.glob(f"*/{SLOT_TABLE_NAME}")).stat().st_blocks * 512 / 1e6
    return result


if __name__ == "__main__":
    main()
