# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import errno
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine.backend import SegmentBatch
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.errors import RootError, TuttiError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.testing.window import HostWindow

pytestmark = pytest.mark.root

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=512 * 1024)
DISK_BYTES = 24 << 20
CHUNKS = 64
NAMESPACE = Namespace({"test": "full disk"})


def load_helper() -> ModuleType:
    path = Path(__file__).with_name("small_disk.py")
    spec = importlib.util.spec_from_file_location("tutti_small_disk", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disks = load_helper()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system much smaller than the store's capacity."""
    with disks.small_disk(tmp_path, DISK_BYTES) as mount:
        yield mount


def open_store(root: Path) -> LocalStore:
    capacity = bytes_needed(CHUNKS, geometry=GEOMETRY, ranks=1, roots=1)
    return LocalStore.open([root], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=capacity)


def write_chunk(backend: LocalStoreBackend, chunk: int) -> list[int]:
    handle = backend.write_segments(SegmentBatch([chunk, chunk], [0, 1], [0, 1]))
    assert handle.wait(time.monotonic() + 60)
    return list(handle.status())


def test_full_disk_fails_segments_and_what_was_stored_stays(disk: Path) -> None:
    window = HostWindow(4, GEOMETRY.segment_bytes)
    with open_store(disk / "kv") as store:
        backend = LocalStoreBackend(store.layout, 0)
        backend.bind_staging(window)
        outcome: list[int] = []
        stored = 0
        for chunk in range(CHUNKS):
            window.slot(0)[:] = window.slot(1)[:] = bytes([chunk + 1]) * GEOMETRY.segment_bytes
            outcome = write_chunk(backend, chunk)
            if any(outcome):
                break
            stored += 1
        assert errno.ENOSPC in outcome
        assert set(outcome) <= {0, errno.ENOSPC}
        assert stored > 4
        for chunk in range(stored):
            handle = backend.read_segments(SegmentBatch([chunk], [1], [2]))
            assert handle.wait(time.monotonic() + 60)
            assert handle.status() == [0]
            assert set(window.slot(2)) == {chunk + 1}
        backend.shutdown()


def test_catalogue_waits_for_room_and_heals(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    filler = disk / "filler"
    with open_store(disk / "kv") as store:
        store.catalogue.put(Record(b"first", 0, 1, (b"s" * 16,), 1))
        assert store.catalogue.flush(30)
        disks.fill_up(filler)
        told: list[int] = []
        # More than the log's blocks that the file system has given already.
        for slot in range(1, CHUNKS):
            store.catalogue.put(Record(b"%d" % slot, slot, 1, (b"s" * 200_000,), 1))
        store.catalogue.remove([0], told.extend)
        deadline = time.monotonic() + 30
        while store.catalogue.last_error is None:
            assert time.monotonic() < deadline
            store.catalogue.flush(0.05)
        assert told == []
        filler.unlink()
        assert store.catalogue.flush(30)
        assert store.catalogue.last_error is None
        assert told == [0]
        assert len(store.catalogue.records()) == CHUNKS - 1
    assert sum("cannot be written" in entry.message for entry in caplog.records) == 1


def test_start_on_a_full_disk_is_a_plain_error_and_later_a_start(disk: Path) -> None:
    with open_store(disk / "kv") as store:
        store.catalogue.put(Record(b"first", 0, 1, (b"s" * 16,), 1))
    disks.fill_up(disk / "filler")
    with contextlib.suppress(TuttiError), open_store(disk / "kv") as store:
        assert [record.key for record in store.records] == [b"first"]
    with contextlib.suppress(TuttiError), open_store(disk / "new"):
        pass
    (disk / "filler").unlink()
    with open_store(disk / "kv") as store:
        assert [record.key for record in store.records] == [b"first"]
    open_store(disk / "new").close()


def test_read_only_disk_is_refused_in_one_line(disk: Path) -> None:
    open_store(disk / "kv").close()
    disks.remount(disk, "ro")
    with pytest.raises(
        RootError, match=r"cannot be written \(Read-only file system\); name another root"
    ) as caught:
        open_store(disk / "kv")
    assert caught.value.errno == errno.EROFS
    assert "\n" not in str(caught.value)
