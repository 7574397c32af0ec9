# SPDX-License-Identifier: Apache-2.0
"""What a device may touch, and how long: told without one."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the device's mover needs torch")
pytest.importorskip("tutti_kv_kernels", reason="the device's mover needs tutti-kv-kernels")

import torch

from tutti_engine import ExecutionSettings, Geometry
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.errors import DeviceError
from tutti_engine.execution.executor import Executor
from tutti_engine.movers import device
from tutti_engine.testing.window import HostWindow

GEOMETRY = Geometry(num_layers=1, block_tokens=16, blocks_per_chunk=1, page_bytes=4096)
SETTINGS = ExecutionSettings(load_bank_bytes=8192, store_bank_bytes=8192)


class Cuda:
    """Remembers what is pinned, as CUDA does."""

    def __init__(self):
        self.pinned = {}
        self.full = False

    def cudaHostRegister(self, address, nbytes, flags):
        if self.full or address in self.pinned:
            return 712
        self.pinned[address] = nbytes
        return 0

    def cudaHostUnregister(self, address):
        del self.pinned[address]
        return 0


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(device, "_Side", lambda *args, gather: SimpleNamespace(gather=gather))
    return made


@pytest.fixture
def mover():
    return device.DeviceMover(SimpleNamespace(storages=[SimpleNamespace(device="a device")]))


def window():
    return HostWindow(4, 4096)


def backend():
    return MemoryBackend(num_layers=1, segment_bytes=GEOMETRY.segment_bytes, num_chunks=2)


def test_a_window_is_pinned_until_it_is_let_go(cuda, mover):
    mover.bind(window())
    assert len(cuda.pinned) == 1
    mover.unbind()
    mover.unbind()
    assert not cuda.pinned


def test_the_next_window_takes_the_place_of_the_last_one(cuda, mover):
    windows = window(), window()
    for each in windows:
        mover.bind(each)
    assert list(cuda.pinned) == [windows[1].address]


def test_memory_that_cannot_be_pinned_is_named(cuda, mover):
    cuda.full = True
    with pytest.raises(DeviceError, match="712"):
        mover.bind(window())
    mover.unbind()


def test_a_device_without_room_for_transfers_leaves_nothing_pinned(cuda, mover, monkeypatch):
    def full(*args, gather):
        if gather:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(device, "_Side", full)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            Executor(GEOMETRY, backend(), mover, SETTINGS)
        assert not cuda.pinned


def test_an_executor_without_threads_leaves_nothing_pinned(cuda, mover, monkeypatch):
    def none(*args, **options):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tutti_engine.execution.executor.StorePipeline", none)
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread"):
            Executor(GEOMETRY, backend(), mover, SETTINGS)
        assert not cuda.pinned
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


def test_a_copy_that_cannot_be_waited_for_is_waited_for_where_it_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    happened = []
    side = object.__new__(device._Side)
    side.stream = SimpleNamespace(
        wait_event=lambda mark: happened.append(mark), synchronize=lambda: happened.append("synchronized")
    )
    with side.behind("first"):
        happened.append("a copy")
    with pytest.raises(RuntimeError, match="no event"), side.behind("second"):
        happened.append("a copy")
        raise RuntimeError("no event")
    assert happened == ["first", "a copy", "second", "a copy", "synchronized"]
