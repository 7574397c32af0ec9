# SPDX-License-Identifier: Apache-2.0
"""The storage SPI: what a place for chunks has to offer.

Above this line nobody says file, disk, descriptor or DMA. ``tutti_engine.testing.conformance`` holds the
suite that every implementation has to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tutti_engine.errors import BackendError
from tutti_engine.plan import ChunkId

__all__ = [
    "SPI_VERSION",
    "SUPPORTED_SPI_VERSIONS",
    "SegmentBatch",
    "SegmentHandle",
    "StagingWindow",
    "StorageBackend",
    "check_spi_version",
]

SPI_VERSION = 2
"""Raised with every change that an existing backend would notice.

Version 2: the columns of a batch may be ``array.array`` objects instead of lists, statuses may be one as
well, and a backend may offer ``wait_for_room``.
"""

SUPPORTED_SPI_VERSIONS = frozenset({1, 2})
"""Versions whose backends work with this engine."""


@runtime_checkable
class StagingWindow(Protocol):
    """The memory that segments pass through. It is bound once and outlives the backend's use of it."""

    @property
    def address(self) -> int:
        """Address of the first byte, a multiple of 64 KiB."""

    @property
    def nbytes(self) -> int:
        """Size in bytes, at least ``num_slots * slot_bytes`` and a multiple of 64 KiB."""

    @property
    def num_slots(self) -> int:
        """Number of slots. Slot ``i`` starts at byte ``i * slot_bytes``."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot; equals the geometry's ``segment_bytes``, a multiple of 4 KiB."""

    @property
    def memory(self) -> memoryview:
        """The window as writable bytes."""


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Segments to move, in equally long columns: segment ``i`` is ``(chunk_ids[i], layers[i], slots[i])``.

    The engine hands over ``array.array("q")`` columns, ``chunk_ids`` only where all ids are whole numbers.
    They iterate as lists do, and NumPy reads them without a copy: ``numpy.asarray(batch.slots)``.

    ``checksums`` come with writes to a backend whose ``wants_checksums`` is true, one a segment as the mover
    made it; else it is empty.
    """

    chunk_ids: Sequence[ChunkId]
    layers: Sequence[int]
    slots: Sequence[int]
    checksums: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not len(self.chunk_ids) == len(self.layers) == len(self.slots):
            raise ValueError(
                "the columns of a segment batch differ in length: "
                f"{len(self.chunk_ids)} chunk ids, {len(self.layers)} layers, {len(self.slots)} slots"
            )
        if len(self.checksums) not in (0, len(self.slots)):
            raise ValueError(f"a segment batch of {len(self.slots)} has {len(self.checksums)} checksums")

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, chosen: Sequence[int]) -> SegmentBatch:
        """Return some of the segments, by their numbers."""
        return SegmentBatch(
            [self.chunk_ids[number] for number in chosen],
            [self.layers[number] for number in chosen],
            [self.slots[number] for number in chosen],
            [self.checksums[number] for number in chosen] if self.checksums else (),
        )


@runtime_checkable
class SegmentHandle(Protocol):
    """A batch in flight. Until it is finished its slots belong to the backend."""

    def poll(self) -> bool:
        """Return whether the batch is finished, making progress where the backend needs the caller for it."""

    def wait(self, deadline: float) -> bool:
        """Wait until the batch is finished or ``time.monotonic()`` reaches ``deadline``; return ``poll()``.

        A batch whose deadline passed is still in flight: its slots stay taken until ``poll`` says True.
        """

    def status(self) -> Sequence[int]:
        """Return one number a segment: 0, or the ``errno`` of its failure.

        Raises RuntimeError before the batch is finished.

        ``EAGAIN`` means refused for lack of room, nothing was done, try again: after ``wait_for_room`` where
        the backend has that, else after a pause. A short transfer is ``EIO``.
        """


@runtime_checkable
class StorageBackend(Protocol):
    """A place for chunks. All calls may come from several threads.

    Optional, found by their names: ``spi_version: int``, the version that the backend was written for
    (required of backends that are found by entry point, see ``tutti_engine.registry``),
    ``wait_for_room(deadline)``, which returns when segments that were refused with ``EAGAIN`` may find room,
    or at ``time.monotonic() == deadline``, and ``wants_checksums: bool``, for a backend that keeps checksums
    beside the bytes: handles of its reads then have ``checksums()``, which returns them after ``status()``,
    one a segment, and loads go by them instead of by the plan's. ``load_waves: int``, at least 2: how many
    batches of reads share the staging memory, for one that prefers fewer and larger ones, or the contrary.
    """

    def chunk_ids(self, count: int) -> Sequence[ChunkId]:
        """Return ``count`` distinct chunk ids.

        Raises ValueError if that is below one or more than there is room for.
        """

    def bind_staging(self, window: StagingWindow) -> None:
        """Take the window that later slot numbers refer to. Raises RuntimeError when called a second time."""

    def write_segments(self, batch: SegmentBatch) -> SegmentHandle:
        """Start to copy slots to storage. Status 0 means durable: the bytes survive a crash of the machine.

        Raises RuntimeError before ``bind_staging``, ValueError for a foreign chunk id, layer or slot; then
        nothing of the batch was started.
        """

    def read_segments(self, batch: SegmentBatch) -> SegmentHandle:
        """Start to copy storage to slots. Raises as ``write_segments`` does."""

    def wait_idle(self, deadline: float) -> bool:
        """Wait until nothing is in flight; return False if the deadline passed first."""

    def shutdown(self) -> None:
        """Finish or abandon what is in flight within a bounded time. Later calls do nothing."""


def check_spi_version(name: str, version: object) -> None:
    """Raise BackendError unless the engine speaks the version of the SPI that a backend was written for."""
    if isinstance(version, bool) or version not in SUPPORTED_SPI_VERSIONS:
        spoken = ", ".join(map(str, sorted(SUPPORTED_SPI_VERSIONS)))
        raise BackendError(
            f"backend {name!r} was written for version {version!r} of the storage SPI, this engine speaks "
            f"{spoken}; install versions of both that fit"
        )
