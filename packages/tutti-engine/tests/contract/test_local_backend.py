# SPDX-License-Identifier: Apache-2.0
"""What the local backend asks of the runtime, and what it makes of the runtime's answers."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

import numpy as np

import tutti_runtime
from tutti_engine.backend import SegmentBatch
from tutti_engine.backends import local
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.backends.local_files import is_memory
from tutti_engine.errors import RootError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.testing.conformance import Bench
from tutti_engine.testing.window import HostWindow

SEGMENT = 16384
LAYERS = 4
CHUNKS = 6
Judge = Callable[[np.void], int]


class SpyRuntime:
    """A real runtime whose answers a test can change; ``log`` holds every request that was accepted."""

    def __init__(self, max_io: int | None = None) -> None:
        self.real = tutti_runtime.make_file_runtime()
        self.max_io = max_io
        self.reject: Judge = lambda request: 0
        self.fail: Judge = lambda request: 0
        self.holding = False
        self.submits_left: int | None = None
        self.log: list[np.void] = []
        self.abandoned: list[int] = []
        self._batches: dict[int, np.ndarray] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def caps(self) -> dict:
        caps = self.real.caps()
        return caps | {
            "max_single_io_bytes": self.max_io or caps["max_single_io_bytes"],
            "max_batch_requests": 5,
        }

    def submit(self, requests: np.ndarray) -> tutti_runtime.SubmitResult:
        assert len(requests) <= 5
        if self.submits_left is not None:
            if self.submits_left == 0:
                raise tutti_runtime.RuntimeClosedError("closed meanwhile")
            self.submits_left -= 1
        errors = np.array([self.reject(request) for request in requests], np.int32)
        accepted = errors == 0
        handle = None
        if accepted.any():
            result = self.real.submit(requests[accepted])
            assert result.accepted.all(), result.errors
            handle = result.handle
            self._batches[handle] = requests[accepted]
            self.log += list(requests[accepted])
        return tutti_runtime.SubmitResult(handle, accepted, errors)

    def poll(self, handle: int) -> bool:
        return not self.holding and self.real.poll(handle)

    def wait(self, handle: int, timeout: float | None = None) -> tutti_runtime.Completion:
        if self.holding:
            raise TimeoutError
        done = self.real.wait(handle, timeout)
        status = [self.fail(request) or code for request, code in zip(self._batches.pop(handle), done.status)]
        return tutti_runtime.Completion(np.array(status, np.int32), done.bytes)

    def abandon(self, handle: int) -> None:
        self.abandoned.append(handle)
        self.real.abandon(handle)

    def directions(self) -> list[int]:
        return [int(request["direction"]) for request in self.log]


def make_layout(tmp_path: Path, roots: int = 1) -> StoreLayout:
    directories = [tmp_path / f"root-{number}" for number in range(roots)]
    for directory in directories:
        directory.mkdir()
    return StoreLayout(tuple(map(str, directories)), LAYERS, SEGMENT, LAYERS * SEGMENT, 2, CHUNKS)


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return make_layout(tmp_path)


@pytest.fixture
def start(layout: StoreLayout) -> Iterator[Callable[..., tuple[Bench, SpyRuntime]]]:
    opened: list[tuple[Bench, SpyRuntime]] = []

    def make(max_io: int | None = None, **options: Any) -> tuple[Bench, SpyRuntime]:
        spy = SpyRuntime(max_io)
        backend = LocalStoreBackend(layout, 0, runtime=spy, **options)  # type: ignore[arg-type]
        opened.append((Bench(backend, CHUNKS, LAYERS, HostWindow(2 * CHUNKS * LAYERS, SEGMENT)), spy))
        return opened[-1]

    yield make
    for bench, spy in opened:
        spy.holding = False
        bench.backend.shutdown()
        spy.real.shutdown()


def write(bench: Bench, count: int) -> list[int]:
    for slot in range(count):
        bench.fill(slot, slot)
    return bench.finish(bench.backend.write_segments(bench.batch(bench.segments[:count], range(count))))


def test_neighbours_travel_as_one_request_and_files_are_flushed_once(start: Callable) -> None:
    bench, spy = start()
    assert write(bench, 3 * LAYERS) == [0] * 3 * LAYERS
    moved = [int(request["length"]) for request in spy.log if request["direction"] == tutti_runtime.WRITE]
    # Two chunks are neighbours in the first file, the third lies in the next one.
    assert moved == [2 * LAYERS * SEGMENT, LAYERS * SEGMENT]
    assert spy.directions() == [tutti_runtime.WRITE] * 2 + [tutti_runtime.FLUSH] * 2


def test_runs_are_cut_at_the_runtimes_limit(start: Callable) -> None:
    bench, spy = start(max_io=3 * SEGMENT + 4096)
    assert write(bench, 2 * LAYERS) == [0] * 2 * LAYERS
    lengths = [int(request["length"]) // SEGMENT for request in spy.log if request["length"]]
    assert lengths == [3, 3, 2]
    assert bench.load(bench.segments[: 2 * LAYERS]) == {
        segment: bytes(bench.fill(0, slot)) for slot, segment in enumerate(bench.segments[: 2 * LAYERS])
    }


def test_segments_above_the_runtimes_limit_are_cut(start: Callable) -> None:
    bench, spy = start(max_io=12288)
    written = bench.store(bench.segments[:3])
    lengths = [int(request["length"]) for request in spy.log if request["length"]]
    assert sorted(lengths) == [4096] * 3 + [12288] * 3
    assert bench.load(bench.segments[:3]) == written
    spy.fail = lambda request: errno.EIO if request["memory_offset"] == SEGMENT + 12288 else 0
    batch = bench.batch(bench.segments[:3], range(3))
    assert bench.finish(bench.backend.read_segments(batch)) == [0, errno.EIO, 0]


def test_failed_run_is_tried_again_segment_by_segment(start: Callable) -> None:
    bench, spy = start()
    bad = 2 * SEGMENT

    def fail(request: np.void) -> int:
        begin, end = int(request["target_offset"]), int(request["target_offset"] + request["length"])
        return errno.EIO if begin <= bad < end else 0

    spy.fail = fail
    assert write(bench, LAYERS) == [0, 0, errno.EIO, 0]
    assert spy.directions().count(tutti_runtime.WRITE) == 1 + LAYERS
    spy.fail = lambda request: 0
    assert bench.load(bench.segments[:2]) == {
        segment: bench.fill(0, slot) for slot, segment in enumerate(bench.segments[:2])
    }


def test_write_is_not_finished_before_its_flush(start: Callable) -> None:
    bench, spy = start()
    spy.holding = True
    bench.fill(0, "a")
    handle = bench.backend.write_segments(bench.batch(bench.segments[:1], [0]))
    assert not handle.wait(time.monotonic())
    assert spy.directions() == [tutti_runtime.WRITE]

    def hold_the_flush(request: np.void) -> int:
        spy.holding = bool(request["direction"] == tutti_runtime.FLUSH)
        return 0

    spy.reject, spy.holding = hold_the_flush, False
    while tutti_runtime.FLUSH not in spy.directions():
        assert not handle.poll()
    assert not handle.poll()
    with pytest.raises(RuntimeError, match="in flight"):
        handle.status()
    spy.holding = False
    assert bench.finish(handle) == [0]


def test_failed_flush_fails_the_segments_of_its_file_alone(start: Callable) -> None:
    bench, spy = start()
    flushes = []

    def fail(request: np.void) -> int:
        if request["direction"] != tutti_runtime.FLUSH:
            return 0
        flushes.append(request)
        return errno.EIO if len(flushes) == 1 else 0

    spy.fail = fail
    status = write(bench, 3 * LAYERS)
    assert status == [errno.EIO] * 2 * LAYERS + [0] * LAYERS


def test_file_without_a_successful_write_is_not_flushed(start: Callable) -> None:
    bench, spy = start()
    spy.fail = lambda request: errno.ENOSPC
    assert write(bench, 1) == [errno.ENOSPC]
    assert tutti_runtime.FLUSH not in spy.directions()


def test_rejected_requests_are_offered_again_while_others_go_on(start: Callable) -> None:
    bench, spy = start()
    refusals = []

    def reject(request: np.void) -> int:
        refusals.append(request)
        return errno.EAGAIN if len(refusals) % 3 else 0

    spy.reject = reject
    written = bench.store(bench.segments)
    spy.reject = lambda request: 0
    assert bench.load(bench.segments) == written


def test_no_room_until_the_deadline_is_told_as_such(start: Callable) -> None:
    bench, spy = start(io_timeout=0.05)
    spy.reject = lambda request: errno.EAGAIN
    assert write(bench, 3) == [errno.EAGAIN] * 3
    assert spy.log == []
    spy.reject = lambda request: errno.EAGAIN if request["direction"] == tutti_runtime.FLUSH else 0
    assert write(bench, 3) == [errno.ETIMEDOUT] * 3


def test_rejection_for_another_reason_is_a_failure_of_its_segment(start: Callable) -> None:
    bench, spy = start()
    spy.reject = lambda request: errno.EBADF if request["memory_offset"] == SEGMENT else 0
    for slot in range(3):
        bench.fill(slot, slot)
    batch = bench.batch([(0, 3), (2, 0), (0, 0)], range(3))
    assert bench.finish(bench.backend.write_segments(batch)) == [0, errno.EBADF, 0]


@pytest.mark.parametrize("submits", [0, 1, 2])
@pytest.mark.parametrize("direction", ["write", "read"])
def test_segments_that_meet_a_closed_runtime_never_count_as_done(
    submits: int, direction: str, start: Callable
) -> None:
    bench, spy = start(max_io=SEGMENT)  # a request a segment, and so two submits of five
    spy.submits_left = submits
    count = 8
    move = bench.backend.write_segments if direction == "write" else bench.backend.read_segments
    handle = move(bench.batch(bench.segments[:count], range(count)))
    assert handle.wait(time.monotonic() + 10)
    if direction == "read" and submits == 2:
        assert handle.status() == [0] * count, "all of it was read before"
    else:
        # Of a batch of writes that is never flushed not even the written part is durable.
        assert handle.status() == [errno.ECANCELED] * count
    assert bench.backend.wait_idle(time.monotonic())


def test_batch_of_a_closed_runtime_waits_for_what_is_still_in_flight(start: Callable) -> None:
    bench, spy = start(max_io=SEGMENT)
    spy.submits_left, spy.holding = 1, True
    handle = bench.backend.write_segments(bench.batch(bench.segments[:8], range(8)))
    assert not handle.wait(time.monotonic() + 0.05), "its slots may still be read"
    spy.holding = False
    assert handle.wait(time.monotonic() + 10)
    assert handle.status() == [errno.ECANCELED] * 8


def test_batch_begun_on_a_runtime_that_is_shut_down_is_cancelled(layout: StoreLayout) -> None:
    backend = LocalStoreBackend(layout, 0)
    bench = Bench(backend, CHUNKS, LAYERS, HostWindow(2 * CHUNKS * LAYERS, SEGMENT))
    backend.runtime.shutdown(10)
    handle = backend.write_segments(bench.batch(bench.segments[:4], range(4)))
    assert handle.wait(time.monotonic() + 10)
    assert handle.status() == [errno.ECANCELED] * 4
    backend.shutdown()


def test_io_past_its_deadline_keeps_its_slots(start: Callable) -> None:
    bench, spy = start(io_timeout=0.01)
    spy.holding = True
    handle = bench.backend.read_segments(bench.batch(bench.segments[:1], [0]))
    assert not handle.wait(time.monotonic() + 0.1)
    assert not bench.backend.wait_idle(time.monotonic())
    spy.holding = False
    assert bench.finish(handle) == [0]


def test_shutdown_abandons_what_hangs_in_a_borrowed_runtime(
    start: Callable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tutti_engine.backends.local.SHUTDOWN_SECONDS", 0.05)
    bench, spy = start()
    spy.holding = True
    handle = bench.backend.read_segments(bench.batch(bench.segments[:1], [0]))
    bench.backend.shutdown()
    assert len(spy.abandoned) == 1
    assert not handle.poll(), "its slots may still be written"
    assert "stays reserved" in caplog.text


def test_shutdown_ends_what_hangs_in_its_own_runtime(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutti_engine.backends.local.SHUTDOWN_SECONDS", 0.05)
    spy = SpyRuntime()
    monkeypatch.setattr(tutti_runtime, "make_file_runtime", lambda: spy)
    backend = LocalStoreBackend(layout, 0)
    bench = Bench(backend, CHUNKS, LAYERS, HostWindow(4, SEGMENT))
    spy.holding = True
    handle = backend.read_segments(bench.batch(bench.segments[:1], [0]))
    backend.shutdown()
    assert handle.poll()
    assert handle.status() == [errno.ECANCELED]


# Files.


def test_files_are_sparse_private_and_of_the_layouts_size(tmp_path: Path) -> None:
    layout = make_layout(tmp_path, roots=2)
    LocalStoreBackend(layout, 5).shutdown()
    for number in layout.files():
        found = os.lstat(layout.file_path(5, number))
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_size == layout.file_bytes(number)
        assert found.st_blocks == 0
    assert stat.S_IMODE((tmp_path / "root-0" / "rank-5").stat().st_mode) == 0o700


def test_short_file_is_grown_and_a_long_one_left(layout: StoreLayout) -> None:
    LocalStoreBackend(layout, 0).shutdown()
    short, long = (Path(layout.file_path(0, number)) for number in layout.files()[:2])
    os.truncate(short, 4096)
    os.truncate(long, layout.file_bytes(1) + 4096)
    LocalStoreBackend(layout, 0).shutdown()
    assert short.stat().st_size == layout.file_bytes(0)
    assert long.stat().st_size == layout.file_bytes(1) + 4096


def make_link(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("where", "make"),
    [
        ("rank", make_link),
        ("rank", make_fifo),
        ("file", make_link),
        ("file", make_fifo),
        ("file", Path.mkdir),
    ],
)
def test_anything_but_plain_files_in_directories_is_refused(
    where: str, make: Callable[[Path], None], layout: StoreLayout
) -> None:
    path = Path(layout.file_path(0, 0))
    if where == "rank":
        make(path.parent)
    else:
        path.parent.mkdir()
        make(path)
    with pytest.raises(RootError, match="cannot use"):
        LocalStoreBackend(layout, 0)


def test_directory_of_another_store_is_refused(tmp_path: Path) -> None:
    geometry = Geometry(num_layers=LAYERS, block_tokens=16, blocks_per_chunk=1, page_bytes=SEGMENT)
    capacity = bytes_needed(4, geometry=geometry, ranks=1, roots=1)
    namespace = Namespace({"model": "m"})
    with LocalStore.open([tmp_path / "r"], namespace, geometry, ranks=1, capacity_bytes=capacity) as store:
        LocalStoreBackend(store.layout, 0).shutdown()
        (store.directory / "namespace.json").unlink()
        with pytest.raises(RootError, match="every worker must see the same drives"):
            LocalStoreBackend(store.layout, 1)
        assert not (store.directory / "rank-1").exists()


def mount(number: str, kind: str) -> str:
    return f"36 35 {number} / /mnt rw,noatime shared:1 - {kind} source rw\n"


def test_a_file_system_in_memory_is_told_by_its_device(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    own, other = f"{os.major(device)}:{os.minor(device)}", "0:99999"
    mounts = tmp_path / "mountinfo"
    for lines, expected in (
        (mount(other, "tmpfs") + mount(own, "ext4"), False),
        (mount(other, "ext4") + mount(own, "tmpfs"), True),
        (mount(own, "ramfs"), True),
        (mount(other, "tmpfs"), False),
    ):
        mounts.write_text(lines)
        assert is_memory(str(tmp_path), mounts) is expected, lines
    assert not is_memory(str(tmp_path), tmp_path / "absent")
    assert not is_memory(str(tmp_path / "absent"), mounts)


@pytest.mark.parametrize("size", [3 << 20, 1 << 20, 64 << 10])
def test_in_memory_files_are_written_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The kernel lets one thread at a time write to a file there."""
    monkeypatch.setattr(local, "is_memory", lambda directory: True)
    chunks, layers = 6, 2
    layout = StoreLayout((str(tmp_path),), layers, size, layers * size, 2, chunks)
    window = HostWindow(chunks * layers, size)
    batch = SegmentBatch(
        [chunk for chunk in range(chunks) for _ in range(layers)], [0, 1] * chunks, range(chunks * layers)
    )
    expected = os.urandom(window.nbytes)
    window.memory[:] = expected
    backend = LocalStoreBackend(layout, 0)
    try:
        backend.bind_staging(window)
        segments = backend._segments(batch)
        written = backend.requests(segments, write=True).array["target"].tolist()
        assert len(set(written[:3])) == 3 and written == written[:3] * (len(written) // 3)
        read = backend.requests(segments, write=False).array["target"].tolist()
        assert read == sorted(read, key=read.index)
        for start in (backend.write_segments, backend.read_segments):
            handle = start(batch)
            assert handle.wait(time.monotonic() + 60) and not any(handle.status())
            window.memory[:] = bytes(window.nbytes) if start == backend.write_segments else window.memory
    finally:
        backend.shutdown()
    assert bytes(window.memory) == expected


def test_in_memory_threads_move_the_bytes_in_short_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=4 << 20)
    capacity = bytes_needed(2, geometry=geometry, ranks=1, roots=1)
    store = LocalStore.open([tmp_path], Namespace({}), geometry, ranks=1, capacity_bytes=capacity)
    longest = {}
    for in_memory in (False, True):
        monkeypatch.setattr(local, "is_memory", lambda directory, answer=in_memory: answer)
        backend = LocalStoreBackend(store.layout, 0)
        try:
            backend.bind_staging(HostWindow(4, geometry.segment_bytes))
            array = backend.requests(
                local.Segments(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)),
                write=False,
            ).array
            longest[in_memory] = int(array["length"].max())
            assert not in_memory or backend.data_path == "posix"
            assert not in_memory or backend.runtime.caps()["direct"] == "off"
        finally:
            backend.shutdown()
    store.close()
    assert longest[True] == local.THREAD_IO_BYTES
    assert longest[False] in (geometry.segment_bytes, local.THREAD_IO_BYTES)  # the latter without io_uring
