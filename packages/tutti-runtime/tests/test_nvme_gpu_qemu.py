# SPDX-License-Identifier: Apache-2.0
"""The kernel that submits, on a GPU, against QEMU's model of a drive, which nobody here wrote.

Queues and doorbells are pinned memory that the GPU and QEMU share; data is too, for QEMU reaches no GPU.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_kit import teams_driver
from gpu_kit import Driver, Gpu
from numpy.typing import NDArray
from nvme_lab.drives import Drive, FailAt, make_image
from nvme_lab.machine import MIB, Machine, machine_of
from nvme_lab.trace import IO_COMMAND
from nvme_lab.windows import machine_window
from runtime_kit import KIB, PAGE, Buffer, batch, request

import tutti_runtime as tr
from tutti_runtime import _core
from tutti_runtime.nvme_layers import NvmeLayers

pytestmark = pytest.mark.gpu
WINDOW = 8 * MIB
DRIVE = 32 * MIB
FOREVER = 60.0
CPU_QUEUE = 1  # the drive's own is made before those of its teams
MEDIA_ERROR = ("pci_nvme_err_req_status", "pci_nvme_err_aio")

Memory = NDArray[np.uint8]
Layers = Callable[..., NvmeLayers]


@pytest.fixture(scope="module")
def driver() -> Driver:
    return teams_driver()


@pytest.fixture
def gpu(driver: Driver) -> Iterator[Gpu]:
    made = Gpu(driver, 0)
    yield made
    made.close()


@pytest.fixture
def window_of(gpu: Gpu) -> Iterator[Callable[[Machine], Memory]]:
    """The machine's window, pinned: copies from and to the GPU go on beside a kernel."""
    made: list[Memory] = []

    def build(machine: Machine) -> Memory:
        made.append(machine_window(machine, WINDOW))
        gpu.pin(int(made[-1].ctypes.data), WINDOW)
        return made[-1]

    yield build
    for window in made:
        gpu.unpin(int(window.ctypes.data))


def drives_of(folder: Path, count: int = 1, **more: object) -> list[Drive]:
    return [
        Drive(make_image(folder / f"drive{number}", DRIVE), f"G{number}", **more)  # type: ignore[arg-type]
        for number in range(count)
    ]


def specs(machine: Machine, gpu: Gpu) -> list[dict[str, object]]:
    made = machine.specs(relay=True, device=gpu.ordinal)
    return [spec | {"name": f"d{number}"} for number, spec in enumerate(made)]


def layers_of(machine: Machine, gpu: Gpu, window: Memory, **settings: object) -> NvmeLayers:
    """Window 0 is ``window``, and place 0 of each drive is all of it."""
    settings = {"queue_entries": 16, "execution": "cuda", "device": gpu.ordinal} | settings
    layers = NvmeLayers(controllers=specs(machine, gpu), **settings)
    assert layers.add_window(int(window.ctypes.data), WINDOW, "pinned_host") == 0
    for number, drive in enumerate(machine.drives):
        assert layers.add_place(number, 1, [(0, 0, DRIVE // drive.lba_bytes)]) == 0
    return layers


def run(layers: NvmeLayers, layer: int) -> NDArray[np.int32]:
    assert layers.wait(layers.submit(layer), FOREVER)
    return layers.statuses(layer)


def random_bytes(seed: int) -> Memory:
    return np.random.default_rng(seed).integers(0, 256, WINDOW, dtype=np.uint8)


class Places:
    """Pieces of a window in random order on drives, not aligned to any transfer's limit."""

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        cuts = np.unique(random.integers(1, WINDOW // PAGE, 60)) * PAGE
        self.begins = np.concatenate(([0], cuts))
        self.lengths = np.diff(np.concatenate((self.begins, [WINDOW])))
        self.drives = random.integers(0, count, len(self.begins))
        shifted = np.roll(self.begins, 7)  # no two pieces of one drive overlap: each has the room of another
        self.offsets = np.where(np.roll(self.lengths, 7) >= self.lengths, shifted, WINDOW + self.begins)
        self.order = random.permutation(len(self.begins))

    def images(self, count: int, content: Memory) -> list[Memory]:
        """What the drives hold after ``content`` was written to drives of zeros."""
        made = [np.zeros(DRIVE, np.uint8) for _ in range(count)]
        for begin, length, drive, offset in zip(self.begins, self.lengths, self.drives, self.offsets):
            made[drive][offset : offset + length] = content[begin : begin + length]
        return made

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Of (drive, offset there, offset in the window, length)."""
        columns = (self.drives, self.offsets, self.begins, self.lengths)
        return [tuple(int(column[i]) for column in columns) for i in self.order]  # type: ignore[misc]


class OnGpu:
    """Random bytes that come from a GPU's memory, and room there for what comes back."""

    def __init__(self, gpu: Gpu, seed: int) -> None:
        self.gpu, self.stream = gpu, gpu.stream()
        self.source, self.sink = gpu.malloc(WINDOW), gpu.malloc(WINDOW)
        self.host = Buffer(WINDOW)
        self.host.bytes[:WINDOW] = random_bytes(seed)
        gpu.copy_in(self.stream, self.source, self.host.address, WINDOW)
        assert gpu.idle(self.stream, FOREVER)

    def fill(self, window: Memory) -> Memory:
        """From the GPU into the window; what it holds then."""
        self.gpu.copy_out(self.stream, int(window.ctypes.data), self.source, WINDOW)
        assert self.gpu.idle(self.stream, FOREVER)
        assert np.array_equal(window, self.host.bytes[:WINDOW])
        return window.copy()

    def take(self, window: Memory) -> None:
        """From the window into the GPU's memory, behind what is on the stream."""
        self.gpu.copy_in(self.stream, self.sink, int(window.ctypes.data), WINDOW)

    def holds(self, wanted: Memory) -> bool:
        assert self.gpu.idle(self.stream, FOREVER)
        back = Buffer(WINDOW)
        self.gpu.copy_out(self.stream, back.address, self.sink, WINDOW)
        assert self.gpu.idle(self.stream, FOREVER)
        return np.array_equal(back.bytes[:WINDOW], wanted)


def images_are(machine: Machine, wanted: list[Memory]) -> bool:
    return all(
        np.array_equal(np.fromfile(drive.image, np.uint8), image)
        for drive, image in zip(machine.drives, wanted, strict=True)
    )


@pytest.mark.parametrize("lba_bytes", [512, 4096])
@pytest.mark.parametrize("count", [1, 2])
def test_batches_by_the_gpu_put_every_byte_in_its_place(
    tmp_path: Path, gpu: Gpu, window_of: Callable[[Machine], Memory], count: int, lba_bytes: int
) -> None:
    places, data = Places(count, 3), OnGpu(gpu, 4)
    with machine_of(drives_of(tmp_path, count, lba_bytes=lba_bytes, mdts=5), traced=IO_COMMAND) as machine:
        window = window_of(machine)
        runtime = tr.make_nvme_runtime(
            controllers=specs(machine, gpu),
            device_executor="cuda",
            device=gpu.ordinal,
            queue_entries=16,
            command_timeout=20,  # a drive that waits for a busy machine loses no item to the CPU
        )
        assert runtime.caps()["device_execution"] is True
        memory = runtime.register_memory(
            int(window.ctypes.data), WINDOW, kind="pinned_host", device=gpu.ordinal
        )
        targets = [runtime.open(f"nvme://d{number}/1") for number in range(count)]
        wanted = data.fill(window)
        for direction in (tr.WRITE, tr.READ, tr.READ):
            rows = [
                request(direction, memory, begin, targets[drive], offset, length)
                for drive, offset, begin, length in places.rows()
            ]
            result = runtime.submit(batch(*rows), execution="device", timeout=FOREVER)
            assert result.handle is not None and result.accepted.all()
            done = runtime.wait(result.handle, FOREVER)
            assert not done.status.any(), (done.status, runtime.caps()["stepped_down"])
            if direction == tr.WRITE:
                assert images_are(machine, places.images(count, wanted))
                window[:] = 0
            assert direction == tr.WRITE or np.array_equal(window, wanted)
        data.take(window)
        assert data.holds(wanted)
        assert runtime.stats()["step_downs"] == 0
        used = machine.queues_used()
        assert used and CPU_QUEUE not in used, "what teams give up goes to the CPU without a word"
        assert runtime.shutdown(FOREVER)


@pytest.mark.parametrize("lba_bytes", [512, 4096])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_of_the_gpu_put_every_byte_in_its_place(
    tmp_path: Path, gpu: Gpu, window_of: Callable[[Machine], Memory], count: int, lba_bytes: int
) -> None:
    """Nobody on the host waits between the drive's last byte and the copy to the GPU."""
    places, data = Places(count, 5), OnGpu(gpu, 6)
    with machine_of(drives_of(tmp_path, count, lba_bytes=lba_bytes, mdts=5)) as machine:
        window = window_of(machine)
        layers = layers_of(machine, gpu, window)
        wanted = data.fill(window)
        slices = np.array([(d, 0, 0, offset, begin, n) for d, offset, begin, n in places.rows()], np.uint64)
        write, read = layers.add_layer("write", slices), layers.add_layer("read", slices)
        assert not run(layers, write).any()
        for _ in range(3):
            window[:] = 0
            ticket = layers.submit(read)
            _core.stream_wait_word(data.stream, layers.done_word(read), ticket)
            data.take(window)
            assert data.holds(wanted)
            assert layers.wait(ticket, FOREVER)
            assert not layers.statuses(read).any()
        counters = layers.counters()
        assert counters["strays"] == counters["remade"] == counters["resets"] == 0
        layers.stop()
        assert images_are(machine, places.images(count, wanted))


def test_rings_of_the_gpu_turn_over(tmp_path: Path, gpu: Gpu, window_of: Callable[[Machine], Memory]) -> None:
    count = WINDOW // PAGE
    with machine_of(drives_of(tmp_path)) as machine:
        window = window_of(machine)
        window[:] = random_bytes(7)
        layers = layers_of(machine, gpu, window, queue_entries=8)
        slices = np.array(
            [(0, 0, 0, (count - 1 - i) * PAGE, i * PAGE, PAGE) for i in range(count)], np.uint64
        )
        assert not run(layers, layers.add_layer("write", slices)).any()
        assert layers.counters()["commands"] == count
        layers.stop()
        pages = np.fromfile(machine.drives[0].image, np.uint8)[:WINDOW].reshape(count, PAGE)
        assert np.array_equal(pages[::-1], window.reshape(count, PAGE))


@pytest.mark.parametrize("by", ["batch", "layer"])
def test_an_error_of_the_medium_reaches_its_item_alone(
    tmp_path: Path, gpu: Gpu, window_of: Callable[[Machine], Memory], by: str
) -> None:
    length = 256 * KIB
    fail = FailAt("read", 5 * length + 37 * 512, errno.EIO)
    with machine_of(drives_of(tmp_path, fail=fail)) as machine:
        machine.provokes(*MEDIA_ERROR)
        window = window_of(machine)
        if by == "layer":
            layers = layers_of(machine, gpu, window)
            rows = np.array([(0, 0, 0, i * length, i * length, length) for i in range(8)], np.uint64)
            read, good = layers.add_layer("read", rows), layers.add_layer("read", rows[[4, 6]])
            status, again = run(layers, read), run(layers, good)
            layers.stop()
        else:
            runtime = tr.make_nvme_runtime(
                controllers=specs(machine, gpu), device_executor="cuda", device=gpu.ordinal
            )
            memory = runtime.register_memory(int(window.ctypes.data), WINDOW)
            target = runtime.open("nvme://d0/1")
            items = [request(tr.READ, memory, i * length, target, i * length, length) for i in range(8)]
            done = [
                runtime.wait(
                    runtime.submit(batch(*rows), execution="device", timeout=FOREVER).handle, FOREVER
                )
                for rows in (items, [items[4], items[6]])
            ]
            status, again = done[0].status, done[1].status
            assert done[0].bytes[5] < length
            assert runtime.shutdown(FOREVER)
        assert status.tolist() == [0, 0, 0, 0, 0, errno.ENODATA, 0, 0]
        assert not again.any()


def test_queues_that_the_gpu_gave_up_begin_again(
    tmp_path: Path, gpu: Gpu, window_of: Callable[[Machine], Memory]
) -> None:
    """QEMU aborts nothing: the queue is deleted under what is overdue, and rings from its beginning again."""
    with machine_of(drives_of(tmp_path, max_iops=4)) as machine:
        window = window_of(machine)
        layers = layers_of(machine, gpu, window, queues=1, queue_entries=8, command_timeout=1.0)
        rows = np.array([(0, 0, 0, i * MIB, i * PAGE, PAGE) for i in range(7)], np.uint64)
        status = run(layers, layers.add_layer("read", rows))
        assert machine.count("pci_nvme_del_sq") > 0
        assert layers.counters()["remade"] > 0
        assert status.any() and set(status.tolist()) <= {0, errno.ETIMEDOUT, errno.ECANCELED}
        # One at a time is within its time, but for a machine that is busy with other things.
        window[:PAGE] = 9
        write, read = (
            layers.add_layer(direction, np.array([(0, 0, 0, 0, at, PAGE)], np.uint64))
            for direction, at in (("write", 0), ("read", PAGE))
        )
        assert any(run(layers, write).tolist() == run(layers, read).tolist() == [0] for _ in range(5))
        assert (window[PAGE : 2 * PAGE] == 9).all()
        layers.stop()
