# SPDX-License-Identifier: Apache-2.0
"""The kernel that submits, on a GPU: soft controllers have queues and doorbells in pinned memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda_kit import teams_driver
from gpu_kit import Driver, Gpu
from layer_kit import MIB, PAGE, LayerRig
from nvme_kit import SoftRig
from runtime_kit import Buffer

import tutti_runtime as tr
from tutti_runtime import _core, cuda

pytestmark = pytest.mark.gpu
COMMANDS = int(os.environ.get("TUTTI_NVME_COMMANDS", "200000"))

Rigs = Callable[..., LayerRig]


@pytest.fixture(scope="module")
def driver() -> Driver:
    return teams_driver()


@pytest.fixture
def gpu(driver: Driver) -> Iterator[Gpu]:
    made = Gpu(driver, 0)
    yield made
    made.close()


@pytest.fixture
def rigs(gpu: Gpu) -> Iterator[Rigs]:
    """Engines end before the memory of their windows goes."""
    made: list[LayerRig] = []

    def build(count: int = 1, drive: dict[str, Any] | None = None, **settings: Any) -> LayerRig:
        settings = {"execution": "cuda", "queue_entries": 64} | settings
        made.append(LayerRig(settings, {"device": gpu.ordinal} | (drive or {}), count))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.mark.parametrize("linger", [0.0, 0.002])
@pytest.mark.parametrize(
    "drive",
    [{}, {"mdts_bytes": 8192, "lba_bytes": 4096}, {"dma_granule": 65536, "sgl": True}, {"dma_granule": 4096}],
)
def test_bytes_go_to_device_memory_and_back(
    drive: dict[str, Any], linger: float, rigs: Rigs, gpu: Gpu
) -> None:
    count, length = 60, 64 * 1024
    size = count * length
    host, back = Buffer(size), Buffer(size)
    host.fill_random(7)
    first, second, stream = gpu.malloc(size), gpu.malloc(size), gpu.stream()
    gpu.copy_in(stream, first, host.address, size)
    assert gpu.idle(stream, 60)
    rig = rigs(2, drive, linger=linger, queues=3)
    layers = rig.layers
    source = layers.add_window(first, size, kind="device", device=gpu.ordinal)
    target = layers.add_window(second, size, kind="device", device=gpu.ordinal)
    write = layers.add_layer("write", rig.slices(source, count, length, lambda i: 29 - i))
    read = layers.add_layer("read", rig.slices(target, count, length, lambda i: 29 - i))
    for layer in (write, read, read):
        rig.run_well(layer)
    gpu.copy_out(stream, back.address, second, size)
    assert gpu.idle(stream, 60)
    assert np.array_equal(back.bytes, host.bytes)
    assert layers.counters()["strays"] == 0


def test_a_stream_that_waits_for_the_word_sees_the_bytes(rigs: Rigs, gpu: Gpu) -> None:
    """The order of bytes, statuses and the word, under load: nobody on the host waits in between."""
    count, length, rounds = 64, 16 * 1024, 100
    size = count * length
    host, back = Buffer(size), cuda.allocate_pinned(size, device=gpu.ordinal)
    device, stream = gpu.malloc(size), gpu.stream()
    rig = rigs(4, queues=2)
    layers = rig.layers
    source = layers.add_window(host.address, size)
    target = layers.add_window(device, size, kind="device", device=gpu.ordinal)
    write = layers.add_layer("write", rig.slices(source, count, length))
    read = layers.add_layer("read", rig.slices(target, count, length))
    # A driver may wait for the device when a stream first copies, and lets no drive in meanwhile.
    gpu.copy_out(stream, back.address, device, size)
    assert gpu.idle(stream, 60)
    for round_ in range(rounds):
        host.fill_random(round_)
        rig.run_well(write)
        ticket = layers.submit(read)
        _core.stream_wait_word(stream, layers.done_word(read), ticket)
        gpu.copy_out(stream, back.address, device, size)
        assert gpu.idle(stream, 60)
        assert layers.wait(ticket, 60)
        assert not layers.statuses(read).any(), rig.report(layers.statuses(read))
        assert np.array_equal(back.bytes[:size], host.bytes)
    statuses = Buffer(4096)
    gpu.copy_out(stream, statuses.address, layers.device_statuses(read), 4 * count)
    assert gpu.idle(stream, 60)
    assert (statuses.bytes[: 4 * count] == 0).all()


def test_a_batch_by_the_device_moves_its_memory(gpu: Gpu) -> None:
    """``submit(execution="device")``: two drives, their memory on the GPU, and teams as warps to the end."""
    count, length = 32, 64 * 1024
    size = count * length
    host, back = Buffer(size), Buffer(size)
    host.fill_random(11)
    first, second, stream = gpu.malloc(size), gpu.malloc(size), gpu.stream()
    gpu.copy_in(stream, first, host.address, size)
    assert gpu.idle(stream, 60)
    rig = SoftRig({"device": gpu.ordinal}, {"device_executor": "cuda", "device": gpu.ordinal}, 2, "device")
    assert rig.runtime.caps()["device_execution"] is True
    source, sink = (
        rig.runtime.register_memory(address, size, kind="device", device=gpu.ordinal)
        for address in (first, second)
    )
    targets = [rig.runtime.open(f"nvme://disk{i}/1") for i in range(2)]
    for direction, memory in ((tr.WRITE, source), (tr.READ, sink), (tr.READ, sink)):
        for i, target in enumerate(targets):
            done = rig.move(direction, memory, target, count=count // 2, length=length, offset=i * size // 2)
            assert not done.status.any(), (done.status, rig.runtime.caps()["stepped_down"])
    assert rig.runtime.stats()["step_downs"] == 0
    rig.close()
    gpu.copy_out(stream, back.address, second, size)
    assert gpu.idle(stream, 60)
    assert np.array_equal(back.bytes, host.bytes)


def test_many_commands(rigs: Rigs) -> None:
    """TUTTI_NVME_COMMANDS=10000000 for the long run."""
    rig = rigs(4, queues=4, queue_entries=256)
    buffer = Buffer(16 * MIB)
    count = 16384
    window = rig.layers.add_window(buffer.address, 16 * MIB)
    layer = rig.layers.add_layer("read", rig.slices(window, count, 512))
    for _ in range(-(-COMMANDS // count)):
        rig.run_well(layer)
    counters = rig.layers.counters()
    assert counters["commands"] >= COMMANDS
    assert counters["strays"] == counters["remade"] == counters["resets"] == 0


def idle_engine(rig: LayerRig) -> int:
    """One that reads into memory of the host.

    A soft controller asks the driver to copy to a GPU, and the driver lets nobody in while somebody waits for
    the device. A drive needs no driver.
    """
    buffer = Buffer(MIB)
    window = rig.layers.add_window(buffer.address, MIB)
    rig.kept.append(buffer)
    layer = rig.layers.add_layer("read", rig.slices(window, MIB // PAGE, PAGE))
    rig.run_well(layer)
    return layer


def pin_and_unpin(gpu: Gpu) -> None:
    with cuda.allocate_pinned(MIB, device=gpu.ordinal):
        pass


def test_what_waits_for_the_whole_device_ends_beside_an_idle_engine(rigs: Rigs, gpu: Gpu) -> None:
    rig = rigs(2)
    layer = idle_engine(rig)
    for _ in range(3):
        gpu.wait_for_everything()
        pin_and_unpin(gpu)
        gpu.free(gpu.malloc(MIB))
        rig.run_well(layer)


def test_what_waits_for_the_whole_device_ends_beside_a_loaded_engine(rigs: Rigs, gpu: Gpu) -> None:
    rig = rigs(2, linger=1.0, stay=0.02)
    layer = idle_engine(rig)
    stopping = threading.Event()

    def keep_busy() -> None:
        while not stopping.is_set():
            rig.run(layer)

    worker = threading.Thread(target=keep_busy)
    worker.start()
    try:
        for _ in range(3):
            gpu.wait_for_everything()
            pin_and_unpin(gpu)
            gpu.free(gpu.malloc(MIB))
    finally:
        stopping.set()
        worker.join()
    rig.run_well(layer)


FAULTS: dict[str, tuple[dict[str, Any], int | None]] = {
    "drop_completion": ({}, errno.ETIMEDOUT),
    "wrong_phase": ({}, errno.ETIMEDOUT),
    "bad_head": ({}, errno.ETIMEDOUT),
    "stuck": ({}, errno.ETIMEDOUT),
    "ignore_doorbell": ({}, None),
    "status": ({"status": 0x281}, errno.ENODATA),
    "fatal": ({}, errno.EIO),
    "reset": ({}, errno.EIO),
    "unplug": ({}, errno.ENODEV),
    "late_completion": ({"delay": 0.02}, 0),
    "stray_completion": ({}, 0),
}


@pytest.mark.parametrize("linger", [0.0, 0.002])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_in_time_and_the_next_layer_works(
    fault: str, linger: float, rigs: Rigs, gpu: Gpu
) -> None:
    rule, wanted = FAULTS[fault]
    count = 200
    size = count * PAGE
    host, back = Buffer(size), Buffer(size)
    host.fill_random(1)
    device, stream = gpu.malloc(size), gpu.stream()
    rig = rigs(linger=linger, command_timeout=0.5, retry_after=0.0, window_commands=64)
    source = rig.layers.add_window(host.address, size)
    target = rig.layers.add_window(device, size, kind="device", device=gpu.ordinal)
    rig.run_well(rig.layers.add_layer("write", rig.slices(source, count, PAGE)))
    read = rig.layers.add_layer("read", rig.slices(target, count, PAGE))
    rig.controls[0].fail(fault, **({} if fault == "ignore_doorbell" else {"skip": 70}), **rule)
    statuses = rig.run(read)
    if wanted is not None:
        assert (statuses == 0).all() if wanted == 0 else wanted in statuses
    rig.controls[0].heal()
    for _ in range(1000):  # an unplugged controller needs a moment to come back
        again = rig.run(read)
        if (again == 0).all():
            break
    assert (again == 0).all()
    gpu.copy_out(stream, back.address, device, size)
    assert gpu.idle(stream, 60)
    assert np.array_equal(back.bytes, host.bytes)
