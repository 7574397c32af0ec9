# SPDX-License-Identifier: Apache-2.0
"""Where each segment of a store lies: arithmetic only, no file is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tutti_engine.errors import GeometryError
from tutti_engine.geometry import CHUNK_ALIGNMENT, SEGMENT_ALIGNMENT, Geometry

__all__ = ["MAX_FILES_PER_ROOT", "MIN_FILE_BYTES", "StoreLayout", "choose_chunks_per_file"]

MAX_FILES_PER_ROOT = 32
"""Files of one rank in one root: few enough to keep all of them open."""

MIN_FILE_BYTES = 1 << 30
"""Files grow to this size before there is a second one."""


def chunks_in_root(num_chunks: int, num_roots: int, root: int) -> int:
    """Return how many of ``num_chunks`` slots fall to one root."""
    return (num_chunks - root + num_roots - 1) // num_roots


def choose_chunks_per_file(*, chunk_bytes: int, num_chunks: int, num_roots: int) -> int:
    """Return the smallest count that keeps ``MIN_FILE_BYTES`` and ``MAX_FILES_PER_ROOT``."""
    for_size = -(-MIN_FILE_BYTES // chunk_bytes)
    for_count = -(-chunks_in_root(num_chunks, num_roots, 0) // MAX_FILES_PER_ROOT)
    return max(for_size, for_count)


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Shape of a store, the same for every rank. Can be pickled and sent to workers.

    Chunk slot ``s`` lies in root ``s % len(directories)``: consecutive slots use all drives. File numbers are
    unique over all roots; file ``n`` lies in root ``n % len(directories)``.

    Attributes:
        directories: absolute namespace directories, one a root.
        num_layers: segments of one chunk.
        segment_bytes: bytes of one segment, a multiple of 4 KiB.
        chunk_bytes: bytes of one chunk slot on one rank, a multiple of 16 KiB.
        chunks_per_file: chunk slots of one file; a root's last file may hold fewer.
        num_chunks: chunk slots of the store.
        store_id: random text made with the store. Execution sides refuse directories of another store; empty
            means that there is nothing to compare.
        read_only: whether execution sides may only read.
    """

    directories: tuple[str, ...]
    num_layers: int
    segment_bytes: int
    chunk_bytes: int
    chunks_per_file: int
    num_chunks: int
    store_id: str = ""
    read_only: bool = False

    def __post_init__(self) -> None:
        if not self.directories:
            raise GeometryError("a store needs at least one directory")
        for name in ("num_layers", "segment_bytes", "chunk_bytes", "chunks_per_file", "num_chunks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GeometryError(f"{name} must be a positive whole number, not {value!r}")
        for name, unit in (("segment_bytes", SEGMENT_ALIGNMENT), ("chunk_bytes", CHUNK_ALIGNMENT)):
            if getattr(self, name) % unit:
                raise GeometryError(f"{name} {getattr(self, name)} is not a multiple of {unit}")
        if self.chunk_bytes < self.num_layers * self.segment_bytes:
            raise GeometryError(
                f"chunk_bytes {self.chunk_bytes} does not hold "
                f"{self.num_layers} layers of {self.segment_bytes} bytes"
            )

    @classmethod
    def of(
        cls,
        directories: Sequence[PurePath],
        geometry: Geometry,
        *,
        chunks_per_file: int,
        num_chunks: int,
        store_id: str,
        read_only: bool = False,
    ) -> StoreLayout:
        """Return the layout for chunks of a geometry; arguments are the attributes."""
        return cls(
            directories=tuple(map(str, directories)),
            num_layers=geometry.num_layers,
            segment_bytes=geometry.segment_bytes,
            chunk_bytes=geometry.chunk_bytes,
            chunks_per_file=chunks_per_file,
            num_chunks=num_chunks,
            store_id=store_id,
            read_only=read_only,
        )

    def locate(self, slot: int, layer: int) -> tuple[int, int]:
        """Return (file number, byte offset) of one segment.

        Raises ValueError for a slot or layer out of range.
        """
        if not 0 <= slot < self.num_chunks:
            raise ValueError(f"chunk slot {slot} is outside 0..{self.num_chunks - 1}")
        if not 0 <= layer < self.num_layers:
            raise ValueError(f"layer {layer} is outside 0..{self.num_layers - 1}")
        row, root = divmod(slot, len(self.directories))
        file_row, place = divmod(row, self.chunks_per_file)
        return (
            file_row * len(self.directories) + root,
            place * self.chunk_bytes + layer * self.segment_bytes,
        )

    def files(self) -> list[int]:
        """Return the numbers of all files that one rank has, in ascending order."""
        roots = len(self.directories)
        return sorted(
            row * roots + root
            for root in range(roots)
            for row in range(-(-chunks_in_root(self.num_chunks, roots, root) // self.chunks_per_file))
        )

    def file_bytes(self, file_number: int) -> int:
        """Return the size of one file. Raises ValueError for a file that the store does not have."""
        roots = len(self.directories)
        row, root = divmod(file_number, roots)
        chunks = chunks_in_root(self.num_chunks, roots, root) - row * self.chunks_per_file
        if file_number < 0 or chunks < 1:
            raise ValueError(f"the store has no file {file_number}")
        return min(chunks, self.chunks_per_file) * self.chunk_bytes

    def rank_directory(self, rank: int, root: int) -> str:
        """Return the directory of one rank's files in one root."""
        if rank < 0:
            raise ValueError(f"rank {rank} is negative")
        return str(PurePath(self.directories[root]) / f"rank-{rank}")

    def file_path(self, rank: int, file_number: int) -> str:
        """Return the path of one rank's file."""
        root = file_number % len(self.directories)
        return str(PurePath(self.rank_directory(rank, root)) / f"{file_number}.seg")
