# SPDX-License-Identifier: Apache-2.0
"""One round of a data path: bandwidth with CPU time, and latency of single requests."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.factories import make_file_runtime
from tutti_runtime.host_memory import HostMemory
from tutti_runtime.requests import READ, REQUEST_DTYPE, WRITE, Completion
from tutti_runtime.runtime import Runtime

__all__ = ["DIRECTIONS", "Round", "Worker", "open_worker"]

DIRECTIONS = {"read": READ, "write": WRITE}


@dataclass(frozen=True, slots=True)
class Round:
    """GB/s (10**9 bytes), and seconds of CPU time per GB."""

    rate: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Worker:
    """A data path with the file open and memory registered."""

    runtime: Runtime
    target: int
    memory: int
    memory_bytes: int

    def transfer(self, direction: str, block: int, depth: int, size: int) -> Round:
        """Move every block of the file once, in random order, with twice ``depth`` of them submitted."""
        batches = self._batches(DIRECTIONS[direction], block, depth, size)
        used = resource.getrusage(resource.RUSAGE_SELF)
        begin = time.perf_counter()
        move(self.runtime, batches)
        took = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime
        return Round(size / took / 1e9, cpu / (size / 1e9))

    def latencies(self, block: int, count: int, size: int) -> NDArray[np.float64]:
        """Seconds from submit to result of reads at random places, one after the other."""
        rows = self._rows(READ, block, size)
        taken = np.zeros(count)
        for i in range(count):
            row = rows[i % len(rows) : i % len(rows) + 1]
            begin = time.perf_counter()
            result = self.runtime.submit(row)
            check(self.runtime.wait(result.handle or 0))
            taken[i] = time.perf_counter() - begin
        return taken

    def _rows(self, direction: int, block: int, size: int) -> NDArray[np.void]:
        places = np.random.default_rng(1).permutation(size // block)
        rows = np.zeros(len(places), dtype=REQUEST_DTYPE)
        rows["direction"], rows["memory"], rows["target"] = direction, self.memory, self.target
        rows["length"] = block
        rows["target_offset"] = places.astype(np.uint64) * block
        return rows

    def _batches(self, direction: int, block: int, depth: int, size: int) -> list[NDArray[np.void]]:
        rows = self._rows(direction, block, size)
        rows["memory_offset"] = (np.arange(len(rows)) % (self.memory_bytes // block)).astype(
            np.uint64
        ) * block
        step = max(1, depth // 2)
        return [rows[i : i + step] for i in range(0, len(rows), step)]


def move(runtime: Runtime, batches: list[NDArray[np.void]], ahead: int = 4) -> None:
    """Keep ``ahead`` batches in flight until all have finished."""
    handles: deque[int] = deque()
    for batch in batches:
        if len(handles) == ahead:
            check(runtime.wait(handles.popleft()))
        result = runtime.submit(batch)
        if result.handle is None or not result.accepted.all():
            raise RuntimeError(f"not accepted: {result.errors}")
        handles.append(result.handle)
    for handle in handles:
        check(runtime.wait(handle))


def check(done: Completion) -> None:
    """Raise ``RuntimeError`` unless every request succeeded: a benchmark of failures is none."""
    if done.status.any():
        raise RuntimeError(f"requests failed: {np.unique(done.status)}")


@contextmanager
def open_worker(data_path: str, uri: str, *, direct: bool, depth: int, block: int) -> Iterator[Worker]:
    """A runtime of its own for one data path, with ``depth`` operations at the device at once."""
    memory_bytes = 2 * max(depth, 4) * block
    memory = HostMemory(memory_bytes)
    memory.bytes[:] = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), memory_bytes)
    with make_file_runtime(
        data_path=data_path, direct="on" if direct else "off", queue_depth=depth, threads=min(depth, 256)
    ) as runtime:
        handle = runtime.register_memory(memory.address, memory.size)
        yield Worker(runtime, runtime.open(uri), handle, memory_bytes)
