# SPDX-License-Identifier: Apache-2.0
"""A mover in pure Python, for servers without torch and as the reference in tests."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Sequence

from tutti_engine.backend import StagingWindow
from tutti_engine.geometry import Geometry
from tutti_engine.plan import SKIP_BLOCK

__all__ = ["PlainMover", "checksum"]


def checksum(data: bytes | memoryview) -> int:
    """Return the first 64 bits of BLAKE2b, little-endian."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class PlainMover:
    """Pages are consecutive runs in one writable buffer a layer: block ``b`` starts at ``b * page_bytes``."""

    checksum_name = "blake2b-64"
    can_skip_verification = True

    def __init__(self, geometry: Geometry, layers: Sequence[memoryview]) -> None:
        """Take one buffer a layer, each a whole number of pages long."""
        self._page_bytes = {layer: group.page_bytes for group in geometry.groups for layer in group.layers}
        self._layers = layers

    def bind(self, window: StagingWindow) -> None:
        """Take the staging window."""
        self._window = window

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """Copy pages to slots; see ``Mover``."""
        for layer in layers:
            for blocks in block_ids:
                self._check(layer, blocks)
        segments = itertools.product(layers, block_ids)
        return array("Q", (self._pack(layer, blocks, slot) for (layer, blocks), slot in zip(segments, slots)))

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Verify slots and copy them to pages; see ``Mover``."""
        for layer in layers:
            for blocks in block_ids:
                self._check(layer, [b for b in blocks if b != SKIP_BLOCK])
        segments = itertools.product(layers, block_ids)
        sums = itertools.repeat(None) if checksums is None else checksums
        return [
            self._unpack(layer, blocks, slot, expected)
            for (layer, blocks), slot, expected in zip(segments, slots, sums)
        ]

    def _pack(self, layer: int, blocks: Sequence[int], slot: int) -> int:
        pages, size = self._layers[layer], self._page_bytes[layer]
        target = self._slot(slot)
        data = b"".join(pages[b * size : (b + 1) * size] for b in blocks)
        target[: len(data)] = data
        target[len(data) :] = bytes(len(target) - len(data))
        return checksum(data)

    def _unpack(self, layer: int, blocks: Sequence[int], slot: int, expected: int | None) -> bool:
        pages, size = self._layers[layer], self._page_bytes[layer]
        source = self._slot(slot)
        if expected is not None and checksum(source[: len(blocks) * size]) != expected:
            return False
        for index, block in enumerate(blocks):
            if block != SKIP_BLOCK:
                pages[block * size : (block + 1) * size] = source[index * size : (index + 1) * size]
        return True

    def _slot(self, slot: int) -> memoryview:
        size = self._window.slot_bytes
        return self._window.memory[slot * size : (slot + 1) * size]

    def _check(self, layer: int, blocks: Sequence[int]) -> None:
        count = len(self._layers[layer]) // self._page_bytes[layer]
        for block in blocks:
            if not 0 <= block < count:
                raise ValueError(f"block {block} is outside of 0..{count - 1}")
