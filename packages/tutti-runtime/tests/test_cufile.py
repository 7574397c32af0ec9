# SPDX-License-Identifier: Apache-2.0
"""The cufile data path, against a cuFile of our own."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_kit import FakeCuda, FakeCufile
from runtime_kit import KIB, Buffer, batch, request, run

import tutti_runtime as tr

SIZE = 256 * KIB


@pytest.fixture
def runtime(fake_cuda: FakeCuda, fake_cufile: FakeCufile) -> Iterator[tr.Runtime]:
    before = fake_cufile.handles, fake_cufile.buffers
    with tr.make_file_runtime(data_path="cufile", direct="off", cufile_library=fake_cuda.cufile_path) as made:
        yield made
    assert (fake_cufile.handles, fake_cufile.buffers) == before
    assert fake_cufile.calls_without_context == 0
    assert fake_cuda.current() is None


@pytest.fixture
def target(runtime: tr.Runtime, tmp_path: Path) -> int:
    return runtime.open(make_file(tmp_path).as_uri())


def make_file(folder: Path) -> Path:
    path = folder / "target"
    path.write_bytes(bytes(SIZE))
    return path


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class DeviceBuffer:
    """Device memory of the fake driver, which the CPU can look into."""

    def __init__(self, fake: FakeCuda, device: int = 0) -> None:
        self.address = fake.malloc(SIZE, device)
        self.bytes = np.frombuffer((ctypes.c_uint8 * SIZE).from_address(self.address), dtype=np.uint8)


@pytest.mark.parametrize("device", [0, 1])
def test_device_memory_makes_the_round_trip(
    fake_cuda: FakeCuda, fake_cufile: FakeCufile, runtime: tr.Runtime, target: int, device: int
) -> None:
    buffer = DeviceBuffer(fake_cuda, device)
    memory = runtime.register_memory(buffer.address, SIZE, kind="device")
    assert fake_cufile.buffers == 1
    data = np.random.default_rng(3).integers(0, 256, SIZE, dtype=np.uint8)
    buffer.bytes[:] = data
    parts = [(i * SIZE // 8, SIZE // 8) for i in range(8)]
    assert not run(
        runtime, batch(*(request(tr.WRITE, memory, at, target, at, size) for at, size in parts))
    ).status.any()
    assert not run(runtime, batch((tr.FLUSH, 0, 0, 0, target, 0, 0))).status.any()
    buffer.bytes[:] = 0
    # the second half of the file into the first half of the memory, and the other way round
    turned = [request(tr.READ, memory, (at + SIZE // 2) % SIZE, target, at, size) for at, size in parts]
    assert not run(runtime, batch(*turned)).status.any()
    assert (np.roll(buffer.bytes, SIZE // 2) == data).all()
    runtime.unregister_memory(memory)
    assert fake_cufile.buffers == 0


@pytest.mark.parametrize("kind", ["host", "pinned_host"])
def test_host_memory_works_too(fake_cufile: FakeCufile, runtime: tr.Runtime, target: int, kind: str) -> None:
    buffer = Buffer(SIZE)
    memory = runtime.register_memory(buffer.address, SIZE, kind=kind)
    assert fake_cufile.buffers == (kind == "pinned_host")
    data = buffer.fill_random(4)
    run(runtime, batch(request(tr.WRITE, memory, 0, target, 0, SIZE)))
    buffer.bytes[:] = 0
    run(runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE)))
    assert (buffer.bytes == data).all()


def test_caps_say_what_it_is(fake_cuda: FakeCuda, runtime: tr.Runtime) -> None:
    caps = runtime.caps()
    assert caps["data_path"] == "cufile"
    assert caps["memory_kinds"] == ["host", "pinned_host", "device"]
    assert caps["features_used"]["library"] == f"{fake_cuda.cufile_path}, version 1150"
    assert "registered_buffers" in caps["features_unused"]
    runtime.register_memory(DeviceBuffer(fake_cuda).address, SIZE, kind="device")
    assert "registered_buffers" in runtime.caps()["features_used"]


def test_memory_of_another_kind_or_device_is_refused(fake_cuda: FakeCuda, runtime: tr.Runtime) -> None:
    plain, device = Buffer(SIZE), DeviceBuffer(fake_cuda, 1)
    with pytest.raises(ValueError, match="not memory of one CUDA device"):
        runtime.register_memory(plain.address, SIZE, kind="device")
    with pytest.raises(ValueError, match="not memory of CUDA device 0"):
        runtime.register_memory(device.address, SIZE, kind="device", device=0)
    with pytest.raises(ValueError, match="part of this range"):
        runtime.register_memory(device.address, 2 * SIZE, kind="device")


def test_words_are_in_host_memory_only(fake_cuda: FakeCuda, runtime: tr.Runtime, target: int) -> None:
    memory = runtime.register_memory(DeviceBuffer(fake_cuda).address, SIZE, kind="device")
    rows = batch(request(tr.READ, memory, 0, target, 0, 4096))
    for options in ({"after": tr.WordDependency(memory, 0, 1)}, {"gate": tr.Gate(memory, 0, 1)}):
        with pytest.raises(ValueError, match="device memory"):
            runtime.submit(rows, **options)


def test_a_buffer_that_cufile_does_not_register_is_used_unregistered(
    fake_cuda: FakeCuda, fake_cufile: FakeCufile, runtime: tr.Runtime, target: int
) -> None:
    fake_cufile.refuse_buffers(5036)
    memory = runtime.register_memory(DeviceBuffer(fake_cuda).address, SIZE, kind="device")
    assert not run(runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE))).status.any()
    assert "5036" in runtime.caps()["features_unused"]["registered_buffers"]


@pytest.mark.parametrize(
    ("code", "cuda", "number"),
    [(5027, 0, errno.EBADF), (5008, 0, errno.ENOTSUP), (5011, 2, errno.ENOMEM), (5031, 0, errno.EMFILE)],
)
def test_a_file_that_cufile_refuses_leaks_nothing(
    fake_cufile: FakeCufile, runtime: tr.Runtime, tmp_path: Path, code: int, cuda: int, number: int
) -> None:
    path = make_file(tmp_path)
    before = open_descriptors()
    fake_cufile.refuse_handles(code, cuda)
    with pytest.raises(OSError, match=f"cuFileHandleRegister: cuFile error {code}") as caught:
        runtime.open(path.as_uri())
    assert caught.value.errno == number
    assert caught.value.filename == str(path)
    assert open_descriptors() == before
    fake_cufile.heal()
    runtime.close(runtime.open(path.as_uri()))
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("result", "saved", "number"),
    [
        (-1, errno.ENOSPC, errno.ENOSPC),
        (-1, 0, errno.EIO),
        (-5001, 0, errno.ENODEV),
        (-5012, 0, errno.EINVAL),
        (-5025, 0, errno.EACCES),
        (-5044, 0, errno.EIO),
        (-7, 0, errno.EIO),
        (-(1 << 30), 0, errno.EIO),
    ],
)
def test_an_error_of_a_transfer_is_the_items(
    fake_cuda: FakeCuda,
    fake_cufile: FakeCufile,
    runtime: tr.Runtime,
    target: int,
    result: int,
    saved: int,
    number: int,
) -> None:
    memory = runtime.register_memory(DeviceBuffer(fake_cuda).address, SIZE, kind="device")
    fake_cufile.answer(result, saved)
    for direction in (tr.READ, tr.WRITE):
        done = run(runtime, batch(request(direction, memory, 0, target, 0, SIZE)))
        assert done.status.tolist() == [number]
        assert done.bytes.tolist() == [0]
    fake_cufile.heal()
    assert not run(runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE))).status.any()


def test_partial_transfers_are_continued_and_an_early_end_is_a_failure(
    fake_cuda: FakeCuda, fake_cufile: FakeCufile, runtime: tr.Runtime, tmp_path: Path
) -> None:
    path = make_file(tmp_path)
    data = np.random.default_rng(6).integers(0, 256, SIZE, dtype=np.uint8)
    path.write_bytes(data.tobytes())
    target = runtime.open(path.as_uri())
    buffer = DeviceBuffer(fake_cuda)
    memory = runtime.register_memory(buffer.address, SIZE, kind="device")
    fake_cufile.most_bytes(5000)
    done = run(runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE)))
    assert (done.status[0], done.bytes[0]) == (0, SIZE)
    assert (buffer.bytes == data).all()
    os.truncate(path, SIZE // 2)
    done = run(runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE)))
    assert (done.status[0], done.bytes[0]) == (errno.EIO, SIZE // 2)


def test_the_library_setting_is_checked(fake_cuda: FakeCuda) -> None:
    for value in (7, "relative/libcufile.so.0", "nul\0"):
        with pytest.raises(ValueError, match="cufile_library="):
            tr.make_file_runtime(data_path="cufile", cufile_library=value)  # type: ignore[arg-type]
