# SPDX-License-Identifier: Apache-2.0
"""The mover for torch tensors, on ``tutti-kv-kernels`` (extra ``kernels``)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch

import tutti_kv_kernels as kernels
from tutti_engine.backend import StagingWindow
from tutti_engine.block_rows import BlockRows

__all__ = ["KernelMover"]

_MASK = (1 << 64) - 1


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
        blocks = _matrix(block_ids)
        places = _column(slots).view(len(layers), len(block_ids))
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
        blocks, expected = _matrix(block_ids), _column(checksums)
        places = _column(slots).view(len(layers), len(block_ids))
        status = self._cache.scatter(
            self._window, places, self._slot_bytes, blocks, expected, layers=tuple(layers)
        )
        return [found == kernels.ScatterStatus.OK for found in status.view(-1).tolist()]


def _column(values: Sequence[int]) -> torch.Tensor:
    """Return 64-bit numbers, signed or not, as int64: an ``array`` without a copy, anything else with one."""
    if not isinstance(values, array):
        values = array("q", (value - (1 << 64) if value >> 63 == 1 else value for value in values))
    return torch.frombuffer(values, dtype=torch.int64)


def _matrix(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return equally long rows as int64 ``[rows, length]``. Raises ValueError for others."""
    if isinstance(rows, BlockRows) and len(rows.filled) == len(rows):
        return torch.frombuffer(rows.flat, dtype=torch.int64).view(len(rows), -1)
    if len({len(row) for row in rows}) != 1:
        raise ValueError("the chunks of one call must have equally many blocks")
    flat = array("q")
    for row in rows:
        flat.extend(row)
    return torch.frombuffer(flat, dtype=torch.int64).view(len(rows), -1)
