# SPDX-License-Identifier: Apache-2.0
"""Sizes of a chunk, computed once from what the inference server says about its KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tutti_engine.cache_group import CacheGroup
from tutti_engine.errors import GeometryError

__all__ = [
    "CHUNK_ALIGNMENT",
    "MAX_AUTO_CHUNK_TOKENS",
    "MIN_AUTO_SEGMENT_BYTES",
    "SEGMENT_ALIGNMENT",
    "CacheGroup",
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
        num_layers: segments of a chunk: layers of the rank that holds most of them. On a rank with fewer the
            last segments stay empty.
        block_tokens: tokens of one block of the server's paged cache, with several groups of a multiple of
            all their blocks.
        blocks_per_chunk: blocks of one chunk.
        page_bytes: bytes of one (layer, block) page, K and V together; with several groups what a block of
            ``block_tokens`` takes at most in one layer.
        groups: this rank's layers by block table; one group of all layers where none is given.
    """

    num_layers: int
    block_tokens: int
    blocks_per_chunk: int
    page_bytes: int
    groups: tuple[CacheGroup, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_tokens", "blocks_per_chunk", "page_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GeometryError(f"{name} must be a positive whole number, not {value!r}")
        if not self.groups:
            whole = CacheGroup(tuple(range(self.num_layers)), self.block_tokens, self.page_bytes)
            object.__setattr__(self, "groups", (whole,))
        self._check_groups()

    def _check_groups(self) -> None:
        layers = sorted(layer for group in self.groups for layer in group.layers)
        if layers != list(range(len(layers))) or len(layers) > self.num_layers:
            raise GeometryError(
                f"the groups' layers must be 0 to {self.num_layers - 1} or fewer, each once, not {layers}"
            )
        for number, group in enumerate(self.groups):
            if self.chunk_tokens % group.block_tokens:
                raise GeometryError(
                    f"a chunk of {self.chunk_tokens} tokens is no whole number of the {group.block_tokens}"
                    f" tokens of a block of group {number}"
                )
            if self.blocks_of(number) * group.page_bytes > self.segment_data_bytes:
                raise GeometryError(
                    f"a chunk's {self.blocks_of(number)} pages of {group.page_bytes} bytes of group {number}"
                    f" do not fit {self.segment_data_bytes} bytes"
                )

    @classmethod
    def of_groups(
        cls, groups: Sequence[CacheGroup], *, blocks_per_chunk: int, num_layers: int | None = None
    ) -> Geometry:
        """Return the geometry of several groups.

        Args:
            groups: this rank's groups.
            blocks_per_chunk: blocks of one chunk, counted in the least common multiple of the groups' blocks;
                0 chooses as ``choose_blocks_per_chunk`` does.
            num_layers: layers of the rank that holds most of them; by default this rank's.

        Raises GeometryError for groups that do not fit together.
        """
        if not groups:
            raise GeometryError("a rank needs at least one group of layers")
        tokens = math.lcm(*(group.block_tokens for group in groups))
        page_bytes = max(tokens // group.block_tokens * group.page_bytes for group in groups)
        return cls(
            num_layers=sum(len(group.layers) for group in groups) if num_layers is None else num_layers,
            block_tokens=tokens,
            blocks_per_chunk=blocks_per_chunk or choose_blocks_per_chunk(page_bytes, tokens),
            page_bytes=page_bytes,
            groups=tuple(groups),
        )

    @property
    def held_layers(self) -> tuple[int, ...]:
        """The layers that this rank has."""
        return tuple(range(sum(len(group.layers) for group in self.groups)))

    @property
    def is_partial(self) -> bool:
        """Whether some group does not need all of a prefix."""
        return any(group.is_partial for group in self.groups)

    def blocks_of(self, group: int) -> int:
        """Return how many blocks of a group, given by its number, a chunk spans."""
        return self.chunk_tokens // self.groups[group].block_tokens

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one chunk."""
        return self.block_tokens * self.blocks_per_chunk

    @property
    def segment_data_bytes(self) -> int:
        """Bytes of one segment that carry data; the rest up to ``segment_bytes`` is zero."""
        return self.page_bytes * self.blocks_per_chunk

    @property
    def data_sizes(self) -> list[int]:
        """How many bytes of a segment carry data, in ascending order: one number for each kind of layer."""
        return sorted({self.blocks_of(n) * group.page_bytes for n, group in enumerate(self.groups)})

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
