# SPDX-License-Identifier: Apache-2.0
"""Time that the engine takes from a server's own thread in one step, beside its limits (DESIGN section 9).

    python benchmarks/host_time.py

Backend and mover do nothing here, so that what is left is the engine's own Python. ``caller`` is the CPU
time of the calling thread and ``wall`` what passes meanwhile, waiting for the interpreter included; ``all
threads`` is the CPU time of the process until the step's transfers have ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from tutti_engine import ChunkKey, ExecutionSettings, Geometry, SegmentBatch, StagingWindow, TuttiEngine

LIMITS = {"nothing to do": 50e-6, "whole plans": 2e-3, "layer by layer": 2e-3}


class Finished:
    """A batch that was finished before its call returned."""

    def __init__(self, count: int) -> None:
        self._statuses = bytes(count)

    def poll(self) -> bool:
        """Return True."""
        return True

    def wait(self, deadline: float) -> bool:
        """Return True."""
        return True

    def status(self) -> Sequence[int]:
        """Return success for every segment."""
        return self._statuses


class NullBackend:
    """A backend that moves nothing."""

    def chunk_ids(self, count: int) -> Sequence[int]:
        """Return numbers."""
        return range(count)

    def bind_staging(self, window: StagingWindow) -> None:
        """Do nothing."""

    def write_segments(self, batch: SegmentBatch) -> Finished:
        """Do nothing."""
        return Finished(len(batch))

    read_segments = write_segments

    def wait_idle(self, deadline: float) -> bool:
        """Return True."""
        return True

    def shutdown(self) -> None:
        """Do nothing."""


class NullMover:
    """A mover that copies nothing and believes everything."""

    checksum_name = "none"

    def bind(self, window: StagingWindow) -> None:
        """Do nothing."""

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """Return zeros."""
        return array("Q", bytes(8 * len(slots)))

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Return success."""
        return b"\x01" * len(slots)  # type: ignore[return-value]


class Server:
    """One engine for planning and execution, and prompts of so many chunks."""

    def __init__(self, layers: int, chunks: int, blocks: int) -> None:
        self.geometry = Geometry(layers, block_tokens=16, blocks_per_chunk=blocks, page_bytes=4096)
        self.chunks = chunks
        backend = NullBackend()
        self.engine = TuttiEngine(self.geometry, chunk_ids=backend.chunk_ids(64 * chunks), backend=backend)
        self.engine.bind(NullMover(), ExecutionSettings(store_stall=10.0))
        self._step = 0
        self._known = self.chunk_list()
        self.store(self._known)
        self.settle()

    def chunk_list(self) -> list[tuple[ChunkKey, tuple[tuple[int, ...], ...]]]:
        """Return chunks that were never seen, each with its blocks."""
        self._step += 1
        blocks = self.geometry.blocks_per_chunk
        return [
            (
                ChunkKey(b"%d-%d" % (self._step, number)),
                (tuple(range(number * blocks, (number + 1) * blocks)),),
            )
            for number in range(self.chunks)
        ]

    def store(self, chunks: list[tuple[ChunkKey, tuple[tuple[int, ...], ...]]]) -> None:
        """Plan and start to store."""
        plan = self.engine.plan_store(chunks)
        assert plan is not None
        self.engine.store(plan)

    def settle(self) -> None:
        """Wait for what was started, and check it."""
        assert self.engine.wait_idle(time.monotonic() + 60)
        assert all(result.errno == 0 for result in self.engine.settle() if hasattr(result, "errno"))

    def nothing(self) -> None:
        """A step without work."""
        self.engine.settle()
        self.engine.lookup_prefix(())

    def whole_plans(self) -> None:
        """A step that loads one prompt and stores another one."""
        self.engine.load(self.engine.plan_load(self._known))
        self.store(self._new)
        self.engine.settle()

    def layer_by_layer(self) -> None:
        """The same, one layer a call."""
        load = self.engine.plan_load(self._known)
        self.engine.load_layers(load)
        store = self.engine.plan_store(self._new)
        assert store is not None
        for layer in range(self.geometry.num_layers):
            self.engine.store_layer(store, layer)
        self.engine.settle()

    def measure(self, step: Callable[[], None], rounds: int) -> dict[str, float]:
        """Return the median seconds of a step: see the head of this file."""
        caller, wall, everything = [], [], []
        for _ in range(rounds):
            self._new = self.chunk_list()
            cpu, clock, begin = time.process_time(), time.perf_counter(), time.thread_time()
            step()
            wall.append(time.perf_counter() - clock)
            caller.append(time.thread_time() - begin)
            self.settle()
            everything.append(time.process_time() - cpu)
        medians = map(statistics.median, (caller, wall, everything))
        return dict(zip(("caller", "wall", "all_threads"), medians))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--chunks", type=int, default=8, help="chunks loaded and stored in a step")
    parser.add_argument("--blocks", type=int, default=16, help="blocks of a chunk")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    options = parser.parse_args()
    server = Server(options.layers, options.chunks, options.blocks)
    steps = {
        "nothing to do": server.nothing,
        "whole plans": server.whole_plans,
        "layer by layer": server.layer_by_layer,
    }
    rows = {}
    print(f"{options.layers} layers, {options.chunks} chunks loaded and {options.chunks} stored a step, us")
    print(f"{'step':16s} {'caller':>9s} {'limit':>7s} {'ratio':>6s} {'wall':>8s} {'all threads':>12s}")
    for name, step in steps.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        row = rows[name] = server.measure(step, options.rounds)
        limit = LIMITS[name]
        print(
            f"{name:16s} {row['caller'] * 1e6:9.0f} {limit * 1e6:7.0f} {row['caller'] / limit:6.2f} "
            f"{row['wall'] * 1e6:8.0f} "
            f"{row['all_threads'] * 1e6:12.0f}"
        )
    server.engine.shutdown()
    if options.json:
        report = {"settings": vars(options), "seconds": rows}
        options.json.write_text(json.dumps(report, default=str, indent=1))


if __name__ == "__main__":
    main()
