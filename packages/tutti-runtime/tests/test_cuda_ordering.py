# SPDX-License-Identifier: Apache-2.0
"""Events before a batch, gates behind it, and streams that never hang."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_kit import FakeCuda
from runtime_kit import KIB, Buffer, Setup, batch, request

import tutti_runtime as tr
from tutti_runtime import cuda

SIZE = 64 * KIB
FOREVER = 60.0


class Event:
    """What torch.cuda.Event shows of itself."""

    def __init__(self, number: int) -> None:
        self.cuda_event = number


class Stream:
    """What torch.cuda.Stream shows of itself."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number


class Bench:
    """A runtime with a pinned window of two slots and a slot of words, and a target."""

    def __init__(self, setup: Setup, fake: FakeCuda) -> None:
        self.fake = fake
        self.runtime = setup.runtime
        self.buffer = Buffer(4 * SIZE)
        self.memory = self.runtime.register_memory(self.buffer.address, 4 * SIZE, kind="pinned_host")
        self.words = self.buffer.bytes[3 * SIZE :].view(np.uint64)
        self.copied = np.zeros(SIZE, dtype=np.uint8)
        self.data = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)
        self.target = setup.target(4 * SIZE)
        self.buffer.bytes[:SIZE] = self.data
        self.run(self.request(tr.WRITE, 0))
        self.buffer.bytes[:SIZE] = 0

    def request(self, direction: int, slot: int, place: int = 0) -> np.ndarray:
        return batch(request(direction, self.memory, slot * SIZE, self.target, place * SIZE, SIZE))

    def run(self, requests: np.ndarray) -> None:
        result = self.runtime.submit(requests)
        assert result.handle is not None
        assert not self.runtime.wait(result.handle, FOREVER).status.any()

    def gate(self, value: int = 1) -> tr.Gate:
        return tr.Gate(self.memory, 3 * SIZE, value)

    def copy_out(self, stream: int, slot: int = 0) -> None:
        self.fake.copy(stream, self.copied.ctypes.data, self.buffer.address + slot * SIZE, SIZE)


@pytest.fixture
def bench(fake_cuda: FakeCuda, setup: Setup) -> Iterator[Bench]:
    bench = Bench(setup, fake_cuda)
    yield bench
    assert fake_cuda.current() is None  # whatever a test did: the caller's context is as it was


def submit(bench: Bench, direction: int, **options: object) -> int:
    result = bench.runtime.submit(bench.request(direction, 0), **options)
    assert result.handle is not None, result.errors
    return result.handle


@pytest.mark.parametrize("wrap", [int, Event, np.uint64], ids=lambda wrap: wrap.__name__)
def test_a_read_waits_for_an_event(bench: Bench, wrap: type) -> None:
    event = bench.fake.event()
    handle = submit(bench, tr.READ, after=wrap(event))
    bench.run(bench.request(tr.READ, 1))  # one that waits for nothing overtakes it
    assert not bench.runtime.poll(handle)
    assert not bench.buffer.bytes[:SIZE].any()
    bench.fake.set(event)
    assert not bench.runtime.wait(handle, FOREVER).status.any()
    assert (bench.buffer.bytes[:SIZE] == bench.data).all()


def test_a_failed_event_fails_the_batch_and_touches_no_memory(bench: Bench) -> None:
    event = bench.fake.event()
    handle = submit(bench, tr.READ, after=event, gate=bench.gate())
    bench.fake.set(event, 700)
    done = bench.runtime.wait(handle, FOREVER)
    assert done.status.tolist() == [errno.EIO]
    assert not bench.buffer.bytes[:SIZE].any()
    assert bench.words[:2].tolist() == [1, errno.EIO]


@pytest.mark.parametrize(
    ("after", "error", "word"),
    [
        (77777, OSError, "after=77777.*CUDA_ERROR_INVALID_HANDLE"),
        (0, ValueError, "after=0 .*recorded"),
        (Event(0), ValueError, "recorded"),
        (-1, ValueError, "after=-1"),
        ("event", TypeError, "after='event'"),
        (1.5, TypeError, "after=1.5"),
    ],
)
def test_what_is_no_event_is_refused_at_once(
    bench: Bench, after: object, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        bench.runtime.submit(bench.request(tr.READ, 0), after=after)
    assert bench.words[0] == 0


def test_the_event_object_lives_until_the_batch_has_begun(bench: Bench) -> None:
    event = Event(bench.fake.event())
    alive = weakref.ref(event)
    weakref.finalize(event, bench.fake.destroy, event.cuda_event)
    number = event.cuda_event
    handle = submit(bench, tr.READ, after=event)
    del event
    gc.collect()
    assert alive() is not None
    bench.fake.set(number)
    assert not bench.runtime.wait(handle, FOREVER).status.any()
    for _ in range(1000):  # the reference goes with a later call, once the progress thread has let go
        if alive() is None:
            break
        bench.run(bench.request(tr.READ, 1))
    assert alive() is None


def test_events_are_asked_while_another_thread_captures(bench: Bench) -> None:
    bench.fake.cuda.fake_cuda_set_capturing(1)
    try:
        event = bench.fake.event()
        handle = submit(bench, tr.READ, after=event)
        bench.fake.set(event)
        assert not bench.runtime.wait(handle, FOREVER).status.any()
    finally:
        bench.fake.cuda.fake_cuda_set_capturing(0)


@pytest.mark.parametrize("device", [0, 1])
def test_a_stream_copies_what_a_gate_lets_through(bench: Bench, device: int) -> None:
    stream = bench.fake.stream(device)
    cuda.stream_wait_gate(bench.runtime, Stream(stream), bench.gate())
    bench.copy_out(stream)
    event = bench.fake.event()
    handle = submit(bench, tr.READ, after=event, gate=bench.gate())
    assert not bench.fake.idle(stream, 0.0)
    bench.fake.set(event)
    assert bench.fake.idle(stream)
    assert (bench.copied == bench.data).all()
    assert bench.words[:2].tolist() == [1, 0]
    assert not bench.runtime.wait(handle, FOREVER).status.any()


def test_a_gate_that_is_open_already_holds_nothing_up(bench: Bench) -> None:
    handle = submit(bench, tr.READ, gate=bench.gate())
    bench.runtime.wait(handle, FOREVER)
    stream = bench.fake.stream()
    cuda.stream_wait_gate(bench.runtime, stream, bench.gate())
    assert bench.fake.idle(stream)


def hang(bench: Bench, **options: float) -> tuple[int, int]:
    """A stream that waits for a read that waits for an event that never comes."""
    stream = bench.fake.stream()
    handle = submit(bench, tr.READ, after=bench.fake.event(), gate=bench.gate(), **options)
    cuda.stream_wait_gate(bench.runtime, stream, bench.gate())
    return stream, handle


def test_a_deadline_opens_the_gate(bench: Bench) -> None:
    stream, handle = hang(bench, timeout=0.01)
    assert bench.fake.idle(stream)
    assert bench.words[:2].tolist() == [1, errno.ETIMEDOUT]
    assert bench.runtime.wait(handle, FOREVER).status.tolist() == [errno.ETIMEDOUT]


def test_cancelling_opens_the_gate(bench: Bench) -> None:
    stream, handle = hang(bench)
    bench.runtime.cancel(handle)
    assert bench.fake.idle(stream)
    assert bench.words[:2].tolist() == [1, errno.ECANCELED]


def test_shutdown_opens_the_gate(bench: Bench) -> None:
    stream, _ = hang(bench)
    bench.runtime.shutdown(0.01)
    assert bench.fake.idle(stream)
    assert bench.words[0] == 1
    assert bench.words[1] != 0
    assert bench.runtime.shutdown(FOREVER)


def test_a_failed_read_opens_the_gate_with_its_errno(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(4 * SIZE))
    buffer = Buffer(2 * SIZE)
    with tr.make_file_runtime(direct="off") as runtime:
        memory = runtime.register_memory(buffer.address, 2 * SIZE, kind="pinned_host")
        target = runtime.open(path.as_uri())
        path.write_bytes(b"")
        stream = fake_cuda.stream()
        gate = tr.Gate(memory, SIZE, 9)
        cuda.stream_wait_gate(runtime, stream, gate)
        result = runtime.submit(batch(request(tr.READ, memory, 0, target, 0, SIZE)), gate=gate)
        assert fake_cuda.idle(stream)
        assert buffer.bytes[SIZE:].view(np.uint64)[:2].tolist() == [9, errno.EIO]
        runtime.wait(result.handle, FOREVER)


def test_a_stream_says_when_a_write_may_begin(bench: Bench) -> None:
    stream = bench.fake.stream()
    release, filled = bench.gate(3), tr.WordDependency(bench.memory, 3 * SIZE + 64, 5)
    cuda.stream_wait_gate(bench.runtime, stream, release)
    bench.fake.copy(stream, bench.buffer.address, bench.data.ctypes.data, SIZE)
    cuda.stream_write_word(bench.runtime, stream, filled)
    written = bench.runtime.submit(bench.request(tr.WRITE, 0, place=2), after=filled)
    assert not bench.runtime.poll(written.handle)
    submit(bench, tr.READ, gate=release)  # opens the gate: the stream fills the slot and says so
    assert not bench.runtime.wait(written.handle, FOREVER).status.any()
    bench.run(bench.request(tr.READ, 1, place=2))
    assert (bench.buffer.bytes[SIZE : 2 * SIZE] == bench.data).all()


def test_a_ring_of_slots_runs_without_a_wait(bench: Bench) -> None:
    """Reads into two slots in turn, each when the stream has emptied it: 40 rounds, every byte right."""
    stream, rounds = bench.fake.stream(), 40
    out = np.zeros((rounds, SIZE), dtype=np.uint8)
    handles = []
    for i in range(rounds):
        slot, turn = i % 2, i // 2 + 1
        full = tr.Gate(bench.memory, 3 * SIZE + 128 * slot, turn)
        empty = 3 * SIZE + 128 * slot + 64
        result = bench.runtime.submit(
            bench.request(tr.READ, slot),
            gate=full,
            after=tr.WordDependency(bench.memory, empty, turn - 1),
        )
        handles.append(result.handle)
        cuda.stream_wait_gate(bench.runtime, stream, full)
        bench.fake.copy(stream, out[i].ctypes.data, bench.buffer.address + slot * SIZE, SIZE)
        cuda.stream_write_word(bench.runtime, stream, tr.WordDependency(bench.memory, empty, turn))
    assert bench.fake.idle(stream, FOREVER)
    assert (out == bench.data).all()
    for handle in handles:
        assert not bench.runtime.wait(handle, FOREVER).status.any()


def test_what_is_no_stream_is_refused(bench: Bench) -> None:
    for stream in ("0", None, 1.5):
        with pytest.raises(TypeError, match="stream="):
            cuda.stream_wait_gate(bench.runtime, stream, bench.gate())
    with pytest.raises(OSError, match="CUDA_ERROR_INVALID_HANDLE"):
        cuda.stream_wait_gate(bench.runtime, 4096, bench.gate())
    with pytest.raises(ValueError, match="offset=12"):
        cuda.stream_wait_gate(bench.runtime, bench.fake.stream(), tr.Gate(bench.memory, 12, 1))


def test_plain_host_memory_has_no_word_for_a_stream(bench: Bench) -> None:
    plain = Buffer(SIZE)
    memory = bench.runtime.register_memory(plain.address, SIZE)
    with pytest.raises(OSError, match="cuMemHostGetDevicePointer"):
        cuda.stream_wait_gate(bench.runtime, bench.fake.stream(), tr.Gate(memory, 0, 1))
