# SPDX-License-Identifier: Apache-2.0
"""Sizes of a chunk, computed once from what the inference server says about its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from tutti_engine.errors import GeometryError

__all__ = [
    "CHUNK_ALIGNMENT",
    "MAX_AUTO_CHUNK_TOKENS",
    "MIN_AUTO_SEGMENT_BYTES",
    "SEGMENT_ALIGNMENT",
    "Geometry",
    "choose_blocks_per_chunk",
]

SEGMENT_ALIGNMENT = 4096
"""Direct I/O works in units of the drive's logical block, 4 KiB on every current drive."""

CHUNK_ALIGNMENT = 16 * 1024
"""Reads that start at 16 KiB borders keep a drive's full bandwidth (DESIGN section 6)."""

MIN_AUTO_SEGMENT_BYTES = 256 * 1024
"""Smallest segment that the automatic choice aims for: an NVMe drive is near its best from here."""

MAX_AUTO_CHUNK_TOKENS = 512
"""A prefix hit ends at a chunk's border: longer chunks would waste more than larger I/O wins."""


def align_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment


def choose_blocks_per_chunk(page_bytes: int, block_tokens: int) -> int:
    """Return the smallest power of two whose segment reaches ``MIN_AUTO_SEGMENT_BYTES``.

    It stops early at ``MAX_AUTO_CHUNK_TOKENS``.

    Args:
        page_bytes: bytes of one block in one layer on this rank.
        block_tokens: tokens of one block.
    """
    blocks = 1
    while blocks * page_bytes < MIN_AUTO_SEGMENT_BYTES and 2 * blocks * block_tokens <= MAX_AUTO_CHUNK_TOKENS:
        blocks *= 2
    return blocks


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of one chunk on one rank.

    Attributes:
        num_layers: layers whose KV cache this rank holds.
        block_tokens: tokens of one block of the server's paged cache.
        blocks_per_chunk: blocks of one chunk.
        page_bytes: bytes of one (layer, block) page, K and V together.
    """

    num_layers: int
    block_tokens: int
    blocks_per_chunk: int
    page_bytes: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_tokens", "blocks_per_chunk", "page_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GeometryError(f"{name} must be a positive whole number, not {value!r}")

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one chunk."""
        return self.block_tokens * self.blocks_per_chunk

    @property
    def segment_data_bytes(self) -> int:
        """Bytes of one segment that carry data; the rest up to ``segment_bytes`` is zero."""
        return self.page_bytes * self.blocks_per_chunk

    @property
    def segment_bytes(self) -> int:
        """Bytes of one segment as it is staged and stored, a multiple of 4 KiB."""
        return align_up(self.segment_data_bytes, SEGMENT_ALIGNMENT)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk in storage, a multiple of 16 KiB.

        Layer ``l`` starts at ``l * segment_bytes``.
        """
        return align_up(self.num_layers * self.segment_bytes, CHUNK_ALIGNMENT)
