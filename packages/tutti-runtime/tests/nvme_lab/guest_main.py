# SPDX-License-Identifier: Apache-2.0
"""What runs in the guest.

The drives come with an ext4 each. Order matters: first the kernel writes files, then the drives are on
vfio-pci and ours, then the kernel has them again and reads what we wrote.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tutti_runtime as tr
from nvme_lab import guest_broker, guest_teams
from nvme_lab import guest_kernel as kernel
from nvme_lab.guest_report import report
from nvme_lab.plain_driver import READ, WRITE, Controller, Identity
from tutti_runtime import _core

__all__ = ["CHECKS"]

PAGE = 4096
FILE_BYTES = 1 << 20
PEER_BYTES = 1 << 20
IVSHMEM = "0x1af4", "0x1110"


def content(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


@dataclass
class Guest:
    """What one check leaves for the next."""

    drives: dict[str, str] = field(default_factory=dict)
    extents: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)

    @property
    def first(self) -> str:
        return self.drives["S0"]


def files_by_the_kernel(guest: Guest) -> None:
    guest.drives = {serial: bdf for serial, bdf in kernel.controllers().items() if serial != "tutti-root"}
    assert sorted(guest.drives) == ["S0", "S1", "S2", "S3"], guest.drives
    for seed, (serial, bdf) in enumerate(sorted(guest.drives.items())):
        with kernel.mounted(bdf, Path("/tmp/mount")) as folder:
            kernel.write_direct(folder / "data", content(FILE_BYTES, seed))
            found = tr.resolve_extents(folder / "data").extents
            guest.extents[serial] = [tuple(map(int, extent)) for extent in found]  # type: ignore[misc]


def identify_by_the_kernel_and_its_tool(guest: Guest) -> None:
    for serial, bdf in guest.drives.items():
        guest.identities[serial] = kernel.identity_by_ioctl(bdf)
        by_tool = kernel.identity_by_tool(bdf)
        assert by_tool in (None, guest.identities[serial]), by_tool
    print(json.dumps({"nvme_cli": kernel.identity_by_tool(guest.first) is not None}), flush=True)


def a_drive_of_the_kernel_is_refused(guest: Guest) -> None:
    try:
        _core.open_vfio_bus(guest.first)
    except OSError as error:
        assert "belongs to the driver nvme" in str(error), error
    else:
        raise AssertionError("opened a drive that the kernel uses")


def drives_go_to_vfio(guest: Guest) -> None:
    for bdf in guest.drives.values():
        kernel.bind(bdf, "vfio-pci")


def our_identify_agrees(guest: Guest) -> None:
    for serial, bdf in guest.drives.items():
        controller = Controller(_core.open_vfio_bus(bdf))
        assert controller.identity() == guest.identities[serial]
        controller.disable()


def the_bus_master_bit_is_ours(guest: Guest) -> None:
    config = Path("/sys/bus/pci/devices") / guest.first / "config"
    bus = _core.open_vfio_bus(guest.first)
    found = []
    for on in (True, False, True):
        assert bus.set_bus_master(on)
        found.append(bool(config.read_bytes()[4] & 4))
    del bus
    assert [*found, bool(config.read_bytes()[4] & 4)] == [True, False, True, False]


def one_process_has_a_drive_once(guest: Guest) -> None:
    held = _core.open_vfio_bus(guest.first)
    assert held.caps()["doorbell_stores"] and held.caps()["any_memory"]
    try:
        _core.open_vfio_bus(guest.first)
    except ValueError as error:
        assert "open in this process already" in str(error), error
    else:
        raise AssertionError("opened twice")


def _read_file(bus: _core.NvmeBus, serial: str, guest: Guest, window: mmap.mmap) -> None:
    """By its extents, two pages at a time, into a window of this process."""
    controller = Controller(bus)
    lba_bytes = guest.identities[serial].lba_bytes
    queue = controller.make_queue()
    mapping = bus.map(int(np.frombuffer(window, np.uint8).ctypes.data), FILE_BYTES)
    ((iova, _),) = mapping.runs
    for logical, physical, length in guest.extents[serial]:
        for offset in range(0, length, 2 * PAGE):
            size = min(2 * PAGE, length - offset)
            prp = (iova + logical + offset, iova + logical + offset + PAGE if size > PAGE else 0)
            status = queue.transfer(READ, (physical + offset) // lba_bytes, size // lba_bytes, prp)
            assert status == 0, f"status {status:#x}"
    controller.disable()


def the_kernels_files_are_read_raw(guest: Guest) -> None:
    for seed, (serial, bdf) in enumerate(sorted(guest.drives.items())):
        window = mmap.mmap(-1, FILE_BYTES)
        _read_file(_core.open_vfio_bus(bdf), serial, guest, window)
        assert window[:] == content(FILE_BYTES, seed), f"{serial} holds other bytes"


def _requests(guest: Guest, serial: str, direction: int, memory: int, target: int) -> np.ndarray:
    """One for each of the file's extents."""
    extents = guest.extents[serial]
    requests = np.zeros(len(extents), dtype=tr.REQUEST_DTYPE)
    requests["direction"], requests["memory"], requests["target"] = direction, memory, target
    for request, (logical, physical, length) in zip(requests, extents, strict=True):
        request["memory_offset"], request["target_offset"], request["length"] = logical, physical, length
    return requests


def _run(runtime: tr.Runtime, requests: np.ndarray) -> None:
    result = runtime.submit(requests, timeout=60)
    assert result.accepted.all(), result.errors
    status = runtime.wait(result.handle, timeout=90).status
    assert not status.any(), status


def the_runtime_reads_and_writes_the_same_blocks(guest: Guest) -> None:
    """All drives in one runtime; what it says of them is what the kernel says."""
    controllers = [{"transport": "vfio", "bdf": bdf} for bdf in guest.drives.values()]
    with tr.make_nvme_runtime(controllers=controllers) as runtime:
        window = tr.HostMemory(FILE_BYTES)
        memory = runtime.register_memory(window.address, FILE_BYTES)
        said = runtime.caps()["features_used"]
        for seed, (serial, bdf) in enumerate(sorted(guest.drives.items())):
            identity = guest.identities[serial]
            target = runtime.open(f"nvme://{bdf}/1")
            assert runtime.query(target)["size"] == identity.size_bytes
            assert identity.model in said[f"controller {bdf}"]
            assert f"MDTS of {identity.mdts_bytes} bytes" in said[f"controller {bdf}"]
            _run(runtime, _requests(guest, serial, tr.READ, memory, target))
            assert window.bytes.tobytes() == content(FILE_BYTES, seed), f"{serial} holds other bytes"
            window.bytes[:] = np.frombuffer(content(FILE_BYTES, 100 + seed), np.uint8)
            _run(runtime, _requests(guest, serial, tr.WRITE, memory, target))
            flush = np.zeros(1, dtype=tr.REQUEST_DTYPE)
            flush["direction"], flush["target"] = tr.FLUSH, target
            _run(runtime, flush)


def teams_fill_the_queues_of_all_drives(guest: Guest) -> None:
    """A batch by a device, for whole files on four drives at once; then the file of one as layers."""
    runtime = guest_teams.by_teams(list(guest.drives.values()))
    window = tr.HostMemory(FILE_BYTES * len(guest.drives))
    memory = runtime.register_memory(window.address, window.bytes.size)
    reads, writes = [], []
    for number, (serial, bdf) in enumerate(sorted(guest.drives.items())):
        target = runtime.open(f"nvme://{bdf}/1")
        for direction, rows in ((tr.READ, reads), (tr.WRITE, writes)):
            part = _requests(guest, serial, direction, memory, target)
            part["memory_offset"] += number * FILE_BYTES
            rows.append(part)
    read, write = np.concatenate(reads), np.concatenate(writes)
    expected = b"".join(content(FILE_BYTES, 100 + seed) for seed in range(len(guest.drives)))
    assert not guest_teams.move(runtime, read).any()
    assert window.bytes.tobytes() == expected
    for data in (expected[::-1], expected):
        window.bytes[:] = np.frombuffer(data, np.uint8)
        assert not guest_teams.move(runtime, write).any()
        window.bytes[:] = 0
        assert not guest_teams.move(runtime, read).any()
        assert window.bytes.tobytes() == data
    assert runtime.stats()["step_downs"] == 0 and runtime.shutdown(30)
    del runtime
    for serial, seed in (("S0", 100), ("S3", 103)):
        file = guest_teams.LayeredFile(
            guest.drives[serial], guest.extents[serial], FILE_BYTES, guest.identities[serial].lba_bytes
        )
        file.run("read")
        assert file.memory.bytes.tobytes() == content(FILE_BYTES, seed)
        for data in (content(FILE_BYTES, seed)[::-1], content(FILE_BYTES, seed)):
            file.memory.bytes[:] = np.frombuffer(data, np.uint8)
            file.run("write")
            file.memory.bytes[:] = 0
            file.run("read")
            assert file.memory.bytes.tobytes() == data
        file.close()


def registers_that_are_taken_away_are_a_lost_drive(guest: Guest) -> None:
    """The process lives, items end with ENODEV, and whoever opens the drive anew has it."""
    bdf = guest.drives["S1"]
    runtime = guest_teams.by_teams([bdf])
    window = tr.HostMemory(FILE_BYTES)
    memory = runtime.register_memory(window.address, FILE_BYTES)
    rows = _requests(guest, "S1", tr.READ, memory, runtime.open(f"nvme://{bdf}/1"))
    assert not guest_teams.move(runtime, rows).any()
    guest_teams.lose_the_registers(runtime, rows)
    assert runtime.shutdown(30)
    del runtime
    with tr.make_nvme_runtime(controllers=[{"transport": "vfio", "bdf": bdf}]) as again:
        window.bytes[:] = 0
        memory = again.register_memory(window.address, FILE_BYTES)
        _run(again, _requests(guest, "S1", tr.READ, memory, again.open(f"nvme://{bdf}/1")))
        assert window.bytes.tobytes() == content(FILE_BYTES, 101)


def _through(controller: Controller, memory: mmap.mmap, address: int, guest: Guest) -> None:
    """Two pages from the drive into other memory at a bus address, changed there, and back."""
    queue = controller.make_queue()
    _, physical, _ = guest.extents["S0"][0]
    lba = physical // guest.identities["S0"].lba_bytes
    blocks = 2 * PAGE // guest.identities["S0"].lba_bytes
    assert queue.transfer(READ, lba, blocks, (address + PAGE, address + 2 * PAGE)) == 0
    expected = content(FILE_BYTES, 100)[: 2 * PAGE]
    assert memory[PAGE : 3 * PAGE] == expected
    memory[PAGE : 3 * PAGE] = expected[::-1]
    assert queue.transfer(WRITE, lba, blocks, (address + PAGE, address + 2 * PAGE)) == 0
    assert queue.transfer(READ, lba, blocks, (address + 8 * PAGE, address + 9 * PAGE)) == 0
    assert memory[8 * PAGE : 10 * PAGE] == expected[::-1]
    memory[PAGE : 3 * PAGE] = expected
    assert queue.transfer(WRITE, lba, blocks, (address + PAGE, address + 2 * PAGE)) == 0
    controller.disable()


def another_devices_memory_is_a_window(guest: Guest) -> None:
    devices = Path("/sys/bus/pci/devices")
    (peer,) = (
        device.name
        for device in devices.iterdir()
        if ((device / "vendor").read_text().strip(), (device / "device").read_text().strip()) == IVSHMEM
    )
    bus = _core.open_vfio_bus(guest.first)
    with kernel.peer_memory(peer, PEER_BYTES) as memory:
        mapping = bus.map(int(np.frombuffer(memory, np.uint8).ctypes.data), PEER_BYTES)
        _through(Controller(bus), memory, mapping.runs[0][0], guest)
        del mapping


def the_drives_own_memory_is_a_window(guest: Guest) -> None:
    """The controller memory buffer, at bus addresses that it takes itself (CMBMSC: CRE, CMSE, CBA)."""
    bus = _core.open_vfio_bus(guest.first)
    controller = Controller(bus)
    base = 1 << 38
    bus.write32(0x54, base >> 32)
    bus.write32(0x50, 3)
    assert bus.read32(0x3C) != 0, "CMBSZ"
    with kernel.peer_memory(guest.first, PEER_BYTES) as memory:
        _through(controller, memory, base, guest)


def large_windows_lie_for_huge_pages(guest: Guest) -> None:
    """As far behind a multiple of 2 MiB on the bus as in memory, wherever they begin; no two in one place."""
    bus = _core.open_vfio_bus(guest.first)
    huge = 2 << 20
    memory = mmap.mmap(-1, 8 * huge)
    begin = int(np.frombuffer(memory, np.uint8).ctypes.data)
    held, taken = [], []
    for offset, size in ((0, huge), (3 * PAGE, 3 * huge), (huge + PAGE, huge - PAGE), (huge, huge)):
        held.append(bus.map(begin + offset, size))
        ((iova, length),) = held[-1].runs
        assert length == size
        assert size < huge or (iova - begin - offset) % huge == 0
        assert all(iova + size <= first or last <= iova for first, last in taken), (iova, taken)
        taken.append((iova, iova + size))


def a_killed_process_leaves_the_drive_usable(guest: Guest) -> None:
    """Its controller was enabled and had a queue; the kernel takes both from it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        controller = Controller(_core.open_vfio_bus(guest.first))
        controller.make_queue()
        os.write(writer, b"x")
        signal.pause()
    assert os.read(reader, 1) == b"x"
    try:
        _core.open_vfio_bus(guest.first)
    except OSError as error:
        assert "one process at a time" in str(error), error
    else:
        raise AssertionError("two processes have the drive")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    controller = Controller(_core.open_vfio_bus(guest.first))
    assert controller.identity() == guest.identities["S0"]
    controller.disable()


def a_window_that_is_gone_is_out_of_reach(guest: Guest) -> None:
    """Its bus address is free for the next window, and until then the IOMMU refuses the drive."""
    bus = _core.open_vfio_bus(guest.first)
    window = mmap.mmap(-1, FILE_BYTES)
    address = int(np.frombuffer(window, np.uint8).ctypes.data)
    found = set()
    for _ in range(3):
        mapping = bus.map(address, FILE_BYTES)
        found.add(mapping.runs[0][0])
        del mapping
    assert len(found) == 1, found
    controller = Controller(bus)
    queue = controller.make_queue()
    mapping = bus.map(address, FILE_BYTES)
    ((iova, _),) = mapping.runs
    del mapping
    print(json.dumps({"refused": f"{iova:#x}"}), flush=True)
    lba = guest.extents["S0"][0][1] // guest.identities["S0"].lba_bytes
    queue.transfer(READ, lba, PAGE // guest.identities["S0"].lba_bytes, (iova, 0))
    assert window[:PAGE] == bytes(PAGE)
    controller.disable()


def a_broker_shares_a_drive(guest: Guest) -> None:
    """Two processes on one controller; one is killed at work, then the broker. The drive outlives both."""
    bdf = guest.drives["S2"]
    broker = guest_broker.start_broker(bdf)
    client = guest_broker.Client(FILE_BYTES)
    logical, physical, length = guest.extents["S2"][0]
    assert set(client.move(tr.READ, physical, length)) == {0}
    expected = content(FILE_BYTES, 102)[logical : logical + length]
    assert client.memory.bytes[:length].tobytes() == expected
    client.memory.bytes[:length] = np.frombuffer(expected[::-1], np.uint8)
    assert set(client.move(tr.WRITE, physical, length)) == {0}
    guest_broker.kill_a_client_at_work()
    client.memory.bytes[:] = 0
    assert set(client.move(tr.READ, physical, length)) == {0}
    assert client.memory.bytes[:length].tobytes() == expected[::-1]
    client.memory.bytes[:length] = np.frombuffer(expected, np.uint8)
    assert set(client.move(tr.WRITE, physical, length)) == {0}
    guest_broker.end_broker_at_work(broker, client)
    assert client.runtime.shutdown(30)
    controller = Controller(_core.open_vfio_bus(bdf))
    assert controller.identity() == guest.identities["S2"]
    controller.disable()


def the_kernel_has_the_drives_again(guest: Guest) -> None:
    for seed, (serial, bdf) in enumerate(sorted(guest.drives.items())):
        kernel.bind(bdf, "nvme")
        with kernel.mounted(bdf, Path("/tmp/mount")) as folder:
            found = kernel.read_direct(folder / "data", FILE_BYTES)
            assert found == content(FILE_BYTES, 100 + seed), f"{serial} holds other bytes"


CHECKS: tuple[Callable[[Guest], None], ...] = (
    files_by_the_kernel,
    identify_by_the_kernel_and_its_tool,
    a_drive_of_the_kernel_is_refused,
    drives_go_to_vfio,
    our_identify_agrees,
    the_bus_master_bit_is_ours,
    one_process_has_a_drive_once,
    the_kernels_files_are_read_raw,
    the_runtime_reads_and_writes_the_same_blocks,
    teams_fill_the_queues_of_all_drives,
    registers_that_are_taken_away_are_a_lost_drive,
    another_devices_memory_is_a_window,
    the_drives_own_memory_is_a_window,
    large_windows_lie_for_huge_pages,
    a_killed_process_leaves_the_drive_usable,
    a_window_that_is_gone_is_out_of_reach,
    a_broker_shares_a_drive,
    the_kernel_has_the_drives_again,
)


if __name__ == "__main__":
    report(Guest(), CHECKS)
