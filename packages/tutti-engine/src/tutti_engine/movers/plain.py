# SPDX-License-Identifier: Apache-2.0
"""A mover in pure Python, for servers without torch and as the reference in tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tutti_engine.backend import StagingWindow
from tutti_engine.geometry import Geometry
from tutti_engine.plan import SKIP_BLOCK

__all__ = ["PlainMover"]


class PlainMover:
    """Pages are consecutive runs in one writable buffer a layer: block ``b`` starts at ``b * page_bytes``."""

    checksum_name = "blake2b-64"

    def __init__(self, geometry: Geometry, layers: Sequence[memoryview]) -> None:
        """Take one buffer a layer, each a whole number of pages long."""
        self._page_bytes = geometry.page_bytes
        self._layers = layers

    def bind(self, window: StagingWindow) -> None:
        """Take the staging window."""
        self._window = window

    def gather(self, layer: int, block_ids: Sequence[Sequence[int]], slots: Sequence[int]) -> list[int]:
        """Copy pages to slots; see ``Mover``."""
        pages = self._layers[layer]
        for blocks in block_ids:
            self._check(pages, blocks)
        sums = []
        for blocks, slot in zip(block_ids, slots, strict=True):
            target = self._slot(slot)
            data = b"".join(pages[b * self._page_bytes : (b + 1) * self._page_bytes] for b in blocks)
            target[: len(data)] = data
            target[len(data) :] = bytes(len(target) - len(data))
            sums.append(self._checksum(data))
        return sums

    def scatter(
        self, layer: int, slots: Sequence[int], block_ids: Sequence[Sequence[int]], checksums: Sequence[int]
    ) -> list[bool]:
        """Verify slots and copy them to pages; see ``Mover``."""
        pages = self._layers[layer]
        size = self._page_bytes
        for blocks in block_ids:
            self._check(pages, [b for b in blocks if b != SKIP_BLOCK])
        matched = []
        for slot, blocks, expected in zip(slots, block_ids, checksums, strict=True):
            source = self._slot(slot)
            ok = self._checksum(source[: len(blocks) * size]) == expected
            matched.append(ok)
            if not ok:
                continue
            for index, block in enumerate(blocks):
                if block != SKIP_BLOCK:
                    pages[block * size : (block + 1) * size] = source[index * size : (index + 1) * size]
        return matched

    def _slot(self, slot: int) -> memoryview:
        size = self._window.slot_bytes
        return self._window.memory[slot * size : (slot + 1) * size]

    def _check(self, pages: memoryview, blocks: Sequence[int]) -> None:
        count = len(pages) // self._page_bytes
        for block in blocks:
            if not 0 <= block < count:
                raise ValueError(f"block {block} is outside of 0..{count - 1}")

    @staticmethod
    def _checksum(data: bytes | memoryview) -> int:
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
