# SPDX-License-Identifier: Apache-2.0
"""Batches in the order of a CUDA stream, against a driver and a cuFile of our own."""

from __future__ import annotations

import ctypes
import errno
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_kit import FakeCuda, FakeCufile
from runtime_kit import KIB, Buffer, batch, request

import tutti_runtime as tr
from tutti_runtime import cuda

SIZE = 256 * KIB
PART = 32 * KIB
FOREVER = 60.0
ILLEGAL_ADDRESS = 700
OUT_OF_MEMORY = 2


class Bench:
    """A cufile runtime, a file, memory of device 1 and words in pinned memory that hold a stream up."""

    def __init__(self, fake: FakeCuda, cufile: FakeCufile, folder: Path) -> None:
        self.fake, self.cufile = fake, cufile
        self.path = folder / "target"
        self.path.write_bytes(bytes(SIZE))
        self.runtime = tr.make_file_runtime(data_path="cufile", direct="off", cufile_library=fake.cufile_path)
        self.target = self.runtime.open(self.path.as_uri())
        self.address = fake.malloc(SIZE, 1)
        self.bytes = np.frombuffer((ctypes.c_uint8 * SIZE).from_address(self.address), dtype=np.uint8)
        self.memory = self.runtime.register_memory(self.address, SIZE, kind="device")
        self.words_memory = Buffer(64 * KIB)
        self.words = self.words_memory.bytes.view(np.uint64)
        self.words[:] = 0
        self.pinned = self.runtime.register_memory(self.words_memory.address, 64 * KIB, kind="pinned_host")
        self.stream = fake.stream(1)

    def parts(self, direction: int) -> Any:
        return batch(
            *(request(direction, self.memory, at, self.target, at, PART) for at in range(0, SIZE, PART))
        )

    def submit(self, direction: int, **options: Any) -> int:
        result = self.runtime.submit(self.parts(direction), stream=self.stream, **options)
        assert result.accepted.all()
        return int(result.handle or 0)

    def hold(self) -> None:
        """Let the stream wait for the first word to become 1."""
        cuda.stream_wait_gate(self.runtime, self.stream, tr.Gate(self.pinned, 0, 1))

    def let_go(self) -> None:
        self.words[0] = 1

    def file(self) -> Any:
        return np.fromfile(self.path, dtype=np.uint8)


@pytest.fixture
def bench(fake_cuda: FakeCuda, fake_cufile: FakeCufile, tmp_path: Path) -> Iterator[Bench]:
    before = fake_cuda.events_made
    made = Bench(fake_cuda, fake_cufile, tmp_path)
    try:
        yield made
    finally:
        made.let_go()
        fake_cuda.record()
        fake_cufile.heal()
        assert made.runtime.shutdown(FOREVER)
    del made.runtime
    gc.collect()
    assert fake_cuda.events_made == before
    assert fake_cufile.calls_without_context == 0
    assert fake_cuda.current() is None


def test_a_write_takes_what_the_stream_wrote_before_it_and_a_read_gives_to_what_comes_after(
    bench: Bench,
) -> None:
    data = np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)
    source, sink = Buffer(SIZE), Buffer(SIZE)
    source.bytes[:] = data

    bench.hold()
    bench.fake.copy(bench.stream, bench.address, source.address, SIZE)
    write = bench.submit(tr.WRITE)
    bench.fake.copy(bench.stream, bench.address, sink.address, SIZE)  # zeros over it, behind the write
    read = bench.submit(tr.READ)
    bench.fake.copy(bench.stream, sink.address, bench.address, SIZE)
    assert not bench.runtime.poll(write)
    assert not bench.file().any()
    bench.let_go()

    for handle in (write, read):
        done = bench.runtime.wait(handle, FOREVER)
        assert not done.status.any()
        assert (done.bytes == PART).all()
    assert bench.fake.idle(bench.stream)
    assert (bench.file() == data).all()
    assert (sink.bytes == data).all()


def test_the_caller_is_not_held_up_by_the_stream(bench: Bench) -> None:
    bench.hold()
    handle = bench.submit(tr.READ)
    with pytest.raises(TimeoutError):
        bench.runtime.wait(handle, 0.0)
    bench.let_go()
    assert not bench.runtime.wait(handle, FOREVER).status.any()


def test_a_gate_opens_and_the_eventfd_tells(bench: Bench) -> None:
    gate = tr.Gate(bench.pinned, 64, 7)
    handle = bench.submit(tr.READ, gate=gate)
    assert not bench.runtime.wait(handle, FOREVER).status.any()
    assert bench.words[8] == 7
    assert bench.words[9] == 0


def test_a_deadline_makes_what_the_stream_holds_late(bench: Bench) -> None:
    bench.hold()
    handle = bench.submit(tr.READ, timeout=0.01)
    done = bench.runtime.wait(handle, FOREVER)
    assert (done.status == errno.ETIMEDOUT).all()
    assert done.late.all()
    with pytest.raises(tr.BusyError):
        bench.runtime.unregister_memory(bench.memory)
    bench.let_go()
    assert not bench.runtime.wait(done.late_handle, FOREVER).status.any()
    bench.runtime.unregister_memory(bench.memory)


@pytest.mark.parametrize(("answer", "code"), [(-5027, errno.EBADF), (-1, errno.EIO)])
def test_an_error_of_the_transfer_is_the_item_s(bench: Bench, answer: int, code: int) -> None:
    bench.cufile.answer(answer)
    done = bench.runtime.wait(bench.submit(tr.READ), FOREVER)
    assert (done.status == code).all()
    assert not done.bytes.any()
    bench.cufile.heal()
    assert not bench.runtime.wait(bench.submit(tr.READ), FOREVER).status.any()


def test_a_short_transfer_is_a_failure_with_its_bytes(bench: Bench) -> None:
    bench.cufile.most_bytes(4096)
    done = bench.runtime.wait(bench.submit(tr.WRITE), FOREVER)
    assert (done.status == errno.EIO).all()
    assert (done.bytes == 4096).all()


def test_a_stream_whose_context_failed_fails_the_items_and_no_bytes_count(bench: Bench) -> None:
    bench.fake.record(then=ILLEGAL_ADDRESS)
    done = bench.runtime.wait(bench.submit(tr.READ), FOREVER)
    assert (done.status == errno.EIO).all()
    assert not done.bytes.any()


def test_an_event_that_cannot_be_recorded_fails_the_items_and_what_cufile_writes_to_stays(
    bench: Bench,
) -> None:
    bench.hold()
    bench.fake.record(OUT_OF_MEMORY)
    done = bench.runtime.wait(bench.submit(tr.READ), FOREVER)
    assert (done.status == errno.ENOMEM).all()
    assert not done.bytes.any()
    bench.fake.record()
    bench.let_go()  # the transfers run now, into records that nobody asks for any more
    assert bench.fake.idle(bench.stream)
    assert not bench.runtime.wait(bench.submit(tr.READ), FOREVER).status.any()


def test_what_is_no_stream_is_refused_and_nothing_is_started(bench: Bench) -> None:
    for stream, error in ((12345, OSError), ("s", TypeError), (-1, ValueError)):
        with pytest.raises(error):
            bench.runtime.submit(bench.parts(tr.READ), stream=stream)
    assert bench.runtime.stats()["submitted"] == 0


def test_a_stream_and_an_after_contradict_each_other(bench: Bench) -> None:
    with pytest.raises(ValueError, match="stream and after are both given"):
        bench.runtime.submit(
            bench.parts(tr.READ), stream=bench.stream, after=tr.WordDependency(bench.pinned, 0, 1)
        )


def test_a_captured_stream_is_refused(bench: Bench) -> None:
    bench.fake.cuda.fake_cuda_set_capturing(1)
    try:
        with pytest.raises(ValueError, match="captured into a graph"):
            bench.runtime.submit(bench.parts(tr.READ), stream=bench.stream)
    finally:
        bench.fake.cuda.fake_cuda_set_capturing(0)


def test_a_flush_is_rejected_on_a_stream(bench: Bench) -> None:
    rows = batch(
        (tr.FLUSH, 0, 0, 0, bench.target, 0, 0), request(tr.READ, bench.memory, 0, bench.target, 0, PART)
    )
    result = bench.runtime.submit(rows, stream=bench.stream)
    assert result.errors.tolist() == [errno.ENOTSUP, 0]
    assert not bench.runtime.wait(result.handle or 0, FOREVER).status.any()


def test_striped_targets_run_on_a_stream_too(bench: Bench, tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("a", "b")]
    for root in roots:
        root.mkdir()
        (root / "striped").write_bytes(bytes(SIZE // 2))
    joined = ",".join(map(str, roots))
    target = bench.runtime.open(f"striped://striped?roots={joined}&unit=4096")
    data = np.random.default_rng(2).integers(0, 256, SIZE, dtype=np.uint8)
    bench.bytes[:] = data
    for direction in (tr.WRITE, tr.READ):
        rows = batch(request(direction, bench.memory, 0, target, 0, SIZE))
        done = bench.runtime.wait(bench.runtime.submit(rows, stream=bench.stream).handle or 0, FOREVER)
        assert not done.status.any()
        if direction == tr.WRITE:
            bench.bytes[:] = 0
    assert (bench.bytes == data).all()


def test_batches_of_the_runtime_s_own_order_go_on_beside_a_stream_that_waits(bench: Bench) -> None:
    bench.hold()
    held = bench.submit(tr.READ)
    for _ in range(3):
        free = bench.runtime.submit(bench.parts(tr.READ))
        assert not bench.runtime.wait(free.handle or 0, FOREVER).status.any()
    assert not bench.runtime.poll(held)
    bench.let_go()
    assert not bench.runtime.wait(held, FOREVER).status.any()


@pytest.mark.parametrize("direction", [tr.READ, tr.WRITE])
def test_batches_of_the_runtime_s_own_order_go_on_after_those_of_a_stream(
    bench: Bench, direction: int
) -> None:
    # Only what the scheduler let begin may be taken off its counts when it ends.
    for _ in range(3):
        assert not bench.runtime.wait(bench.submit(direction), FOREVER).status.any()
    free = bench.runtime.submit(bench.parts(direction), timeout=FOREVER / 2)
    assert not bench.runtime.wait(free.handle or 0, FOREVER).status.any()


def test_shutdown_waits_for_what_is_on_a_stream(bench: Bench) -> None:
    bench.hold()
    bench.submit(tr.READ)
    assert not bench.runtime.shutdown(0.05)
    timer = threading.Timer(0.05, bench.let_go)
    timer.start()
    assert bench.runtime.shutdown(FOREVER)
    timer.join()


def test_many_streams_and_threads_end_with_every_byte_right(bench: Bench) -> None:
    streams = [bench.fake.stream(1) for _ in range(4)]
    data = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)
    bench.path.write_bytes(data.tobytes())
    failures: list[object] = []

    def one(number: int) -> None:
        part = SIZE // len(streams)
        rows = batch(
            *(
                request(tr.READ, bench.memory, at, bench.target, at, 4096)
                for at in range(number * part, (number + 1) * part, 4096)
            )
        )
        for _ in range(50):
            result = bench.runtime.submit(rows, stream=streams[number])
            done = bench.runtime.wait(result.handle or 0, FOREVER)
            if done.status.any():
                failures.append(done.status)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (bench.bytes == data).all()


@pytest.mark.parametrize("data_path", ["uring", "posix", "auto"])
def test_other_data_paths_say_that_they_take_no_stream(
    fake_cuda: FakeCuda, tmp_path: Path, data_path: str
) -> None:
    with tr.make_file_runtime(data_path=data_path) as runtime:
        assert runtime.caps()["stream_ordered"] is False
        with pytest.raises(ValueError, match="takes no stream"):
            runtime.submit(np.zeros(0, tr.REQUEST_DTYPE), stream=fake_cuda.stream())


def test_auto_says_why_cufile_is_not_its_choice() -> None:
    with tr.make_file_runtime(data_path="auto") as runtime:
        assert "cufile is used only where it is asked for" in runtime.caps()["chosen_because"]
