# SPDX-License-Identifier: Apache-2.0
"""The whole NVMe data path against QEMU's model of a drive, which nobody here wrote: bytes, errors, rules."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from loop_kit import Loops
from numpy.typing import NDArray
from nvme_lab.drives import Drive, FailAt, Peer, make_image
from nvme_lab.machine import MIB, Machine, machine_of
from nvme_lab.windows import MachineSubject, machine_window, peer_window
from runtime_kit import KIB, PAGE, batch, request, run

import tutti_runtime as tr
from tutti_runtime.testing import contract
from tutti_runtime.testing.subjects import MadeTarget

WINDOW = 16 * MIB
DRIVE = 64 * MIB
REQ_STATUS = "pci_nvme_err_req_status"


@dataclass
class Rig:
    """A runtime on a machine's controllers, named d0, d1 and so on, and a window that they reach."""

    machine: Machine
    runtime: tr.Runtime
    window: NDArray[np.uint8]
    memory: int = field(default=0)

    def __post_init__(self) -> None:
        self.memory = self.runtime.register_memory(int(self.window.ctypes.data), self.window.size)

    def open(self, uri: str = "nvme://d0/1") -> int:
        return self.runtime.open(uri)

    def image(self, number: int = 0) -> NDArray[np.uint8]:
        return np.fromfile(self.machine.drives[number].image, np.uint8)


def specs(machine: Machine, **more: object) -> list[dict[str, object]]:
    return [spec | {"name": f"d{number}"} for number, spec in enumerate(machine.specs(**more))]


def rig_of(machine: Machine, *, relay: bool = False, **settings: object) -> Rig:
    runtime = tr.make_nvme_runtime(controllers=specs(machine, relay=relay), **settings)  # type: ignore[arg-type]
    return Rig(machine, runtime, machine_window(machine, WINDOW))


def drive_of(folder: Path, number: int = 0, **more: object) -> Drive:
    image = make_image(folder / f"drive{number}", DRIVE)
    return Drive(image, f"Q{number}", **more)  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_of([drive_of(tmp_path)]) as made:
        yield made


SHAPES = {
    "512 B, MDTS 128 KiB, SGL": (512, 5, True, False),
    "512 B, no MDTS, PRP": (512, 0, False, False),
    "4096 B, MDTS 128 KiB, PRP, stores": (4096, 5, False, True),
    "4096 B, no MDTS, SGL, stores": (4096, 0, True, True),
}


@pytest.mark.parametrize(("lba_bytes", "mdts", "sgl", "relay"), SHAPES.values(), ids=SHAPES)
def test_random_transfers_put_every_byte_in_its_place(
    tmp_path: Path, lba_bytes: int, mdts: int, sgl: bool, relay: bool
) -> None:
    random = np.random.default_rng(11)
    with machine_of([drive_of(tmp_path, lba_bytes=lba_bytes, mdts=mdts)]) as machine:
        rig = rig_of(machine, sgl=sgl, relay=relay, queue_entries=16)
        assert rig.runtime.query(rig.open())["size"] == DRIVE
        target = rig.open(f"nvme://d0/1?offset={MIB}&size={WINDOW}")
        model = np.zeros(WINDOW, np.uint8)
        for _ in range(12):
            # Pieces of random sizes that do not overlap, from anywhere to anywhere.
            cuts = np.unique(random.integers(1, WINDOW // PAGE, 30)) * PAGE
            edges = np.concatenate(([0], cuts, [WINDOW]))
            lengths = np.minimum(
                np.diff(edges), random.choice([PAGE, 64 * KIB, 600 * KIB, 4 * MIB], len(edges) - 1)
            )
            rig.window[:] = random.integers(0, 256, WINDOW, dtype=np.uint8)
            places = random.permutation(len(lengths))
            rows = [
                request(tr.WRITE, rig.memory, int(edges[i]), target, int(edges[i]), int(lengths[i]))
                for i in places
            ]
            assert not run(rig.runtime, batch(*rows)).status.any()
            for i in places:
                part = slice(int(edges[i]), int(edges[i] + lengths[i]))
                model[part] = rig.window[part]
            rig.window[:] = 0
            assert not run(
                rig.runtime, batch(request(tr.READ, rig.memory, 0, target, 0, WINDOW))
            ).status.any()
            assert np.array_equal(rig.window, model)
        assert not run(rig.runtime, batch(request(tr.FLUSH, 0, 0, target, 0, 0))).status.any()
        assert np.array_equal(rig.image()[MIB : MIB + WINDOW], model)
        assert not rig.image()[MIB + WINDOW :].any()
        assert rig.runtime.shutdown(10.0)


@pytest.mark.parametrize("check", contract.CHECKS)
def test_the_contract_of_every_runtime(tmp_path: Path, check: str) -> None:
    """As every other data path keeps it; a target is a slice of a namespace, doorbells are plain stores."""

    def slice_of(_: Path, number: int, size: int) -> MadeTarget:
        return MadeTarget(f"nvme://d0/1?offset={number * MIB}&size={size}", size)

    with machine_of([Drive(make_image(tmp_path / "drive", 512 * MIB), "Q")]) as machine:
        runtime = tr.make_nvme_runtime(controllers=specs(machine, relay=True))
        subject = MachineSubject("qemu", runtime, tmp_path, slice_of)
        subject.machine = machine
        contract.CHECKS[check](subject)
        runtime.shutdown(30.0)


def test_many_small_commands_wrap_the_rings(machine: Machine) -> None:
    rig = rig_of(machine, queue_entries=8, queues=2)
    target = rig.open()
    rig.window[:] = np.arange(WINDOW, dtype=np.uint32).astype(np.uint8)
    count = 1500
    rows = [request(tr.WRITE, rig.memory, i * PAGE, target, (count - i) * PAGE, PAGE) for i in range(count)]
    assert not run(rig.runtime, batch(*rows)).status.any()
    pages = rig.image()[PAGE : (count + 1) * PAGE].reshape(count, PAGE)
    assert np.array_equal(pages[::-1], rig.window[: count * PAGE].reshape(count, PAGE))
    assert rig.runtime.shutdown(10.0)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_error_of_the_medium_fails_its_item_alone(tmp_path: Path, kind: str) -> None:
    bad = 5 * 256 * KIB + 37 * 512
    number = errno.EIO if kind == "read" else errno.ENOSPC
    with machine_of([drive_of(tmp_path, fail=FailAt(kind, bad, number))]) as machine:
        machine.provokes(REQ_STATUS, "pci_nvme_err_aio")
        rig = rig_of(machine)
        target = rig.open()
        direction = tr.READ if kind == "read" else tr.WRITE
        rows = [
            request(direction, rig.memory, i * 256 * KIB, target, i * 256 * KIB, 256 * KIB) for i in range(8)
        ]
        done = run(rig.runtime, batch(*rows))
        assert [i for i in range(8) if done.status[i]] == [5]
        # QEMU tells an unrecovered read error, and a write fault.
        assert done.status[5] == (errno.ENODATA if kind == "read" else errno.EIO)
        assert done.bytes[5] < 256 * KIB
        assert not run(rig.runtime, batch(rows[4], rows[6])).status.any()
        assert rig.runtime.shutdown(10.0)


def test_a_slow_drive_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    with machine_of([drive_of(tmp_path, max_iops=20)]) as machine:
        rig = rig_of(machine)
        target = rig.open()
        rows = batch(*[request(tr.READ, rig.memory, i * PAGE, target, i * MIB, PAGE) for i in range(60)])
        result = rig.runtime.submit(rows, timeout=0.3)
        done = rig.runtime.wait(result.handle, 60)
        assert errno.ETIMEDOUT in done.status
        assert set(done.status.tolist()) <= {0, errno.ETIMEDOUT}
        assert not run(rig.runtime, rows[:1], 60).status.any()
        assert rig.runtime.shutdown(60.0)


@pytest.mark.parametrize("relay", [False, True], ids=["registers", "stores"])
def test_commands_that_are_given_up_do_not_spoil_their_queue(tmp_path: Path, relay: bool) -> None:
    """QEMU aborts nothing: the queue is deleted under the commands that are overdue, and made anew.

    QEMU waits for the drive before it has deleted a queue: those commands may still succeed.
    """
    with machine_of([drive_of(tmp_path, max_iops=4)]) as machine:
        rig = rig_of(machine, relay=relay, command_timeout=0.3, queue_entries=8)
        target = rig.open()
        rows = [request(tr.READ, rig.memory, i * PAGE, target, i * MIB, PAGE) for i in range(7)]
        done = run(rig.runtime, batch(*rows), 60)
        assert machine.count("pci_nvme_del_sq") > 0
        assert set(done.status.tolist()) <= {0, errno.ETIMEDOUT}
        assert not done.bytes[done.status != 0].any()
        # One at a time is within its time, on queues that begin again.
        rig.window[:PAGE] = 9
        for row in (
            request(tr.WRITE, rig.memory, 0, target, MIB, PAGE),
            request(tr.READ, rig.memory, PAGE, target, MIB, PAGE),
        ):
            assert not run(rig.runtime, batch(row), 60).status.any()
        assert (rig.window[PAGE : 2 * PAGE] == 9).all()
        assert rig.runtime.shutdown(30.0)


def test_teams_put_every_byte_in_its_place(tmp_path: Path) -> None:
    """What a GPU's warps do, done by threads and judged by QEMU's model: doorbells are plain stores."""
    drives = [drive_of(tmp_path, number, lba_bytes=4096 if number % 2 else 512) for number in range(2)]
    with machine_of(drives) as machine:
        rig = rig_of(machine, relay=True, device_executor="cpu", queue_entries=16)
        assert rig.runtime.caps()["device_execution"] is True
        target = rig.open(f"striped://kv?roots=nvme://d0/1,nvme://d1/1&unit={64 * KIB}&size={WINDOW}")
        rig.window[:] = np.random.default_rng(5).integers(0, 256, WINDOW, dtype=np.uint8)
        wanted = rig.window.copy()
        for direction in (tr.WRITE, tr.READ):
            rows = [
                request(direction, rig.memory, i * MIB, target, i * MIB, MIB) for i in range(WINDOW // MIB)
            ]
            result = rig.runtime.submit(batch(*rows), execution="device")
            assert result.handle is not None and result.accepted.all()
            assert not rig.runtime.wait(result.handle, 60).status.any()
            if direction == tr.WRITE:
                rig.window[:] = 0
        assert np.array_equal(rig.window, wanted)
        units = wanted.reshape(-1, 2, 64 * KIB)
        for number in range(2):
            assert np.array_equal(rig.image(number)[: WINDOW // 2], units[:, number].reshape(-1))
        assert rig.runtime.stats()["step_downs"] == 0
        assert rig.runtime.shutdown(10.0)


def test_four_controllers_behind_one_striped_target(tmp_path: Path) -> None:
    drives = [drive_of(tmp_path, number, lba_bytes=4096 if number % 2 else 512) for number in range(4)]
    unit = 64 * KIB
    with machine_of(drives) as machine:
        roots = [f"nvme://d{number}/1" for number in range(4)]
        rig = rig_of(machine, roots=roots, unit=unit)
        target = rig.open(f"striped://kv?size={WINDOW}")
        other = rig.open("nvme://d3/1?offset=33554432&size=1048576")
        rig.window[:] = np.random.default_rng(3).integers(0, 256, WINDOW, dtype=np.uint8)
        rows = [request(tr.WRITE, rig.memory, i * MIB, target, i * MIB, MIB) for i in range(WINDOW // MIB)]
        rows.append(request(tr.WRITE, rig.memory, 0, other, 0, MIB))
        assert not run(rig.runtime, batch(*rows)).status.any()
        units = rig.window.reshape(-1, 4, unit)
        for number in range(4):
            assert np.array_equal(rig.image(number)[: WINDOW // 4], units[:, number].reshape(-1))
        assert np.array_equal(rig.image(3)[32 * MIB : 33 * MIB], rig.window[:MIB])
        expected = rig.window.copy()
        rig.window[:] = 0
        assert not run(rig.runtime, batch(request(tr.READ, rig.memory, 0, target, 0, WINDOW))).status.any()
        assert np.array_equal(rig.window, expected)
        assert rig.runtime.shutdown(10.0)


def test_another_devices_memory_is_a_window(tmp_path: Path) -> None:
    """As a GPU's would be: the drive writes into a BAR that is not the machine's memory."""
    size = 4 * MIB
    peer = Peer(make_image(tmp_path / "peer", 2 * size), 2 * size)
    with machine_of([drive_of(tmp_path)], peer=peer) as machine:
        rig = rig_of(machine)
        target = rig.open()
        window = peer_window(machine, size)
        there = rig.runtime.register_memory(int(window.ctypes.data), size)
        window[:] = np.random.default_rng(4).integers(0, 256, size, dtype=np.uint8)
        expected = window.copy()
        assert not run(rig.runtime, batch(request(tr.WRITE, there, 0, target, 0, size))).status.any()
        window[:] = 0
        rows = (
            request(tr.READ, there, PAGE, target, PAGE, size - PAGE),
            request(tr.READ, rig.memory, 0, target, 0, size),
        )
        assert not run(rig.runtime, batch(*rows)).status.any()
        assert np.array_equal(window[PAGE:], expected[PAGE:])
        assert np.array_equal(rig.window[:size], expected)
        assert rig.runtime.shutdown(10.0)


def test_memory_that_the_machine_cannot_reach_is_refused(machine: Machine) -> None:
    rig = rig_of(machine)
    foreign = tr.HostMemory(MIB)
    with pytest.raises(ValueError, match="file behind the machine's memory"):
        rig.runtime.register_memory(foreign.address, MIB)
    assert rig.runtime.shutdown(10.0)


def test_a_machine_that_dies_ends_what_is_under_way(tmp_path: Path) -> None:
    with machine_of([drive_of(tmp_path, max_iops=50)], check=False) as machine:
        rig = rig_of(machine, command_timeout=1.0, admin_timeout=0.5)
        target = rig.open()
        rows = batch(*[request(tr.READ, rig.memory, i * PAGE, target, i * MIB, PAGE) for i in range(60)])
        result = rig.runtime.submit(rows, timeout=30)
        machine.process.kill()
        machine.process.wait()
        done = rig.runtime.wait(result.handle, 60)
        assert done.status.any()
        assert not done.bytes[done.status != 0].any()
        again = rig.runtime.wait(rig.runtime.submit(rows[:1], timeout=30).handle, 60)
        assert again.status[0] in (errno.ENODEV, errno.EIO, errno.ETIMEDOUT)
        rig.runtime.shutdown(10.0)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_files_of_a_mounted_file_system_are_read_and_written_beneath_it(loops: Loops, kind: str) -> None:
    """The file system is mounted on the image that QEMU's drive is: each sees the other's bytes."""
    size = 4 * MIB
    device = loops.mount(kind, 320 * MIB, mkfs=("-b", "4096") if kind == "ext4" else ())
    assert device.folder is not None
    path = device.folder / "data"
    random = np.random.default_rng(8)
    expected = random.integers(0, 256, size, dtype=np.uint8)
    path.write_bytes(expected.tobytes())
    with machine_of([Drive(device.image, "LOOP")]) as machine:
        (spec,) = specs(machine)
        spec["block_devices"] = [{"device": str(device.path)}]
        runtime = tr.make_nvme_runtime(controllers=[spec])
        rig = Rig(machine, runtime, machine_window(machine, WINDOW))
        target = rig.open(path.as_uri())
        assert not run(runtime, batch(request(tr.READ, rig.memory, 0, target, 0, size))).status.any()
        assert np.array_equal(rig.window[:size], expected)
        rig.window[:size] = random.integers(0, 256, size, dtype=np.uint8)
        rows = (request(tr.WRITE, rig.memory, 0, target, 0, size), request(tr.FLUSH, 0, 0, target, 0, 0))
        for row in rows:
            assert not run(runtime, batch(row)).status.any()
        direct = tr.make_file_runtime(direct="on", data_path="posix")
        memory = tr.HostMemory(size)
        found = direct.register_memory(memory.address, size)
        opened = direct.open(path.as_uri())
        assert not run(direct, batch(request(tr.READ, found, 0, opened, 0, size))).status.any()
        assert np.array_equal(memory.bytes, rig.window[:size])
        assert direct.shutdown(10.0)
        (device.folder / "hole").touch()
        with (device.folder / "hole").open("r+b") as file:
            file.truncate(size)
        with pytest.raises(tr.ExtentError):
            runtime.open((device.folder / "hole").as_uri())
        assert runtime.shutdown(10.0)
