# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tutti_engine.backend import StorageBackend
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.testing.conformance import BackendConformance
from tutti_engine.testing.fakes import (
    DelayedBackend,
    PartialBackend,
    PoisoningBackend,
    ReorderingBackend,
)


class MemoryFixture(BackendConformance):
    def memory(self) -> MemoryBackend:
        return MemoryBackend(
            num_layers=self.num_layers, segment_bytes=self.segment_bytes, num_chunks=self.num_chunks
        )


class TestMemory(MemoryFixture):
    @pytest.fixture
    def backend(self) -> StorageBackend:
        return self.memory()


class TestDelayed(MemoryFixture):
    @pytest.fixture
    def backend(self) -> StorageBackend:
        return DelayedBackend(self.memory(), polls=2)


class TestReordering(MemoryFixture):
    @pytest.fixture
    def backend(self) -> StorageBackend:
        return ReorderingBackend(self.memory())


class TestPartial(MemoryFixture):
    @pytest.fixture
    def backend(self) -> StorageBackend:
        return PartialBackend(self.memory(), 1)


class TestPoisoning(MemoryFixture):
    @pytest.fixture
    def backend(self) -> StorageBackend:
        return PoisoningBackend(DelayedBackend(self.memory(), polls=1))
