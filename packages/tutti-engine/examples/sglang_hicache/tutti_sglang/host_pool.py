# SPDX-License-Identifier: Apache-2.0
"""Where HiCache's pages lie in host memory, and how Tutti's engine reaches them without a copy between."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tutti_kv_kernels as kernels
from tutti_engine import CacheGroup, Geometry, StagingWindow
from tutti_engine.movers.kernels import KernelMover

__all__ = ["PageParts", "PoolMover", "describe_pool", "geometry_of"]


@dataclass(frozen=True)
class PageParts:
    """The runs of bytes that make up one page, such as K and V, or K and V of each layer.

    Attributes:
        num_pages: pages of the pool.
        sizes: bytes of each part.
        addresses: where each part of page 0 begins.
        strides: bytes from a part of one page to that of the next page.
    """

    num_pages: int
    sizes: tuple[int, ...]
    addresses: tuple[int, ...]
    strides: tuple[int, ...]

    def cache(self) -> kernels.PagedCache:
        """Return the parts as the kernels take them: one layer a part, over the pool's own memory."""
        first = min(self.addresses)
        ends = [
            at + (self.num_pages - 1) * stride + size
            for at, stride, size in zip(self.addresses, self.strides, self.sizes)
        ]
        memory = (ctypes.c_uint8 * (max(ends) - first)).from_address(first)
        storage = torch.frombuffer(memory, dtype=torch.uint8)
        planes = [
            [kernels.Plane(0, at - first, stride, self.num_pages, size)]
            for at, stride, size in zip(self.addresses, self.strides, self.sizes)
        ]
        return kernels.PagedCache([storage], planes)


def describe_pool(pool: Any) -> PageParts:
    """Work out the parts from what the pool itself says about its pages.

    Raises ValueError for a pool whose pages are not evenly spaced.
    """
    page, count = int(pool.page_size), int(pool.size) // int(pool.page_size)

    def parts(number: int) -> tuple[list[int], list[int]]:
        addresses, sizes = pool.get_page_buffer_meta(torch.arange(number * page, (number + 1) * page))
        return [int(address) for address in addresses], [int(size) for size in sizes]

    addresses, sizes = parts(0)
    second = parts(min(1, count - 1))[0]
    strides = [there - here or size for here, there, size in zip(addresses, second, sizes)]
    last = [at + (count - 1) * stride for at, stride in zip(addresses, strides)]
    if parts(count - 1) != (last, sizes) or any(stride < size for stride, size in zip(strides, sizes)):
        raise ValueError(
            f"the pages of layout {getattr(pool, 'layout', '?')!r} are not evenly spaced in host memory;"
            " use page_first, page_first_direct or layer_first"
        )
    return PageParts(count, tuple(sizes), tuple(addresses), tuple(strides))


class PoolMover:
    """A mover for the pool's pages and, behind them, for a few pages of its own (for values in tensors).

    Args:
        parts: of a page.
        num_scratch: pages of its own; they have the numbers from ``parts.num_pages`` on.
        with_pool: False where only its own pages are used.
    """

    checksum_name = kernels.CHECKSUM_NAME

    def __init__(self, parts: PageParts, num_scratch: int, *, with_pool: bool) -> None:
        self.first_scratch = parts.num_pages
        self.scratch = torch.zeros(num_scratch, sum(parts.sizes), dtype=torch.uint8)
        whole, at, planes = self.scratch.shape[1], 0, []
        for size in parts.sizes:
            planes.append([kernels.Plane(0, at, whole, num_scratch, size)])
            at += size
        self._scratch = KernelMover(kernels.PagedCache([self.scratch.view(-1)], planes))
        self._pool = KernelMover(parts.cache()) if with_pool else self._scratch

    def bind(self, window: StagingWindow) -> None:
        """Take the staging window."""
        self._pool.bind(window)
        self._scratch.bind(window)

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """Copy pages to slots; see ``tutti_engine.Mover``."""
        sums = array("Q", bytes(8 * len(slots)))
        for mover, rows, places in self._shares(layers, block_ids):
            found = mover.gather(layers, rows, [slots[place] for place in places])
            for place, value in zip(places, found):
                sums[place] = value
        return sums

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Verify slots and copy them to pages; see ``tutti_engine.Mover``."""
        if checksums is None:
            raise ValueError("pages are always verified")
        matched = [False] * len(slots)
        for mover, rows, places in self._shares(layers, block_ids):
            found = mover.scatter(
                layers, [slots[place] for place in places], rows, [checksums[place] for place in places]
            )
            for place, value in zip(places, found):
                matched[place] = value
        return matched

    def _shares(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]]
    ) -> list[tuple[KernelMover, list[list[int]], list[int]]]:
        """Return for each mover its rows of blocks and where their slots stand, layer by layer."""
        shares = []
        for mover, first, is_own in (
            (self._pool, 0, [row[0] < self.first_scratch for row in block_ids]),
            (self._scratch, self.first_scratch, [row[0] >= self.first_scratch for row in block_ids]),
        ):
            own = [number for number, mine in enumerate(is_own) if mine]
            if own:
                rows = [[block - first for block in block_ids[number]] for number in own]
                places = [layer * len(block_ids) + number for layer in range(len(layers)) for number in own]
                shares.append((mover, rows, places))
        return shares


def geometry_of(parts: PageParts, page_tokens: int) -> Geometry:
    """Return a chunk of one page; parts of other sizes are groups of their own."""
    groups = [
        CacheGroup(
            tuple(number for number, each in enumerate(parts.sizes) if each == size), page_tokens, size
        )
        for size in dict.fromkeys(parts.sizes)
    ]
    return Geometry.of_groups(groups, blocks_per_chunk=1)
