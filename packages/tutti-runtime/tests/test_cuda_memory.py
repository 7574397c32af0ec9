# SPDX-License-Identifier: Apache-2.0
"""Pinned and device memory: who pins, who unpins, and what is refused."""

from __future__ import annotations

import errno
import gc

import numpy as np
import pytest
from cuda_kit import FakeCuda
from runtime_kit import ALIGN, KIB, PAGE, Buffer, Setup, batch, request, run

import tutti_runtime as tr
from tutti_runtime import cuda

SIZE = 256 * KIB


def test_pinned_memory_is_pinned_while_it_is_registered(fake_cuda: FakeCuda, setup: Setup) -> None:
    before, contexts = fake_cuda.pinned, fake_cuda.contexts
    buffer = Buffer(SIZE)
    memory = setup.runtime.register_memory(buffer.address, SIZE, kind="pinned_host")
    assert fake_cuda.pinned == before + 1
    target = setup.target(SIZE)
    data = buffer.fill_random(1)
    assert not run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, 0, SIZE))).status.any()
    buffer.bytes[:] = 0
    assert not run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE))).status.any()
    assert (buffer.bytes == data).all()
    setup.runtime.unregister_memory(memory)
    assert (fake_cuda.pinned, fake_cuda.contexts) == (before, contexts)
    assert fake_cuda.current() is None


def test_shutdown_unpins(fake_cuda: FakeCuda) -> None:
    before = fake_cuda.pinned
    buffer = Buffer(SIZE)
    with tr.make_memory_runtime() as runtime:
        runtime.register_memory(buffer.address, SIZE, kind="pinned_host", device=1)
        assert fake_cuda.pinned == before + 1
    assert fake_cuda.pinned == before


def test_memory_that_is_pinned_already_is_left_as_it_is(fake_cuda: FakeCuda) -> None:
    with cuda.allocate_pinned(SIZE) as buffer, tr.make_memory_runtime() as runtime:
        before, ever = fake_cuda.pinned, fake_cuda.pinned_in_all
        memory = runtime.register_memory(buffer.address, SIZE, kind="pinned_host")
        runtime.unregister_memory(memory)
        assert (fake_cuda.pinned, fake_cuda.pinned_in_all) == (before, ever)


@pytest.mark.parametrize(
    ("result", "number", "name"),
    [(2, errno.ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY"), (700, errno.EIO, "CUDA_ERROR_ILLEGAL_ADDRESS")],
)
def test_a_refusal_to_pin_names_the_cuda_error(
    fake_cuda: FakeCuda, result: int, number: int, name: str
) -> None:
    buffer, contexts = Buffer(SIZE), fake_cuda.contexts
    fake_cuda.cuda.fake_cuda_refuse_register(result)
    try:
        with tr.make_memory_runtime() as runtime, pytest.raises(OSError, match=name) as caught:
            runtime.register_memory(buffer.address, SIZE, kind="pinned_host")
    finally:
        fake_cuda.cuda.fake_cuda_refuse_register(0)
    assert caught.value.errno == number
    assert f"({result})" in str(caught.value)
    assert fake_cuda.contexts == contexts


def test_memory_of_which_a_part_is_pinned_is_refused(fake_cuda: FakeCuda) -> None:
    buffer = Buffer(4 * ALIGN)
    with tr.make_memory_runtime() as runtime:
        runtime.register_memory(buffer.address + ALIGN, ALIGN, kind="pinned_host")
        with pytest.raises(OSError, match="cuMemHostRegister") as caught:
            runtime.register_memory(buffer.address, 4 * ALIGN, kind="pinned_host")
    assert caught.value.errno == errno.EEXIST


def test_device_memory_is_refused_by_host_paths_with_the_reason(fake_cuda: FakeCuda, setup: Setup) -> None:
    assert setup.runtime.caps()["memory_kinds"] == ["host", "pinned_host"]
    with pytest.raises(ValueError, match=r"kind='device' is not supported .*the CPU moves its bytes"):
        setup.runtime.register_memory(fake_cuda.malloc(SIZE), SIZE, kind="device")


@pytest.mark.parametrize("device", [-1, 2, 1.5, "0", True, 1 << 40])
def test_a_bad_device_names_its_value(fake_cuda: FakeCuda, device: object) -> None:
    buffer = Buffer(SIZE)
    with tr.make_memory_runtime() as runtime, pytest.raises(ValueError, match=f"device={device!r}"):
        runtime.register_memory(buffer.address, SIZE, kind="pinned_host", device=device)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"device={device!r}"):
        cuda.allocate_pinned(SIZE, device=device)  # type: ignore[arg-type]


def test_host_memory_has_no_device() -> None:
    buffer = Buffer(SIZE)
    with (
        tr.make_memory_runtime() as runtime,
        pytest.raises(ValueError, match=r"device=0 .* host memory has none"),
    ):
        runtime.register_memory(buffer.address, SIZE, device=0)


@pytest.mark.parametrize("size", [0, -PAGE, PAGE + 1, 1.5, True, "4096"])
def test_a_bad_size_of_pinned_memory_names_its_value(size: object) -> None:
    with pytest.raises(ValueError, match=f"size={size!r}"):
        cuda.allocate_pinned(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [PAGE, SIZE, 5 * 1024 * KIB])
def test_allocated_memory_is_aligned_zeroed_and_writable(fake_cuda: FakeCuda, size: int) -> None:
    before = fake_cuda.pinned
    with cuda.allocate_pinned(size, device=1) as buffer:
        assert buffer.address % ALIGN == 0
        assert (buffer.nbytes, buffer.device) == (size, 1)
        assert fake_cuda.pinned == before + 1
        view = np.asarray(buffer)
        assert view.shape == (size,)
        assert view.dtype == np.uint8
        assert int(view.ctypes.data) == buffer.address
        assert not view.any()
        view[:] = 7
        assert buffer.bytes[-1] == 7
        for word in (f"{buffer.address:#x}", f"nbytes={size}", "device=1", "numa_node=", "huge_pages="):
            assert word in repr(buffer)
    assert fake_cuda.pinned == before
    assert "closed" in repr(buffer)
    with pytest.raises(ValueError, match="closed"):
        buffer.bytes  # noqa: B018


def test_arrays_outlive_the_buffer_that_made_them(fake_cuda: FakeCuda) -> None:
    before = fake_cuda.pinned
    view = cuda.allocate_pinned(SIZE).bytes
    gc.collect()
    assert fake_cuda.pinned == before + 1
    view[:] = 3
    buffer = cuda.allocate_pinned(SIZE)
    other = buffer.bytes
    buffer.close()
    other[:] = 4  # mapped, no longer pinned
    assert fake_cuda.pinned == before + 1
    del view
    gc.collect()
    assert fake_cuda.pinned == before


def test_a_word_has_the_same_address_for_the_device(fake_cuda: FakeCuda) -> None:
    with cuda.allocate_pinned(SIZE) as buffer, tr.make_memory_runtime() as runtime:
        memory = runtime.register_memory(buffer.address, SIZE, kind="pinned_host")
        assert cuda.word_pointer(runtime, memory, 64) == buffer.address + 64
        for offset in (4, SIZE, SIZE - 4):
            with pytest.raises(ValueError, match=f"offset={offset}"):
                cuda.word_pointer(runtime, memory, offset)
        with pytest.raises(tr.InvalidHandleError):
            cuda.word_pointer(runtime, memory + 1, 0)
