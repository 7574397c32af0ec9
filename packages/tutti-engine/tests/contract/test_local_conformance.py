# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

import tutti_runtime
from tutti_engine.backend import StorageBackend
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.store.layout import StoreLayout
from tutti_engine.testing.conformance import BackendConformance
from tutti_engine.testing.fakes import PoisoningBackend, ReorderingBackend


class LocalFixture(BackendConformance):
    """Two roots and files of two chunks, so that every test crosses borders of both."""

    options: dict = {}

    def layout(self, tmp_path: Path) -> StoreLayout:
        directories = [tmp_path / name for name in ("one", "t%w# ö")]
        for directory in directories:
            directory.mkdir()
        return StoreLayout(
            directories=tuple(map(str, directories)),
            num_layers=self.num_layers,
            segment_bytes=self.segment_bytes,
            chunk_bytes=32768,
            chunks_per_file=2,
            num_chunks=self.num_chunks,
        )

    @pytest.fixture
    def runtime(self) -> Iterator[tutti_runtime.Runtime]:
        try:
            runtime = tutti_runtime.make_file_runtime(**self.options)
        except OSError as error:
            pytest.skip(f"no runtime with {self.options}: {error}")
        yield runtime
        runtime.shutdown()

    @pytest.fixture
    def backend(self, tmp_path: Path, runtime: tutti_runtime.Runtime) -> StorageBackend:
        return LocalStoreBackend(self.layout(tmp_path), 0, runtime=runtime)


class TestPosix(LocalFixture):
    options = {"data_path": "posix"}


class TestUring(LocalFixture):
    options = {"data_path": "uring"}


class TestBuffered(LocalFixture):
    options = {"direct": "off"}


class TestLittleRoom(LocalFixture):
    """At most two requests in flight: most are offered again and again by the handle itself."""

    options = {"max_in_flight": 2}


class TestOwnRuntime(LocalFixture):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> StorageBackend:
        return LocalStoreBackend(self.layout(tmp_path), 3)


class TestBehindLayers(LocalFixture):
    @pytest.fixture
    def backend(self, tmp_path: Path, runtime: tutti_runtime.Runtime) -> StorageBackend:
        inner = LocalStoreBackend(self.layout(tmp_path), 0, runtime=runtime)
        return PoisoningBackend(ReorderingBackend(inner, polls=2))
