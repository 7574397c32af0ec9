# SPDX-License-Identifier: Apache-2.0
"""A storage backend of one's own: segments compressed in memory by a pool of threads.

It passes ``tutti_engine.testing.conformance``. ``docs/spi.md`` explains each method.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tutti_engine import SegmentBatch, StagingWindow


class Handle:
    """A batch in flight: one future a segment."""

    def __init__(self, futures: list[Future[int]]) -> None:
        self._futures = futures

    def poll(self) -> bool:
        return all(future.done() for future in self._futures)

    def wait(self, deadline: float) -> bool:
        wait(self._futures, max(0.0, deadline - time.monotonic()))
        return self.poll()

    def status(self) -> Sequence[int]:
        if not self.poll():
            raise RuntimeError("the batch is in flight")
        return [future.result() for future in self._futures]


class CompressingBackend:
    """Keeps each segment as zlib makes it."""

    spi_version = 2

    def __init__(self, *, num_layers: int, segment_bytes: int, num_chunks: int) -> None:
        self._limits = {"chunk id": num_chunks, "layer": num_layers, "slot": 0}
        self._segment_bytes = segment_bytes
        self._segments: dict[tuple[object, int], bytes] = {}
        self._window: StagingWindow | None = None
        self._pool = ThreadPoolExecutor(4)
        self._futures: set[Future[int]] = set()

    def chunk_ids(self, count: int) -> Sequence[int]:
        if not 1 <= count <= self._limits["chunk id"]:
            raise ValueError(f"{count} chunk ids: there is room for 1 to {self._limits['chunk id']}")
        return range(count)

    def bind_staging(self, window: StagingWindow) -> None:
        if window.slot_bytes != self._segment_bytes:
            raise ValueError(f"slots of {window.slot_bytes} bytes, segments of {self._segment_bytes}")
        if self._window is not None:
            raise RuntimeError("a window is bound already")
        self._window = window
        self._limits["slot"] = window.num_slots

    def write_segments(self, batch: SegmentBatch) -> Handle:
        return self._start(self._write, batch)

    def read_segments(self, batch: SegmentBatch) -> Handle:
        return self._start(self._read, batch)

    def wait_idle(self, deadline: float) -> bool:
        return Handle(list(self._futures)).wait(deadline)

    def shutdown(self) -> None:
        self._pool.shutdown()

    def _start(self, move: Callable[..., int], batch: SegmentBatch) -> Handle:
        if self._window is None:
            raise RuntimeError("no window is bound")
        columns = (batch.chunk_ids, batch.layers, batch.slots)
        for (name, limit), column in zip(self._limits.items(), columns):
            for value in column:  # the whole batch is checked before any of it moves
                if not isinstance(value, int) or not 0 <= value < limit:
                    raise ValueError(f"{name} {value!r} is not one of 0..{limit - 1}")
        futures = [self._pool.submit(move, *segment) for segment in zip(*columns)]
        for future in futures:
            self._futures.add(future)
            future.add_done_callback(self._futures.discard)
        return Handle(futures)

    def _slot(self, slot: int) -> memoryview:
        assert self._window is not None
        return self._window.memory[slot * self._segment_bytes : (slot + 1) * self._segment_bytes]

    def _write(self, chunk: int, layer: int, slot: int) -> int:
        self._segments[chunk, layer] = zlib.compress(self._slot(slot), 1)
        return 0

    def _read(self, chunk: int, layer: int, slot: int) -> int:
        empty = zlib.compress(bytes(self._segment_bytes))
        self._slot(slot)[:] = zlib.decompress(self._segments.get((chunk, layer), empty))
        return 0
