# SPDX-License-Identifier: Apache-2.0
"""One rank's way to a shared store, as a storage backend: chunk ids are keys, and each read is verified.

An object is a chunk's layers of one cache group on one rank, with a header before them.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Sequence

from tutti_engine.backend import SPI_VERSION, SegmentBatch, StagingWindow
from tutti_engine.execution.ring_window import RingWindow
from tutti_engine.geometry import Geometry
from tutti_engine.plan import ChunkId
from tutti_engine.shared.object_header import (
    HeaderError,
    ObjectHeader,
    ObjectNames,
    decode_header,
    encode_header,
    header_bytes,
)
from tutti_engine.shared.store import ObjectBatch, ObjectHandle, SharedStore

__all__ = ["SharedBackend", "SharedRead", "SharedWrite"]


class SharedWrite:
    """A batch on its way to the store."""

    def __init__(self, inner: ObjectHandle, segments: int) -> None:
        self._inner = inner
        self._segments = segments

    def poll(self) -> bool:
        """Return whether the batch is finished."""
        return self._inner.poll()

    def wait(self, deadline: float) -> bool:
        """Wait until it is, or ``time.monotonic()`` reaches ``deadline``; return ``poll()``."""
        return self._inner.wait(deadline)

    def status(self) -> Sequence[int]:
        """Return each segment's status: its object's."""
        return [code for code in self.object_status() for _ in range(self._segments)]

    def object_status(self) -> Sequence[int]:
        """Return each object's status; one that found no room counts as written nowhere, and not as tried."""
        # Nothing of ours waits for a server that is full: the chunk is given up.
        return [errno.ENOSPC if code == errno.EAGAIN else code for code in self._inner.status()]


class SharedRead(SharedWrite):
    """A batch on its way from the store. What comes with a header that does not fit has failed."""

    def __init__(
        self,
        inner: ObjectHandle,
        segments: int,
        headers: Sequence[memoryview],
        wanted: Sequence[ObjectHeader],
    ) -> None:
        """``wanted`` are headers as they must be, but for their checksums."""
        super().__init__(inner, segments)
        self._headers = headers
        self._wanted = wanted
        self._judged: list[int] | None = None
        self._sums = array("Q")

    def object_status(self) -> Sequence[int]:
        """Return each object's status, after a look at its header."""
        if self._judged is None:
            codes, self._sums = [], array("Q")
            for code, data, wanted in zip(super().object_status(), self._headers, self._wanted):
                none = array("Q", bytes(8 * self._segments))
                judged, sums = (code, none) if code else self._judge(data, wanted, none)
                codes.append(judged)
                self._sums.extend(sums)
            self._judged = codes
        return self._judged

    def checksums(self) -> array[int]:
        """Return what the headers say, one number a segment; zeros of objects that failed."""
        self.object_status()
        return self._sums

    def _judge(self, data: memoryview, wanted: ObjectHeader, none: array[int]) -> tuple[int, array[int]]:
        try:
            found = decode_header(data)
        except HeaderError:
            return errno.EBADMSG, none
        if found is None:
            # Another version's: for us it is not there.
            return errno.ENOENT, none
        same = (
            found.namespace == wanted.namespace
            and (found.rank, found.group) == (wanted.rank, wanted.group)
            and found.key == wanted.key
            and found.segment_bytes == wanted.segment_bytes
            and len(found.checksums) == self._segments
        )
        return (0, found.checksums) if same else (errno.EBADMSG, none)


class SharedBackend:
    """A ``StorageBackend`` over a ``SharedStore``.

    It moves whole objects: a batch has all layers of a group for each chunk, in order and in neighbouring
    slots, as waves of plans for all layers have.

    Args:
        store: a client of the store.
        names: how objects are called.
        rank: this rank's part of a chunk.
        geometry: of this rank's chunks.
    """

    spi_version = SPI_VERSION
    wants_checksums = True
    load_waves = 2
    """One is read while the other is verified: a call has a price, its connections do not end together."""

    def __init__(self, store: SharedStore, names: ObjectNames, rank: int, geometry: Geometry) -> None:
        self._store = store
        self._names = names
        self._rank = rank
        self._segment_bytes = geometry.segment_bytes
        self._header_bytes = header_bytes(geometry.num_layers)
        self._layers = [array("q", group.layers) for group in geometry.groups]
        self._group_of = {
            group.layers[0]: number for number, group in enumerate(geometry.groups) if group.layers
        }
        self._headers: RingWindow | None = None

    @property
    def data_path(self) -> str:
        """What moves the bytes, for metrics."""
        return f"shared/{getattr(self._store, 'data_path', type(self._store).__name__)}"

    def chunk_ids(self, count: int) -> Sequence[ChunkId]:
        """Raise ValueError: a shared store has no places to give away, its chunks go by their keys."""
        raise ValueError(f"a shared store has no places, {count} were asked for: chunks go by their keys")

    def bind_staging(self, window: StagingWindow) -> None:
        """Take the window, and make one for headers. Raises what the store's ``bind_staging`` raises."""
        headers = RingWindow(self._header_bytes, window.num_slots, 0)
        self._store.bind_staging(window, headers)
        self._headers = headers

    def write_segments(self, batch: SegmentBatch) -> SharedWrite:
        """Start to write whole objects.

        Status 0 means that the store has taken the object, and as durable as the store keeps its objects.
        Raises ValueError for a batch that is no whole objects or comes without checksums.
        """
        objects, wanted = self._cut(batch)
        if len(batch) and not batch.checksums:
            raise ValueError("objects are written with their checksums, this batch has none")
        sums, width = array("Q", batch.checksums), objects.segments
        for number, (slot, header) in enumerate(zip(objects.first_slots, wanted, strict=True)):
            whole = ObjectHeader(
                header.namespace,
                header.rank,
                header.group,
                header.key,
                header.segment_bytes,
                sums[number * width : (number + 1) * width],
            )
            self._header(slot)[:] = encode_header(whole).ljust(self._header_bytes, b"\0")
        return SharedWrite(self._store.write_objects(objects), width)

    def read_segments(self, batch: SegmentBatch) -> SharedRead:
        """Start to read whole objects; raises as ``write_segments`` does."""
        objects, wanted = self._cut(batch)
        headers = [self._header(slot) for slot in objects.first_slots]
        for header in headers:
            # What an earlier object left here must not pass for this one's.
            header[:8] = bytes(8)
        return SharedRead(self._store.read_objects(objects), objects.segments, headers, wanted)

    def wait_idle(self, deadline: float) -> bool:
        """Wait until nothing is in flight."""
        return self._store.wait_idle(deadline)

    def shutdown(self) -> None:
        """Let the store go."""
        self._store.shutdown()

    def _header(self, slot: int) -> memoryview:
        if self._headers is None:
            raise RuntimeError("no staging window is bound; call bind_staging first")
        return self._headers.slot(slot)

    def _cut(self, batch: SegmentBatch) -> tuple[ObjectBatch, list[ObjectHeader]]:
        """Return a batch as objects, and each one's header without checksums."""
        if not len(batch):
            return ObjectBatch((), (), 1), []
        group = self._group_of.get(batch.layers[0])
        layers = self._layers[group] if group is not None else array("q")
        width = len(layers) or 1
        count = len(batch) // width
        if group is None or array("q", batch.layers) != layers * count:
            raise ValueError(
                "a shared object is all layers of one group in order; load and store whole chunks"
            )
        keys, first = batch.chunk_ids[::width], batch.slots[::width]
        runs = array("q", (slot + place for slot in first for place in range(width)))
        if array("q", batch.slots) != runs or list(batch.chunk_ids) != [k for k in keys for _ in layers]:
            raise ValueError("a shared object lies in neighbouring slots, its segments one after another")
        none = array("Q")
        wanted = []
        for key in keys:
            if not isinstance(key, bytes):
                raise ValueError(f"a shared chunk goes by its key, not by {key!r}")
            wanted.append(
                ObjectHeader(self._names.namespace, self._rank, group, key, self._segment_bytes, none)
            )
        names = [self._names.name(self._rank, group, each.key) for each in wanted]
        return ObjectBatch(names, list(first), width), wanted
