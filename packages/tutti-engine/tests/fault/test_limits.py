# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

import tutti_runtime
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.errors import RootError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.local_store import LocalStore, bytes_needed

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)


def make_layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout((str(tmp_path),), 2, 8192, 16384, 1, 24)


@pytest.fixture
def limits() -> Iterator[None]:
    names = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)
    before = [resource.getrlimit(name) for name in names]
    yield
    for name, value in zip(names, before):
        resource.setrlimit(name, value)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_exhausted_descriptors_are_told_and_none_leaks(tmp_path: Path, limits: None) -> None:
    with tutti_runtime.make_file_runtime() as runtime:
        before = open_descriptors()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 10, hard))
        with pytest.raises(RootError) as caught:
            LocalStoreBackend(make_layout(tmp_path), 0, runtime=runtime)
        assert caught.value.errno == errno.EMFILE
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        assert open_descriptors() == before
        LocalStoreBackend(make_layout(tmp_path), 0, runtime=runtime).shutdown()


def test_file_size_limit_is_told(tmp_path: Path, limits: None) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(RootError) as caught:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            LocalStoreBackend(make_layout(tmp_path), 0)
        finally:
            # At once: pytest's own output may be a file that is larger already.
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


def test_directory_without_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the read-only disk test stands in")
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RootError, match=r"cannot be written|Permission denied"):
        LocalStore.open(
            [root],
            Namespace({}),
            GEOMETRY,
            ranks=1,
            capacity_bytes=bytes_needed(4, geometry=GEOMETRY, ranks=1, roots=1),
        )
