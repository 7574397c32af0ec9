# SPDX-License-Identifier: Apache-2.0
"""The mover for torch tensors, on ``tutti-kv-kernels`` (extra ``kernels``)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch

import tutti_kv_kernels as kernels
from tutti_engine.backend import StagingWindow
from tutti_engine.movers.columns import column, matrix

__all__ = ["KernelMover", "checksum"]


def checksum(data: memoryview) -> int:
    """Return the kernels' checksum of some writable bytes."""
    return kernels.checksum(torch.frombuffer(data, dtype=torch.uint8))


class KernelMover:
    """Moves pages of the layers of a ``PagedCache``, any number of them in one call."""

    checksum_name = kernels.CHECKSUM_NAME

    def __init__(self, cache: kernels.PagedCache) -> None:
        """Take the pages: layer ``i`` of the engine is layer ``i`` of ``cache``."""
        self._cache = cache

    def bind(self, window: StagingWindow) -> None:
        """Take the staging window."""
        self._window = torch.frombuffer(window.memory, dtype=torch.uint8)
        self._slot_bytes = window.slot_bytes

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """Copy pages to slots; see ``Mover``."""
        blocks = matrix(block_ids)
        places = column(slots).view(len(layers), len(block_ids))
        sums = self._cache.gather(blocks, self._window, places, self._slot_bytes, layers=tuple(layers))
        return array("Q", ctypes.string_at(sums.data_ptr(), 8 * len(slots)))

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Verify slots and copy them to pages; see ``Mover``.

        Always verifies: the checksum runs at about twice the speed of a copy, over bytes that the copy then
        finds in the CPU's caches.
        """
        if checksums is None:
            raise ValueError("KernelMover does not copy without checksums")
        blocks, expected = matrix(block_ids), column(checksums)
        places = column(slots).view(len(layers), len(block_ids))
        status = self._cache.scatter(
            self._window, places, self._slot_bytes, blocks, expected, layers=tuple(layers)
        )
        return [found == kernels.ScatterStatus.OK for found in status.view(-1).tolist()]
