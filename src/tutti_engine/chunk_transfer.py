# SPDX-License-Identifier: Apache-2.0
"""One chunk on its way, and the names that every plan is made of."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NewType, TypeAlias

__all__ = ["SKIP_BLOCK", "BlockIds", "ChunkId", "ChunkKey", "ChunkTransfer"]

ChunkKey = NewType("ChunkKey", bytes)
"""Digest of the whole prefix up to the chunk's end; unique inside one namespace."""

ChunkId: TypeAlias = Hashable
"""Opaque name of a place, made and read by the backend alone."""

BlockIds: TypeAlias = tuple[tuple[int, ...], ...]
"""For each KV cache group the block ids of one chunk, in token order; none for a group that moves nothing."""

SKIP_BLOCK = -1
"""Stands for a block that the server already owns: its page is verified with the segment, never written."""


@dataclass(frozen=True, slots=True)
class ChunkTransfer:
    """One chunk to move.

    Attributes:
        key: the chunk's identity.
        chunk_id: its place, or None when the chunk was lost after it had been promised; loading it fails.
        block_ids: for each KV cache group the block ids of the chunk, in token order; none where nothing of
            this group moves. ``SKIP_BLOCK`` entries are allowed in loads only.
        checksums: loads only; for each rank one 64-bit little-endian word a layer, as ``gather`` made them;
            zero where nothing was stored.
    """

    key: ChunkKey
    chunk_id: ChunkId | None
    block_ids: BlockIds
    checksums: tuple[bytes, ...] = ()
