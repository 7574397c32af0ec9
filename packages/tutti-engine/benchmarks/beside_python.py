# SPDX-License-Identifier: Apache-2.0
"""Loads and stores beside a thread that runs Python: both need the interpreter's lock.

    python benchmarks/beside_python.py [--folder FOLDER] [--json FILE]

A server whose scheduler, model runner and cache share a process passes the lock back and forth. Segments are
small and pages are not touched, so that what is left is the engine's own Python and its waiting for the lock:
as much of it as for segments of 256 KiB. The thread beside it does nothing (``alone``), 0.5 ms of Python in
every 1.5 ms (``steps``, as vLLM while a request waits for its load), calls that let the lock go for a moment
with a little Python between them (``launches``, as a model runner that starts kernels), or Python without a
pause (``spin``). ``thread`` is how fast that thread goes on, in ratio to its rate without transfers.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tutti_engine import ChunkKey, ExecutionSettings, Geometry, StagingWindow, TuttiEngine
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.store.layout import StoreLayout

GEOMETRY = Geometry(num_layers=32, block_tokens=16, blocks_per_chunk=4, page_bytes=1024)
SECONDS = 120.0
STEP, PAUSE = 0.0005, 0.001


class Done:
    """A copy that has ended."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words

    def wait(self) -> Sequence[int]:
        """Return at once."""
        return self._words


class NullMover:
    """A mover for pages on a device that copies nothing and believes everything."""

    checksum_name = "none"
    can_skip_verification = True

    def bind(self, window: StagingWindow) -> None:
        """Do nothing."""

    def unbind(self) -> None:
        """Do nothing."""

    def mark(self) -> None:
        """There is no queue."""

    def hold(self, copies: object) -> None:
        """Nothing is under way."""

    def gather(self, layers: object, block_ids: object, slots: Sequence[int]) -> list[int]:
        """Return zeros."""
        return [0] * len(slots)

    def scatter(
        self, layers: object, slots: Sequence[int], block_ids: object, checksums: object
    ) -> list[bool]:
        """Return success."""
        return [True] * len(slots)

    def start_gather(self, mark: None, layers: object, block_ids: object, slots: Sequence[int]) -> Done:
        """Return zeros."""
        return Done([0] * len(slots))

    def start_scatter(
        self, mark: None, layers: object, slots: Sequence[int], block_ids: object, checksums: object
    ) -> Done:
        """Return success."""
        return Done([True] * len(slots))


class Beside:
    """A thread that runs Python while a block runs, and counts how often it came round."""

    def __init__(self, kind: str) -> None:
        self._turn: Callable[[], None] | None = {
            "alone": None,
            "steps": self._step,
            "launches": self._launch,
            "spin": lambda: None,
        }[kind]
        self._getpid = ctypes.CDLL(None).getpid
        self._stop = False
        self.count = 0

    def __enter__(self) -> Beside:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        time.sleep(0.01)
        self.count = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        while not self._stop and self._turn is not None:
            self._turn()
            self.count += 1

    def _step(self) -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < STEP:
            pass
        time.sleep(PAUSE)

    def _launch(self) -> None:
        self._getpid()
        for _ in range(50):
            pass


class Bench:
    """An engine on files, and prompts of so many chunks."""

    def __init__(self, folder: str, chunks: int) -> None:
        size = GEOMETRY.chunk_bytes
        layout = StoreLayout((folder,), GEOMETRY.num_layers, GEOMETRY.segment_bytes, size, 256, 2 * chunks)
        backend = LocalStoreBackend(layout, 0)
        # As many requests as with segments of 256 KiB.
        backend._max_io_bytes = 8 * GEOMETRY.segment_bytes
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=backend.chunk_ids(2 * chunks), backend=backend)
        settings = ExecutionSettings(load_bank_bytes=48 * size, store_bank_bytes=64 * size)
        self.engine.bind(NullMover(), settings)
        self._chunks, self._prompt = chunks, 0
        self.store()

    def _plan(self) -> list[tuple[ChunkKey, tuple[tuple[int, ...], ...]]]:
        width = GEOMETRY.blocks_per_chunk
        return [
            (ChunkKey(b"%d-%d" % (self._prompt, n)), (tuple(range(n * width, (n + 1) * width)),))
            for n in range(self._chunks)
        ]

    def store(self) -> None:
        """Store a new prompt, and nothing else."""
        self.engine.reset()
        self._prompt += 1
        plan = self.engine.plan_store(self._plan())
        assert plan is not None
        self.engine.store(plan)
        self._settle()

    def load(self) -> None:
        """Load the last prompt."""
        self.engine.load(self.engine.plan_load(self._plan()))
        self._settle()

    def _settle(self) -> None:
        assert self.engine.wait_idle(time.monotonic() + SECONDS)
        assert not any(getattr(result, "errno", 0) for result in self.engine.settle())


def measure(bench: Bench, kinds: Sequence[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return seconds of each, of the processors too, and the thread's turns a second."""
    found: dict[str, dict[str, list[float]]] = {}
    work = {"load": bench.load, "store": bench.store, "nothing": lambda: time.sleep(0.05)}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for kind in kinds:
            for what, call in work.items():
                with Beside(kind) as beside:
                    begin, spent = time.perf_counter(), time.process_time()
                    call()
                    seconds, spent = time.perf_counter() - begin, time.process_time() - spent
                    turns = beside.count / seconds
                entry = found.setdefault(f"{kind}, {what}", {"seconds": [], "cpu": [], "turns": []})
                for name, value in (("seconds", seconds), ("cpu", spent), ("turns", turns)):
                    entry[name].append(value)
    return found


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--chunks", type=int, default=512, help="of a prompt; of 64 tokens, 512 are 32,768")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", default=["alone", "steps", "launches", "spin"])
    parser.add_argument("--folder", type=Path, help="where files are made; best in memory")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(folder, options.chunks)
        try:
            found = measure(bench, options.kinds, options.rounds)
            counters = bench.engine.executor.counters.snapshot()
        finally:
            bench.engine.shutdown(10)
    print("| beside | ms | processor ms | thread |\n| --- | ---: | ---: | ---: |")
    for name, entry in found.items():
        kind, _, what = name.partition(", ")
        seconds, spent, turns = (statistics.median(entry[each]) for each in ("seconds", "cpu", "turns"))
        free = statistics.median(found[f"{kind}, nothing"]["turns"])
        ratio = f"{turns / free:.2f}" if free and what != "nothing" else ""
        if what != "nothing":
            print(f"| {name} | {seconds * 1e3:.1f} | {spent * 1e3:.1f} | {ratio} |")
    print({name: counters[name] for name in ("load_waves", "store_waves")})
    if options.json:
        options.json.write_text(json.dumps({"found": found, "counters": counters}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
