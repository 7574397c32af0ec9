# SPDX-License-Identifier: Apache-2.0
"""The qtest transport alone, with a driver of a few lines: registers, doorbells, memory, a peer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_kit import FakeCuda
from nvme_lab.drives import Drive, FailAt, Peer, make_image
from nvme_lab.machine import MIB, Machine, machine_of
from nvme_lab.plain_driver import READ, WRITE, Controller, Identity

from tutti_runtime import _core

PAGE = 4096
ALL_ONES = 0xFFFFFFFF


def content(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def open_bus(machine: Machine, number: int = 0, *, relay: bool = False, device: int = -1) -> _core.NvmeBus:
    spec = machine.spec(number)
    spec.pop("transport")
    return _core.open_qtest_bus(**spec, relay=relay, device=device)  # type: ignore[arg-type]


def address_of(buffer: object) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)  # type: ignore[call-overload]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    return Drive(make_image(tmp_path / "drive", 16 * MIB), "QT0", mdts=5)


@pytest.fixture
def machine(drive: Drive, tmp_path: Path) -> Iterator[Machine]:
    peer = Peer(make_image(tmp_path / "peer", MIB), MIB)
    with machine_of([drive], peer=peer) as made:
        yield made


@pytest.mark.parametrize("relay", [False, True], ids=["registers", "stores"])
def test_blocks_go_to_the_drive_and_come_back(machine: Machine, drive: Drive, relay: bool) -> None:
    bus = open_bus(machine, relay=relay)
    assert bus.name == "qtest:0x20"
    assert bus.caps()["doorbell_stores"] is relay
    controller = Controller(bus)
    identity = controller.identity()
    assert (identity.serial, identity.mdts_bytes) == ("QT0", 128 * 1024)
    assert (identity.size_bytes, identity.lba_bytes) == (16 * MIB, 512)
    queue = controller.make_queue()
    page = bus.allocate(2 * PAGE)
    for turn in range(40):
        data = content(2 * PAGE, turn)
        memoryview(page)[:] = data
        assert queue.transfer(WRITE, 100 + turn, 16, (page.iova, page.iova + PAGE)) == 0
        memoryview(page)[:] = bytes(2 * PAGE)
        assert queue.transfer(READ, 100 + turn, 16, (page.iova, page.iova + PAGE)) == 0
        assert bytes(memoryview(page)) == data
    image = drive.image.read_bytes()
    assert image[139 * 512 : 139 * 512 + 2 * PAGE] == content(2 * PAGE, 39)
    # A queue that begins again may ring the value that the earlier one rang last.
    controller.delete_queue(queue)
    for _ in range(3):
        queue = controller.make_queue()
        assert queue.transfer(READ, 139, 8, (page.iova, 0)) == 0
        controller.delete_queue(queue)
    controller.disable()


def test_windows_are_mappings_of_the_machines_memory(machine: Machine) -> None:
    bus = open_bus(machine)
    half = machine.ram_bytes // 2
    with machine.window(half, MIB) as window:
        mapping = bus.map(address_of(window) + PAGE, MIB - PAGE)
        assert mapping.runs == [(half + PAGE, MIB - PAGE)]
    with machine.window(half - MIB, MIB) as window, pytest.raises(ValueError, match="kept for queues"):
        bus.map(address_of(window), MIB)
    with pytest.raises(ValueError, match="one shared mapping"):
        bus.map(address_of(bytearray(PAGE)), PAGE)
    with pytest.raises(ValueError, match="GPU"):
        bus.map(0, PAGE, "device")


def test_the_drive_writes_into_a_peer(machine: Machine, drive: Drive) -> None:
    data = content(PAGE)
    with drive.image.open("r+b") as image:
        image.write(data)
    bus = open_bus(machine)
    queue = Controller(bus).make_queue()
    assert machine.peer is not None
    memory = np.memmap(machine.peer.file, np.uint8, "r+")
    mapping = bus.map(int(memory.ctypes.data) + 64 * 1024, PAGE)
    ((iova, _),) = mapping.runs
    assert iova >= machine.ram_bytes
    assert queue.transfer(READ, 0, 8, (iova, 0)) == 0
    assert memory[64 * 1024 : 64 * 1024 + PAGE].tobytes() == data
    memory[64 * 1024 : 64 * 1024 + PAGE] = 7
    assert queue.transfer(WRITE, 8, 8, (iova, 0)) == 0
    assert drive.image.read_bytes()[PAGE : 2 * PAGE] == bytes([7]) * PAGE


def test_controllers_share_a_machine(tmp_path: Path) -> None:
    drives = [Drive(make_image(tmp_path / f"d{n}", 8 * MIB), f"S{n}", lba_bytes=4096) for n in range(4)]
    with machine_of(drives) as machine:
        buses = [open_bus(machine, number, relay=number % 2 == 1) for number in range(4)]
        controllers = [Controller(bus) for bus in buses]
        found = [controller.identity() for controller in controllers]
        assert [identity.serial for identity in found] == ["S0", "S1", "S2", "S3"]
        assert {(identity.lba_bytes, identity.size_bytes) for identity in found} == {(4096, 8 * MIB)}
        with pytest.raises(ValueError, match="slot=5 has an owner"):
            open_bus(machine, 1)
        with pytest.raises(ValueError, match="which the machine of this socket was opened with"):
            _core.open_qtest_bus(str(machine.socket), str(tmp_path / "d0"), 4)
        queues = [controller.make_queue() for controller in controllers]
        pages = [bus.allocate(PAGE) for bus in buses]
        for number, (queue, page) in enumerate(zip(queues, pages)):
            memoryview(page)[:] = bytes([number]) * PAGE
            assert queue.transfer(WRITE, 3, 1, (page.iova, 0)) == 0
        assert [drive.image.read_bytes()[3 * PAGE] for drive in drives] == [0, 1, 2, 3]


def test_the_machines_errors_are_seen_and_linted(tmp_path: Path) -> None:
    fails = FailAt("read", 40 * 512, 5)
    drive = Drive(make_image(tmp_path / "drive", 8 * MIB), "F0", fail=fails, max_iops=2000)
    with machine_of([drive]) as machine:
        bus = open_bus(machine)
        queue = Controller(bus).make_queue()
        page = bus.allocate(PAGE)
        assert queue.transfer(READ, 8, 8, (page.iova, 0)) == 0
        assert queue.transfer(READ, 40, 1, (page.iova, 0)) == 0x281, "media error: unrecovered read error"
        assert queue.transfer(READ, 8 * MIB // 512, 1, (page.iova, 0)) == 0x80, "LBA out of range"
        assert queue.command(0x77, 1, (page.iova, 0))[0] == 0x01, "invalid opcode"
        machine.provokes(
            "pci_nvme_err_req_status",
            "pci_nvme_err_aio",
            "pci_nvme_err_invalid_lba_range",
            "pci_nvme_err_invalid_opc",
        )


def test_the_lint_catches_a_doorbell_of_no_queue(machine: Machine) -> None:
    bus = open_bus(machine)
    controller = Controller(bus)
    controller.identity()
    machine.check()
    bus.ring(0x1000 + 8 * 9, 3)
    with pytest.raises(AssertionError, match="invalid_sq"):
        machine.check()
    machine.provokes("pci_nvme_ub_db_wr_invalid_sq")


def test_a_drive_that_may_not_master_the_bus_reaches_no_memory(machine: Machine) -> None:
    bus = open_bus(machine)
    controller = Controller(bus)
    queue = controller.make_queue()
    assert bus.set_bus_master(False)
    queue.post(READ)
    # It cannot fetch its entry: CSTS.CFS, controller fatal status.
    deadline = time.monotonic() + 30
    while bus.read32(0x1C) & 2 == 0:
        assert time.monotonic() < deadline
    assert bus.set_bus_master(True)
    assert Controller(bus).identity().serial == "QT0"
    machine.provokes("pci_nvme_err_addr_read", "pci_nvme_err_cfs")


def test_a_gpu_is_given_doorbells_and_pinned_queues(machine: Machine, fake_cuda: FakeCuda) -> None:
    pinned, contexts = fake_cuda.pinned, fake_cuda.contexts
    bus = open_bus(machine, relay=True, device=0)
    assert bus.caps()["gpu_doorbells"] is True
    assert fake_cuda.pinned == pinned + 1, "the page of the doorbells"
    assert Controller(bus).identity().serial == "QT0"
    before = fake_cuda.pinned
    queue, page = bus.allocate(3 * PAGE, pinned=True), bus.allocate(PAGE)
    assert fake_cuda.pinned == before + 1
    assert not any(memoryview(queue))
    del queue
    assert fake_cuda.pinned == before
    again = bus.allocate(3 * PAGE, pinned=True)
    assert fake_cuda.pinned == before + 1
    del again, page, bus
    assert (fake_cuda.pinned, fake_cuda.contexts) == (pinned, contexts)
    plain = open_bus(machine, relay=True)
    assert plain.caps()["gpu_doorbells"] is False
    kept = plain.allocate(PAGE, pinned=True)
    assert kept.iova > 0
    assert fake_cuda.pinned == pinned


def test_what_cannot_be_pinned_is_given_back(machine: Machine, fake_cuda: FakeCuda) -> None:
    pinned, contexts = fake_cuda.pinned, fake_cuda.contexts
    out_of_memory = 2
    most = machine.ram_bytes // 2 - MIB
    try:
        fake_cuda.cuda.fake_cuda_refuse_register(out_of_memory)
        with pytest.raises(OSError, match="cuMemHostRegister"):
            open_bus(machine, relay=True, device=0)
        fake_cuda.cuda.fake_cuda_refuse_register(0)
        bus = open_bus(machine, relay=True, device=0)
        fake_cuda.cuda.fake_cuda_refuse_register(out_of_memory)
        with pytest.raises(OSError, match="cuMemHostRegister"):
            bus.allocate(most, pinned=True)
    finally:
        fake_cuda.cuda.fake_cuda_refuse_register(0)
    whole = bus.allocate(most, pinned=True)
    assert fake_cuda.pinned == pinned + 2
    del whole, bus
    assert (fake_cuda.pinned, fake_cuda.contexts) == (pinned, contexts)
    with pytest.raises(ValueError, match=r"device=0 needs relay=True"):
        open_bus(machine, device=0)
    with pytest.raises(ValueError, match="device"):
        open_bus(machine, relay=True, device=7)


def test_a_machine_that_is_gone_reads_as_all_ones(drive: Drive) -> None:
    with machine_of([drive], check=False) as machine:
        bus = open_bus(machine, relay=True)
        controller = Controller(bus)
        assert controller.identity() == Identity(
            "QT0", "QEMU NVMe Ctrl", controller.identity().firmware, 131072, 256, 16 * MIB, 512
        )
        machine.process.kill()
        machine.process.wait()
        assert bus.read32(0x1C) == ALL_ONES
        assert bus.read64(0) == ALL_ONES << 32 | ALL_ONES
        bus.write32(0x14, 0)
        bus.ring(0x1000, 5)


def test_what_is_wrong_is_named(machine: Machine, tmp_path: Path) -> None:
    spec = machine.spec()
    spec.pop("transport")
    with pytest.raises(OSError, match="no NVMe controller"):
        _core.open_qtest_bus(**spec | {"slot": 9})  # type: ignore[arg-type]
    with pytest.raises(OSError, match="qtest socket") as caught:
        _core.open_qtest_bus(**spec | {"socket": str(tmp_path / "none")})  # type: ignore[arg-type]
    assert caught.value.filename == str(tmp_path / "none")
    with pytest.raises(ValueError, match="slot=0"):
        _core.open_qtest_bus(**spec | {"slot": 0})  # type: ignore[arg-type]
    small = tmp_path / "small"
    make_image(small, MIB)
    with pytest.raises(ValueError, match="8 MiB"):
        _core.open_qtest_bus(**spec | {"ram": str(small)})  # type: ignore[arg-type]
