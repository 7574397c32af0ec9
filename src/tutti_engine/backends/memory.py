# SPDX-License-Identifier: Apache-2.0
"""Chunks in the memory of this process: for tests, and for servers that only want reuse within one run."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tutti_engine.backend import SegmentBatch, StagingWindow

__all__ = ["MemoryBackend", "MemoryHandle"]


class MemoryHandle:
    """A batch that was finished before its call returned."""

    def __init__(self, count: int) -> None:
        self._count = count

    def poll(self) -> bool:
        """Return True."""
        return True

    def wait(self, deadline: float) -> bool:
        """Return True."""
        return True

    def status(self) -> Sequence[int]:
        """Return success for every segment."""
        return [0] * self._count


class MemoryBackend:
    """A ``StorageBackend`` over one bytearray; every call copies before it returns.

    "Durable" lasts as long as the process here. Raises ValueError for sizes below one.

    Args:
        num_layers: segments of one chunk.
        segment_bytes: bytes of one segment.
        num_chunks: chunks that there is room for.
    """

    spi_version = 2

    def __init__(self, *, num_layers: int, segment_bytes: int, num_chunks: int) -> None:
        for name, value in (
            ("num_layers", num_layers),
            ("segment_bytes", segment_bytes),
            ("num_chunks", num_chunks),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self._num_layers = num_layers
        self._segment_bytes = segment_bytes
        self._num_chunks = num_chunks
        self._data = memoryview(bytearray(num_chunks * num_layers * segment_bytes))
        self._window: StagingWindow | None = None
        self._lock = threading.Lock()
        self._closed = False

    def chunk_ids(self, count: int) -> Sequence[int]:
        """Return the ids 0 to ``count - 1``."""
        if not 1 <= count <= self._num_chunks:
            raise ValueError(f"{count} chunk ids were asked for; there is room for 1 to {self._num_chunks}")
        return range(count)

    def bind_staging(self, window: StagingWindow) -> None:
        """Take the window. Raises ValueError for slots of another size, RuntimeError the second time."""
        if window.slot_bytes != self._segment_bytes:
            raise ValueError(
                f"slots of {window.slot_bytes} bytes do not fit segments of {self._segment_bytes}"
            )
        with self._lock:
            if self._window is not None:
                raise RuntimeError("a staging window is bound already")
            self._window = window

    def write_segments(self, batch: SegmentBatch) -> MemoryHandle:
        """Copy slots to storage."""
        slots, places = self._ranges(batch)
        for slot, place in zip(slots, places):
            self._data[place] = self._memory[slot]
        return MemoryHandle(len(batch))

    def read_segments(self, batch: SegmentBatch) -> MemoryHandle:
        """Copy storage to slots."""
        slots, places = self._ranges(batch)
        for slot, place in zip(slots, places):
            self._memory[slot] = self._data[place]
        return MemoryHandle(len(batch))

    def check(self, batch: SegmentBatch) -> None:
        """Raise what ``write_segments`` would raise for a batch, and copy nothing."""
        self._ranges(batch)

    def wait_idle(self, deadline: float) -> bool:
        """Return True: nothing is ever in flight."""
        return True

    def shutdown(self) -> None:
        """Refuse later transfers."""
        self._closed = True

    @property
    def _memory(self) -> memoryview:
        assert self._window is not None
        return self._window.memory

    def _ranges(self, batch: SegmentBatch) -> tuple[list[slice], list[slice]]:
        """Return byte ranges in the window and in storage, after the whole batch was checked."""
        if self._closed:
            raise RuntimeError("the backend is shut down")
        if self._window is None:
            raise RuntimeError("no staging window is bound; call bind_staging first")
        for name, column, limit in (
            ("chunk id", batch.chunk_ids, self._num_chunks),
            ("layer", batch.layers, self._num_layers),
            ("slot", batch.slots, self._window.num_slots),
        ):
            for value in column:
                if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
                    raise ValueError(f"{name} {value!r} is not one of 0..{limit - 1}")
        size = self._segment_bytes
        slots = [slice(slot * size, (slot + 1) * size) for slot in batch.slots]
        places = [
            slice(place * size, (place + 1) * size)
            for chunk, layer in zip(batch.chunk_ids, batch.layers)
            if isinstance(chunk, int)
            for place in (chunk * self._num_layers + layer,)
        ]
        return slots, places
