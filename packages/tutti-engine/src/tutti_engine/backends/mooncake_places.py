# SPDX-License-Identifier: Apache-2.0
"""A Mooncake cluster as the places of one server: a ``StorageBackend`` whose segments are its objects."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from tutti_engine.backend import SegmentBatch, StagingWindow
from tutti_engine.backends.mooncake import MooncakeStore, Pieces, _parts
from tutti_engine.backends.mooncake_client import errno_of
from tutti_engine.shared.blocking_store import BatchHandle
from tutti_engine.shared.store import ObjectBatch

__all__ = ["MooncakeBackend"]


class MooncakeBackend:
    """A ``StorageBackend`` over a cluster. One object is one segment; a place is written over in place.

    For servers that share what they store, use ``MooncakeStore``: here the objects have names of this
    backend alone, and another one does not find them.

    "Durable" here means that ``replicas`` nodes hold the bytes in their memory. They survive this process and
    the loss of ``replicas - 1`` nodes, not that of the master, and not the cluster's need for room: what was
    evicted reads as ``ENOENT``. A write over a segment whose bytes are read elsewhere at the time may be seen
    by that reader, so that checksums are needed as with any other backend.

    Args:
        master: the master's address, ``host:port``.
        num_layers: segments of one chunk.
        segment_bytes: bytes of one segment.
        num_chunks: chunks that there is room for.
        options: further arguments of ``MooncakeStore``.

    Raises what ``MooncakeStore`` raises.
    """

    spi_version = 2

    def __init__(
        self, master: str, *, num_layers: int, segment_bytes: int, num_chunks: int, **options: Any
    ) -> None:
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
        self._num_slots = 0
        self._prefix = f"tutti-places/{uuid.uuid4().hex}"
        self._store = _Places(master, **options)

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
        self._store.bind_staging(window, _NoHeaders(window))
        self._num_slots = window.num_slots

    def write_segments(self, batch: SegmentBatch) -> BatchHandle:
        """Start to copy slots to the cluster."""
        return self._store.write_objects(self._objects(batch))

    def read_segments(self, batch: SegmentBatch) -> BatchHandle:
        """Start to copy from the cluster to slots."""
        return self._store.read_objects(self._objects(batch))

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no call is under way."""
        return self._store.wait_idle(deadline)

    def shutdown(self) -> None:
        """End the calls, or give up those that hang, and close the client."""
        self._store.shutdown()

    def _objects(self, batch: SegmentBatch) -> ObjectBatch:
        limit = self._num_slots if self._num_slots else 1 << 62  # without a window the store itself refuses
        _check("chunk id", batch.chunk_ids, self._num_chunks)
        _check("layer", batch.layers, self._num_layers)
        _check("slot", batch.slots, limit)
        names = [f"{self._prefix}/{chunk}/{layer}" for chunk, layer in zip(batch.chunk_ids, batch.layers)]
        return ObjectBatch(names, batch.slots, 1)


class _Places(MooncakeStore):
    """Objects that are written over."""

    def put(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Write objects, also those that are there."""
        places, sizes = _parts(pieces)
        starts, lengths = [each[0] for each in places], [each[0] for each in sizes]
        with self._writing.taken(), self._calling():
            codes = self._client.batch_upsert_from(list(names), starts, lengths, self._config)
        return [0 if code == 0 else errno_of(code) for code in codes]


class _NoHeaders:
    """The header window of objects that have no header."""

    address = 0
    nbytes = 0
    slot_bytes = 0
    memory = memoryview(b"")

    def __init__(self, window: StagingWindow) -> None:
        self.num_slots = window.num_slots


def _check(what: str, column: Iterable[object], limit: int) -> None:
    for value in column:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
            raise ValueError(f"{what} {value!r} is not one of 0..{limit - 1}")
