# SPDX-License-Identifier: Apache-2.0
"""The mover for torch tensors, on ``tutti-kv-kernels`` (extra ``kernels``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import tutti_kv_kernels as kernels
from tutti_engine.backend import StagingWindow

__all__ = ["KernelMover"]

_MASK = (1 << 64) - 1


class KernelMover:
    """Moves pages of paged tensors, one ``PagedLayout`` a layer."""

    checksum_name = kernels.CHECKSUM_NAME

    def __init__(self, pages: Sequence[torch.Tensor], layouts: Sequence[kernels.PagedLayout]) -> None:
        """Take, for each layer in order, the bytes of its allocation and where its pages lie in them."""
        self._pages = pages
        self._layouts = layouts

    def bind(self, window: StagingWindow) -> None:
        """Take the staging window."""
        self._window = torch.frombuffer(window.memory, dtype=torch.uint8)
        self._slot_bytes = window.slot_bytes

    def gather(self, layer: int, block_ids: Sequence[Sequence[int]], slots: Sequence[int]) -> list[int]:
        """Copy pages to slots; see ``Mover``."""
        sums = kernels.gather(
            self._pages[layer],
            self._layouts[layer],
            torch.tensor(block_ids, dtype=torch.int64),
            self._window,
            torch.tensor(slots, dtype=torch.int64),
            self._slot_bytes,
        )
        return [value & _MASK for value in sums.tolist()]

    def scatter(
        self, layer: int, slots: Sequence[int], block_ids: Sequence[Sequence[int]], checksums: Sequence[int]
    ) -> list[bool]:
        """Verify slots and copy them to pages; see ``Mover``."""
        signed = [value - (1 << 64) if value >> 63 else value for value in checksums]
        matched = kernels.scatter(
            self._window,
            torch.tensor(slots, dtype=torch.int64),
            self._slot_bytes,
            self._pages[layer],
            self._layouts[layer],
            torch.tensor(block_ids, dtype=torch.int64),
            torch.tensor(signed, dtype=torch.int64),
        )
        return [bool(value) for value in matched.tolist()]
