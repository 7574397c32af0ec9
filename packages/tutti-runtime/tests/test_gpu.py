# SPDX-License-Identifier: Apache-2.0
"""Pinned memory, gates, words and events with a CUDA driver that is really there."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_kit import real_driver
from gpu_kit import CudaError, Driver, Gpu
from runtime_kit import KIB, batch, child, make, pair_id, request, takes_direct

import tutti_runtime as tr
from tutti_runtime import cuda

pytestmark = pytest.mark.gpu
SIZE = 64 * KIB
SLOTS = 4
FOREVER = 60.0
PATHS = [("posix", "off"), ("uring", "off"), ("uring", "on")]


@pytest.fixture(scope="module")
def driver() -> Driver:
    if not real_driver():
        pytest.skip("no CUDA driver is installed here")
    try:
        found = Driver()
    except CudaError as error:
        pytest.skip(f"no CUDA device here: {error}")
    return found


@pytest.fixture(params=[0, 1])
def gpu(request: pytest.FixtureRequest, driver: Driver) -> Iterator[Gpu]:
    if request.param >= driver.count():
        pytest.skip(f"this test is for device {request.param}; there are {driver.count()} CUDA devices")
    before, made = driver.current(), Gpu(driver, request.param)
    yield made
    made.close()
    assert driver.current() == before  # whatever a test did: the caller's context is as it was


class Window:
    """A runtime, pinned slots with a slot of words behind them, and a target full of random bytes."""

    def __init__(self, gpu: Gpu, runtime: tr.Runtime, folder: Path) -> None:
        self.gpu, self.runtime = gpu, runtime
        self.buffer = cuda.allocate_pinned((SLOTS + 1) * SIZE, device=gpu.ordinal)
        self.memory = runtime.register_memory(
            self.buffer.address, self.buffer.nbytes, kind="pinned_host", device=gpu.ordinal
        )
        self.words = self.buffer.bytes[SLOTS * SIZE :].view(np.uint64)
        self.path = folder / "target"
        self.data = np.random.default_rng(7).integers(0, 256, SLOTS * SIZE, dtype=np.uint8)
        self.path.write_bytes(self.data.tobytes())
        self.target = runtime.open(self.path.as_uri())

    def slot(self, i: int) -> np.ndarray:
        return self.buffer.bytes[i * SIZE : (i + 1) * SIZE]

    def place(self, i: int) -> np.ndarray:
        return self.data[i * SIZE : (i + 1) * SIZE]

    def request(self, direction: int, slot: int, place: int = 0) -> np.ndarray:
        return batch(request(direction, self.memory, slot * SIZE, self.target, place * SIZE, SIZE))

    def gate(self, line: int, value: int = 1) -> tr.Gate:
        """One gate to a cache line."""
        return tr.Gate(self.memory, SLOTS * SIZE + 64 * line, value)

    def word(self, line: int, value: int = 1) -> tr.WordDependency:
        return tr.WordDependency(self.memory, SLOTS * SIZE + 64 * line, value)

    def status(self, line: int) -> list[int]:
        return self.words[8 * line : 8 * line + 2].tolist()

    def submit(self, direction: int, slot: int, place: int = 0, **options: object) -> int:
        result = self.runtime.submit(self.request(direction, slot, place), **options)
        assert result.handle is not None, result.errors
        return result.handle

    def succeed(self, handle: int) -> None:
        assert not self.runtime.wait(handle, FOREVER).status.any()

    def held_stream(self, line: int) -> int:
        """A stream that waits until the test itself writes a word."""
        stream = self.gpu.stream()
        cuda.stream_wait_gate(self.runtime, stream, self.gate(line))
        return stream

    def let_go(self, line: int) -> None:
        self.words[8 * line] = 1


@pytest.fixture(params=PATHS, ids=pair_id)
def window(request: pytest.FixtureRequest, gpu: Gpu, tmp_path: Path) -> Iterator[Window]:
    with make(*request.param, tmp_path) as runtime:
        made = Window(gpu, runtime, tmp_path)
        yield made
        made.words[:] = 1 << 32  # a test that failed leaves no stream waiting
        assert all(gpu.idle(stream, FOREVER) for stream in gpu.streams)
    made.buffer.close()


def test_a_read_waits_for_an_event(window: Window) -> None:
    stream = window.held_stream(0)
    handle = window.submit(tr.READ, 0, after=window.gpu.record(stream))
    window.succeed(window.submit(tr.READ, 1, 1))  # one that waits for nothing overtakes it
    assert not window.runtime.poll(handle)
    assert not window.slot(0).any()
    window.let_go(0)
    window.succeed(handle)
    assert (window.slot(0) == window.place(0)).all()


def test_what_is_no_event_or_stream_is_refused(window: Window) -> None:
    with pytest.raises(TypeError, match="after="):
        window.runtime.submit(window.request(tr.READ, 0), after="event")
    with pytest.raises(ValueError, match="offset=12"):
        cuda.stream_wait_gate(window.runtime, window.gpu.stream(), tr.Gate(window.memory, 12, 1))


def test_a_stream_copies_what_a_gate_lets_through(window: Window) -> None:
    """Four streams, whose gates open in the opposite order."""
    gpu, there = window.gpu, window.gpu.malloc(SLOTS * SIZE)
    streams = [gpu.stream() for _ in range(SLOTS)]
    for i, stream in enumerate(streams):
        cuda.stream_wait_gate(window.runtime, stream, window.gate(i))
        gpu.copy_in(stream, there + i * SIZE, window.buffer.address + i * SIZE, SIZE)
    for i in reversed(range(SLOTS)):
        assert not gpu.idle(streams[i])
        window.succeed(window.submit(tr.READ, i, SLOTS - 1 - i, gate=window.gate(i)))
        assert gpu.idle(streams[i], FOREVER)
        assert window.status(i) == [1, 0]
    window.buffer.bytes[: SLOTS * SIZE] = 0
    gpu.copy_out(streams[0], window.buffer.address, there, SLOTS * SIZE)
    assert gpu.idle(streams[0], FOREVER)
    for i in range(SLOTS):
        assert (window.slot(i) == window.place(SLOTS - 1 - i)).all()


def test_a_gate_that_is_open_already_holds_nothing_up(window: Window) -> None:
    window.succeed(window.submit(tr.READ, 0, gate=window.gate(0)))
    stream = window.gpu.stream()
    cuda.stream_wait_gate(window.runtime, stream, window.gate(0))
    assert window.gpu.idle(stream, FOREVER)


def test_a_failed_read_opens_the_gate_with_its_errno(window: Window) -> None:
    stream = window.gpu.stream()
    cuda.stream_wait_gate(window.runtime, stream, window.gate(0))
    window.path.write_bytes(b"")
    handle = window.submit(tr.READ, 0, gate=window.gate(0))
    assert window.gpu.idle(stream, FOREVER)
    assert window.status(0) == [1, errno.EIO]
    assert window.runtime.wait(handle, FOREVER).status.tolist() == [errno.EIO]


@pytest.mark.parametrize("end", ["deadline", "cancel", "shutdown"])
def test_a_stream_never_hangs(window: Window, end: str) -> None:
    """A stream waits for a read that waits for an event that does not come."""
    behind = window.held_stream(0)
    stream = window.gpu.stream()
    timeout = {"timeout": 0.01} if end == "deadline" else {}
    handle = window.submit(tr.READ, 0, after=window.gpu.record(behind), gate=window.gate(1), **timeout)
    cuda.stream_wait_gate(window.runtime, stream, window.gate(1))
    if end == "cancel":
        window.runtime.cancel(handle)
    if end == "shutdown":
        window.runtime.shutdown(0.01)
    assert window.gpu.idle(stream, FOREVER)
    value, status = window.status(1)
    expected = {"deadline": [errno.ETIMEDOUT], "cancel": [errno.ECANCELED]}
    assert value == 1
    assert status in expected.get(end, [errno.ETIMEDOUT, errno.ECANCELED])
    assert not window.slot(0).any()
    window.let_go(0)
    assert window.gpu.idle(behind, FOREVER)


@pytest.mark.parametrize("ordering", ["word", "event"])
def test_a_write_waits_until_a_stream_has_filled_its_slot(window: Window, ordering: str) -> None:
    gpu, there = window.gpu, window.gpu.malloc(SIZE)
    fill = gpu.stream()
    window.slot(1)[:] = new = np.random.default_rng(8).integers(0, 256, SIZE, dtype=np.uint8)
    gpu.copy_in(fill, there, window.buffer.address + SIZE, SIZE)
    assert gpu.idle(fill, FOREVER)
    stream = window.held_stream(0)
    gpu.copy_out(stream, window.buffer.address, there, SIZE)
    if ordering == "word":
        filled: object = window.word(1, 5)
        cuda.stream_write_word(window.runtime, stream, window.word(1, 5))
    else:
        filled = gpu.record(stream)
    handle = window.submit(tr.WRITE, 0, 2, after=filled)
    assert not window.runtime.poll(handle)
    window.let_go(0)
    window.succeed(handle)
    window.succeed(window.submit(tr.READ, 3, 2))
    assert (window.slot(3) == new).all()
    assert gpu.idle(stream, FOREVER)


def test_a_ring_of_slots_runs_without_a_wait(window: Window) -> None:
    """Reads into three slots in turn, each when the stream has emptied it: 60 rounds, every byte right."""
    gpu, rounds, ring = window.gpu, 60, SLOTS - 1
    there, streams = gpu.malloc(rounds * SIZE), [gpu.stream(), gpu.stream()]
    handles = []
    for i in range(rounds):
        slot, turn = i % ring, i // ring + 1
        stream, full = streams[slot % 2], window.gate(slot, turn)
        after = window.word(8 + slot, turn - 1)
        handles.append(window.submit(tr.READ, slot, i % SLOTS, gate=full, after=after))
        cuda.stream_wait_gate(window.runtime, stream, full)
        gpu.copy_in(stream, there + i * SIZE, window.buffer.address + slot * SIZE, SIZE)
        cuda.stream_write_word(window.runtime, stream, window.word(8 + slot, turn))
    assert all(gpu.idle(stream, FOREVER) for stream in streams)
    for handle in handles:
        window.succeed(handle)
    for i in range(rounds):
        gpu.copy_out(streams[0], window.buffer.address, there + i * SIZE, SIZE)
        assert gpu.idle(streams[0], FOREVER)
        assert (window.slot(0) == window.place(i % SLOTS)).all()


def test_the_current_context_stays(window: Window) -> None:
    """In a thread without a context, and in one that works on another device if there is one."""
    driver, gpu = window.gpu.driver, window.gpu
    other = Gpu(driver, (gpu.ordinal + 1) % driver.count())
    seen: list[bool] = []

    def use(line: int) -> None:
        before = driver.current()
        stream = gpu.stream()
        cuda.stream_wait_gate(window.runtime, stream, window.gate(line))
        handle = window.submit(tr.READ, line, after=gpu.record(gpu.stream()), gate=window.gate(line))
        cuda.stream_write_word(window.runtime, stream, window.word(line + 8))
        window.succeed(handle)
        cuda.word_pointer(window.runtime, window.memory, SLOTS * SIZE, device=gpu.ordinal)
        with cuda.allocate_pinned(SIZE, device=gpu.ordinal):
            pass
        seen.append(gpu.idle(stream, FOREVER) and driver.current() == before)

    with other.current():
        use(0)
    thread = threading.Thread(target=use, args=(1,))
    thread.start()
    thread.join()
    other.close()
    assert seen == [True, True]


def use_torch(torch: Any, window: Window) -> None:
    device = window.gpu.ordinal
    with torch.cuda.device(device):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        pinned = torch.empty(SIZE * 2, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        # Where torch finds all of it in its caches, only this makes its context current in a new thread.
        event.record(stream)
    before = torch.cuda.current_device(), window.gpu.driver.current()
    skip = -pinned.data_ptr() % SIZE
    memory = window.runtime.register_memory(pinned.data_ptr() + skip, SIZE, kind="pinned_host", device=device)
    rows = batch(request(tr.READ, memory, 0, window.target, 0, SIZE))
    cuda.stream_wait_gate(window.runtime, stream, window.gate(0))
    with torch.cuda.stream(stream):
        there.copy_(pinned[skip : skip + SIZE], non_blocking=True)
        event.record()
    read = window.runtime.submit(rows, gate=window.gate(0))
    rows["direction"], rows["target_offset"] = tr.WRITE, SIZE
    window.succeed(window.runtime.submit(rows, after=event).handle)
    window.succeed(read.handle)
    window.runtime.unregister_memory(memory)
    assert (torch.cuda.current_device(), window.gpu.driver.current()) == before
    assert (there.cpu().numpy() == window.place(0)).all()


def test_torch_objects_are_taken_and_its_device_stays(window: Window) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with ThreadPoolExecutor(1) as pool:  # torch leaves its context current in the thread that uses it
        pool.submit(use_torch, torch, window).result()


def test_device_memory_is_refused_with_the_reason(window: Window) -> None:
    there = window.gpu.malloc(SIZE)
    with pytest.raises(ValueError, match="cufile"):
        window.runtime.register_memory(there, SIZE, kind="device")


def test_kernels_reach_a_word_under_its_pointer(window: Window) -> None:
    pointer = cuda.word_pointer(window.runtime, window.memory, SLOTS * SIZE + 64, device=window.gpu.ordinal)
    window.words[8] = 0x1234567890ABCDEF
    stream = window.gpu.stream()
    window.gpu.copy_out(stream, window.buffer.address, pointer, 8)
    assert window.gpu.idle(stream, FOREVER)
    assert window.slot(0)[:8].view(np.uint64)[0] == 0x1234567890ABCDEF


def test_a_captured_wait_works_at_every_launch(window: Window) -> None:
    gpu, stream = window.gpu, window.gpu.stream()
    handle, graph, ready = ctypes.c_void_p(stream), ctypes.c_void_p(), ctypes.c_void_p()
    call = gpu.driver.call
    there = gpu.malloc(SIZE)
    with gpu.current():
        try:
            call("cuStreamBeginCapture_v2", handle, 0)
        except CudaError as error:
            pytest.skip(f"this driver captures nothing: {error}")
        # An event that the runtime asks for meanwhile must not end the capture.
        behind = window.submit(tr.READ, 1, 1)
        try:
            cuda.stream_wait_gate(window.runtime, stream, window.gate(0))
            gpu.copy_in(stream, there, window.buffer.address, SIZE)
            cuda.stream_write_word(window.runtime, stream, window.word(2))
        finally:
            call("cuStreamEndCapture", handle, ctypes.byref(graph))
        window.succeed(behind)
        call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        for place in range(2):
            window.words[0] = window.words[16] = 0
            call("cuGraphLaunch", ready, handle)
            assert not gpu.idle(stream)
            window.submit(tr.READ, 0, place, gate=window.gate(0))
            assert gpu.idle(stream, FOREVER)
            assert window.words[16] == 1
            gpu.copy_out(stream, window.buffer.address + 2 * SIZE, there, SIZE)
            assert gpu.idle(stream, FOREVER)
            assert (window.slot(2) == window.place(place)).all()
        call("cuGraphExecDestroy", ready)
        call("cuGraphDestroy", graph)


def test_events_are_asked_while_a_stream_is_captured(window: Window) -> None:
    gpu, stream = window.gpu, window.gpu.stream()
    handle, graph = ctypes.c_void_p(stream), ctypes.c_void_p()
    event = gpu.record(window.held_stream(0))
    with gpu.current():
        try:
            gpu.driver.call("cuStreamBeginCapture_v2", handle, 0)
        except CudaError as error:
            pytest.skip(f"this driver captures nothing: {error}")
        read = window.submit(tr.READ, 0, after=event)
        window.let_go(0)
        window.succeed(read)
        gpu.driver.call("cuStreamEndCapture", handle, ctypes.byref(graph))
        gpu.driver.call("cuGraphDestroy", graph)


def test_io_uring_takes_pinned_memory_as_registered_buffers(gpu: Gpu, tmp_path: Path) -> None:
    direct = "on" if takes_direct(tmp_path) else "off"
    with make("uring", direct, tmp_path) as runtime:
        window = Window(gpu, runtime, tmp_path)
        window.succeed(window.submit(tr.READ, 0, 3))
        assert (window.slot(0) == window.place(3)).all()
        assert "registered_buffers" in runtime.caps()["features_used"], runtime.caps()
    window.buffer.close()


def test_pages_are_on_the_node_beside_the_device(gpu: Gpu) -> None:
    with cuda.allocate_pinned(1 << 20, device=gpu.ordinal) as buffer:
        if buffer.numa_node < 0:
            pytest.skip("the system names no NUMA node for this device")
        pages = (ctypes.c_void_p * 16)(*range(buffer.address, buffer.address + (1 << 20), 1 << 16))
        nodes = (ctypes.c_int * 16)()
        move_pages = 279  # of x86-64; without nodes it only tells where pages are
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syscall(move_pages, 0, ctypes.c_ulong(16), pages, None, nodes, 0) == 0
        assert set(nodes) == {buffer.numa_node}


def resident_kib() -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1])


def test_memory_does_not_grow_with_batches(gpu: Gpu, tmp_path: Path) -> None:
    with tr.make_file_runtime(data_path="posix", direct="off") as runtime:
        window = Window(gpu, runtime, tmp_path)
        stream, rows = gpu.stream(), window.request(tr.READ, 0)
        rows["length"] = 4 * KIB
        event = gpu.record(stream)

        def go(first: int, count: int) -> None:
            for turn in range(first, first + count):
                after = event if turn % 2 else window.word(1, turn - 1)
                result = runtime.submit(rows, gate=window.gate(0, turn), after=after)
                cuda.stream_wait_gate(runtime, stream, window.gate(0, turn))
                cuda.stream_write_word(runtime, stream, window.word(1, turn))
                window.succeed(result.handle)
                assert gpu.idle(stream, FOREVER)

        go(1, 2000)
        before = resident_kib()
        go(2001, 10000)
        assert resident_kib() - before < 4096
    window.buffer.close()


CUFILE = """
    import ctypes, sys
    import numpy as np
    import tutti_runtime as tr
    from gpu_kit import Driver, Gpu
    from runtime_kit import batch, request, run
    from pathlib import Path
    gpu, path, size = Gpu(Driver()), Path(sys.argv[1]), 1 << 20
    try:
        runtime = tr.make_file_runtime(data_path="cufile", direct="auto")
        data = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
        path.write_bytes(data.tobytes())
        target = runtime.open(path.as_uri())
    except OSError as error:
        print("SKIP", error)
        sys.exit()
    there, stream, back = gpu.malloc(size), gpu.stream(), np.zeros(size, dtype=np.uint8)
    memory = runtime.register_memory(there, size, kind="device")
    print(runtime.caps())
    parts = [request(tr.READ, memory, at, target, at, size // 4) for at in range(0, size, size // 4)]
    done = run(runtime, batch(*parts))
    assert not done.status.any(), done.status
    gpu.copy_out(stream, back.ctypes.data, there, size)
    assert gpu.idle(stream, 20) and (back == data).all()
    done = run(runtime, batch(request(tr.WRITE, memory, size // 2, target, 0, size // 2)))
    assert not done.status.any(), done.status
    assert path.read_bytes() == data[size // 2:].tobytes() + data[size // 2:].tobytes()
    if runtime.caps()["stream_ordered"]:
        fresh = np.random.default_rng(2).integers(0, 256, size, dtype=np.uint8)
        gpu.copy_in(stream, there, fresh.ctypes.data, size)
        whole = batch(request(tr.WRITE, memory, 0, target, 0, size))
        wrote = runtime.submit(whole, stream=stream)
        gpu.copy_in(stream, there, back.ctypes.data, size)
        again = runtime.submit(batch(request(tr.READ, memory, 0, target, 0, size)), stream=stream)
        gpu.copy_out(stream, back.ctypes.data, there, size)
        for result in (wrote, again):
            done = runtime.wait(result.handle, 60)
            assert not done.status.any(), done.status
        assert gpu.idle(stream, 20) and (back == fresh).all()
        assert path.read_bytes() == fresh.tobytes()
        print("STREAM ORDERED")
    assert runtime.shutdown(20)
    print("DONE")
"""


def test_cufile_moves_between_files_and_device_memory(driver: Driver, tmp_path: Path) -> None:
    try:
        said = child(CUFILE, str(tmp_path / "file"))
    except subprocess.TimeoutExpired:
        pytest.fail("cuFile did not answer within two minutes")
    print(said, file=sys.stderr)
    if "SKIP" in said:
        pytest.skip(said[-300:])
    assert said.endswith("DONE")
