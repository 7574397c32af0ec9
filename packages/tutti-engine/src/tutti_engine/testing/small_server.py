# SPDX-License-Identifier: Apache-2.0
"""The smallest inference server: two pages a chunk, content that follows from the key, no model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from tutti_engine import Geometry, TuttiEngine
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.namespace import Namespace
from tutti_engine.plan import ChunkKey
from tutti_engine.store.local_store import LocalStore

__all__ = ["NAMESPACE", "SmallServer"]

NAMESPACE = Namespace({"model": "small server", "checksum": PlainMover.checksum_name})


class SmallServer:
    """A local store with its planner and one rank, in this process.

    Args:
        roots: where the store lies.
        capacity_bytes: of the store.
        geometry: of a chunk.
        batch: chunks that fit its pages at once.
        options: of ``LocalStore.open``.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        capacity_bytes: int,
        geometry: Geometry,
        batch: int = 8,
        **options: Any,
    ) -> None:
        self.geometry = geometry
        self.batch = batch
        self.store = LocalStore.open(
            roots, NAMESPACE, geometry, ranks=1, capacity_bytes=capacity_bytes, **options
        )
        self.backend = LocalStoreBackend(self.store.layout, 0)
        self.engine = TuttiEngine(
            geometry,
            chunk_ids=self.store.chunk_ids,
            records=self.store.records,
            journal=self.store.catalogue,
            places=self.store.places,
            backend=self.backend,
        )
        blocks = geometry.blocks_per_chunk * batch
        self.layers = [
            memoryview(bytearray(geometry.page_bytes * blocks)) for _ in range(geometry.num_layers)
        ]
        self.engine.bind(PlainMover(geometry, self.layers))

    def content(self, key: bytes, layer: int) -> bytes:
        """Return what a chunk of that key holds in one layer."""
        size = self.geometry.segment_data_bytes
        seed = hashlib.blake2b(key + layer.to_bytes(2, "little"), digest_size=32).digest()
        return (seed * (size // len(seed) + 1))[:size]

    def store_chunks(self, keys: Sequence[bytes], deadline: float = 60.0) -> int:
        """Compute and store up to ``batch`` chunks; return how many were planned."""
        for position, key in enumerate(keys):
            for layer, pages in enumerate(self.layers):
                pages[self._pages(position)] = self.content(key, layer)
        plan = self.engine.plan_store([(ChunkKey(key), (self._blocks(n),)) for n, key in enumerate(keys)])
        if plan is None:
            return 0
        self.engine.store(plan)
        self._finish(deadline)
        return len(plan.transfers)

    def load_chunk(self, key: bytes, deadline: float = 60.0) -> Literal["right", "miss", "wrong"]:
        """Load one chunk and compare it with what must come; a load that fails is a miss."""
        if not self.engine.lookup_prefix([ChunkKey(key)]):
            return "miss"
        for pages in self.layers:
            pages[self._pages(0)] = bytes(self.geometry.segment_data_bytes)
        plan = self.engine.plan_load([(ChunkKey(key), (self._blocks(0),))])
        self.engine.load(plan)
        failed = [position for result in self._finish(deadline) for position in getattr(result, "failed", ())]
        if failed:
            return "miss"
        right = all(
            pages[self._pages(0)] == self.content(key, layer) for layer, pages in enumerate(self.layers)
        )
        return "right" if right else "wrong"

    def close(self) -> None:
        """Stop everything."""
        self.engine.shutdown()
        self.store.close()

    def _finish(self, seconds: float) -> list[Any]:
        if not self.engine.wait_idle(time.monotonic() + seconds):
            raise TimeoutError(f"transfers did not end within {seconds} s")
        return self.engine.settle()

    def _blocks(self, position: int) -> tuple[int, ...]:
        first = position * self.geometry.blocks_per_chunk
        return tuple(range(first, first + self.geometry.blocks_per_chunk))

    def _pages(self, position: int) -> slice:
        size = self.geometry.segment_data_bytes
        return slice(position * size, (position + 1) * size)

    def __enter__(self) -> SmallServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
