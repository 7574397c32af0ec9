# SPDX-License-Identifier: Apache-2.0
"""The geometry that the operators take: planes, and the table that hands them over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

__all__ = ["BLOCK_IS_TOKEN", "OPAQUE", "PLANE_COLUMNS", "Plane", "planes_table"]

OPAQUE: Final = -1
"""``token_dim`` of a plane that tokens do not divide."""
BLOCK_IS_TOKEN: Final = 3
"""``token_dim`` of a plane in which a block is one token (slot mapping)."""
PLANE_COLUMNS: Final = 16


@dataclass(frozen=True)
class Plane:
    """One part of a layer's blocks: where it is in memory and in which order it is packed, in bytes.

    Block ``b`` is ``counts[0] * counts[1] * counts[2]`` runs of ``run_bytes``; run ``(i, j, k)`` starts at
    ``offset + b * block_stride + i * strides[0] + j * strides[1] + k * strides[2]`` of ``storage``, and the
    runs are packed in that order, the last index fastest. Where ids count tokens, id ``t`` starts at
    ``offset + t // tokens_per_block * block_stride + t % tokens_per_block * token_stride``.

    ``token_dim`` says which of the three dimensions counts tokens, so that a part of a block's tokens can be
    moved (`OPAQUE`: none, `BLOCK_IS_TOKEN`: each block is one token); its index 0 is the block's token
    ``first_token``. The operators check all of it against the storages at every call.
    """

    storage: int
    offset: int
    block_stride: int
    num_blocks: int
    run_bytes: int
    counts: tuple[int, int, int] = (1, 1, 1)
    strides: tuple[int, int, int] = (0, 0, 0)
    tokens_per_block: int = 1
    token_stride: int = 0
    token_dim: int = OPAQUE
    first_token: int = 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of one block's part when packed."""
        return self.counts[0] * self.counts[1] * self.counts[2] * self.run_bytes

    @property
    def num_ids(self) -> int:
        """How many ids there are: blocks, or tokens where ids count tokens."""
        return self.num_blocks * self.tokens_per_block

    def row(self, layer: int) -> tuple[int, ...]:
        """The numbers of the planes table, in the order of ``csrc/geometry.h``."""
        place = (layer, self.storage, self.offset, self.block_stride, self.num_blocks)
        tokens = (self.tokens_per_block, self.token_stride)
        inside = (*self.counts, *self.strides, self.run_bytes)
        return (*place, *tokens, *inside, self.token_dim, self.first_token)


def planes_table(layers: Iterable[Sequence[Plane]]) -> torch.Tensor:
    """The planes of all layers as the operators take them: int64 ``[planes, PLANE_COLUMNS]`` on the CPU."""
    rows = [plane.row(index) for index, planes in enumerate(layers) for plane in planes]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, PLANE_COLUMNS)
