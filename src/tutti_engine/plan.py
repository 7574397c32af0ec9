# SPDX-License-Identifier: Apache-2.0
"""What crosses from the planning side to the execution side and back.

A plan names every chunk with its own key, place and blocks. Nothing in it relies on chunks or blocks being
consecutive, so a plan with holes, duplicates or shared blocks means exactly what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutti_engine.chunk_transfer import SKIP_BLOCK, ChunkId, ChunkKey, ChunkTransfer
from tutti_engine.transfers import Transfers

__all__ = [
    "SKIP_BLOCK",
    "ChunkId",
    "ChunkKey",
    "ChunkTransfer",
    "LoadPlan",
    "LoadResult",
    "StorePlan",
    "StoreResult",
    "StoreSettled",
]


@dataclass(frozen=True, slots=True)
class _Plan:
    plan_id: int
    transfers: Sequence[ChunkTransfer]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transfers", Transfers.of(self.transfers))

    @property
    def columns(self) -> Transfers:
        """``transfers`` as the columns that they are kept in, whatever they were given as."""
        assert isinstance(self.transfers, Transfers)
        return self.transfers


@dataclass(frozen=True, slots=True)
class LoadPlan(_Plan):
    """Chunks to bring from storage into the paged cache."""


@dataclass(frozen=True, slots=True)
class StorePlan(_Plan):
    """Chunks to bring from the paged cache to storage."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """How one rank's part of a load plan ended.

    Attributes:
        plan_id: the plan.
        failed: positions in the plan whose pages do not hold the chunk; all others were read and verified.
        errno: the gravest reason of a failure, 0 if there was none; ``EBADMSG`` stands for a checksum that
            differs.
        bytes_read: bytes taken from storage, padding included.
        seconds: time from the first read to the last copy, without pauses between layers.
        untried: those of ``failed`` that were not read to their end, for lack of room or because another read
            hung before them; nothing is known against them.
        corrupt: those of ``failed`` that were read and are not what was stored.
    """

    plan_id: int
    failed: tuple[int, ...] = ()
    errno: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    untried: tuple[int, ...] = ()
    corrupt: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreResult:
    """How one rank's part of a store plan ended.

    Attributes:
        plan_id: the plan.
        checksums: for each position one 64-bit little-endian word a layer, or None if the chunk is not
            durable.
        unsettled: positions whose place may still be written to later; it must not be used again before a
            ``StoreSettled`` names it.
        errno: the gravest reason of a failure, 0 if there was none.
        bytes_written: bytes made durable, padding included.
    """

    plan_id: int
    checksums: tuple[bytes | None, ...] = ()
    unsettled: tuple[int, ...] = ()
    errno: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class StoreSettled:
    """Writes that ended after their plan's result: nothing writes to these positions' places any more."""

    plan_id: int
    positions: tuple[int, ...]
