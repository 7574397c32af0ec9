# SPDX-License-Identifier: Apache-2.0
"""The example of a backend of one's own keeps what it promises: it passes the kit and works in an engine."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest

from tutti_engine import ChunkKey, Geometry, TuttiEngine
from tutti_engine.backend import StorageBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.testing.conformance import BackendConformance

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_backend.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutti_example_custom_backend", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


class TestCustomBackend(BackendConformance):
    @pytest.fixture
    def backend(self) -> StorageBackend:
        return example.CompressingBackend(
            num_layers=self.num_layers, segment_bytes=self.segment_bytes, num_chunks=self.num_chunks
        )


def test_an_engine_keeps_chunks_in_it() -> None:
    geometry = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
    pages = [memoryview(bytearray(bytes([layer + 1]) * 8 * 4096)) for layer in range(2)]
    backend = example.CompressingBackend(num_layers=2, segment_bytes=geometry.segment_bytes, num_chunks=3)
    engine = TuttiEngine(geometry, chunk_ids=backend.chunk_ids(3), backend=backend)
    engine.bind(PlainMover(geometry, pages))
    key = ChunkKey(b"prompt")
    engine.store(engine.plan_store([(key, ((0, 1),))]))
    assert engine.wait_idle(time.monotonic() + 30) and engine.settle()
    for layer in pages:
        layer[:] = bytes(len(layer))
    engine.load(engine.plan_load([(key, ((5, 3),))]))
    assert engine.wait_idle(time.monotonic() + 30)
    assert [result.failed for result in engine.settle()] == [()]
    for layer in range(2):
        filled = [block for block in range(8) if set(pages[layer][block * 4096 : block * 4096 + 4096]) != {0}]
        assert filled == [3, 5]
    engine.shutdown()
