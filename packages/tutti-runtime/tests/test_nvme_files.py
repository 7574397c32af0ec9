# SPDX-License-Identifier: Apache-2.0
"""Files of a mounted file system, moved around the kernel through a controller that has their blocks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from loop_kit import Device, Loops
from nvme_kit import MIB, PAGE, SoftRig

import tutti_runtime as tr

pytestmark = pytest.mark.root

Open = Callable[..., SoftRig]


@pytest.fixture(scope="module", params=[512, 4096])
def lba_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def rigs(lba_bytes: int) -> Iterator[Open]:
    made: list[SoftRig] = []

    def build(disk: Device, **extra: object) -> SoftRig:
        drive = {
            "image": str(disk.image),
            "memory_bytes": disk.image.stat().st_size,
            "lba_bytes": lba_bytes,
            "block_devices": [{"device": str(disk.path), **extra}],
        }
        made.append(SoftRig(drive))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def new_file(folder: Path | None, name: str, data: bytes) -> Path:
    assert folder is not None
    path = folder / name
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return path


def direct_read(path: Path, size: int) -> bytes:
    """Around the page cache, which does not see what a controller writes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def test_what_the_kernel_wrote_is_read_and_the_other_way_round(loops: Loops, rigs: Open) -> None:
    disk = loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096"))
    content = np.random.default_rng(1).integers(0, 256, 3 * MIB, dtype=np.uint8)
    path = new_file(disk.folder, "kv", content.tobytes())
    rig = rigs(disk)
    buffer, memory = rig.memory(4 * MIB)
    target = rig.runtime.open(path.as_uri())
    assert rig.runtime.query(target)["kind"] == "file"
    assert rig.runtime.query(target)["inode"] == path.stat().st_ino
    assert (rig.move(tr.READ, memory, target, count=12, length=MIB // 4).status == 0).all()
    assert np.array_equal(buffer.bytes[: 3 * MIB], content)
    buffer.fill_random(2)
    assert (rig.move(tr.WRITE, memory, target, count=12, length=MIB // 4).status == 0).all()
    assert direct_read(path, 3 * MIB) == buffer.bytes[: 3 * MIB].tobytes()


def test_a_file_in_pieces(loops: Loops, rigs: Open) -> None:
    disk = loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096"))
    assert disk.folder is not None
    # Two files that grow in turns, each chunk made durable, so that their blocks lie between one another's.
    paths = [disk.folder / name for name in ("a", "b")]
    random = np.random.default_rng(3)
    parts: list[list[bytes]] = [[], []]
    for _ in range(10):
        for i, path in enumerate(paths):
            parts[i].append(random.integers(0, 256, 5 * PAGE, dtype=np.uint8).tobytes())
            with path.open("ab") as file:
                file.write(parts[i][-1])
                os.fsync(file.fileno())
    pieces = len(tr.resolve_extents(paths[0]).extents)
    rig = rigs(disk)
    buffer, memory = rig.memory()
    target = rig.runtime.open(paths[0].as_uri(), writable=False)
    assert rig.move(tr.READ, memory, target, length=50 * PAGE).status[0] == 0
    assert buffer.bytes[: 50 * PAGE].tobytes() == b"".join(parts[0])
    assert rig.control.counters()["reads"] == pieces  # one command for each piece


def test_a_file_whose_blocks_are_not_proven_is_refused(loops: Loops, rigs: Open) -> None:
    disk = loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096"))
    assert disk.folder is not None
    path = disk.folder / "holes"
    with path.open("wb") as file:
        file.truncate(MIB)
    rig = rigs(disk)
    with pytest.raises(tr.ExtentError) as caught:
        rig.runtime.open(path.as_uri())
    assert caught.value.reason == "not_covered"


def test_a_file_of_another_device_is_refused(loops: Loops, rigs: Open, tmp_path: Path) -> None:
    disk = loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096"))
    path = new_file(tmp_path, "elsewhere", bytes(MIB))
    with pytest.raises(OSError, match="no controller of this runtime") as caught:
        rigs(disk).runtime.open(path.as_uri())
    assert caught.value.errno == errno.EXDEV


def test_a_wrong_offset_is_noticed_where_it_can_be(loops: Loops, rigs: Open) -> None:
    disk = loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096"))
    path = new_file(disk.folder, "kv", bytes(MIB))
    with pytest.raises(OSError, match="check offset"):
        rigs(disk, offset=disk.image.stat().st_size).runtime.open(path.as_uri())


def test_blocks_of_an_open_file_stay_its_own(loops: Loops, rigs: Open) -> None:
    """Its last name is gone, yet what the target writes hits no other file."""
    disk = loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096"))
    path = new_file(disk.folder, "kv", bytes(8 * MIB))
    rig = rigs(disk)
    buffer, memory = rig.memory(8 * MIB, seed=4)
    target = rig.runtime.open(path.as_uri())
    path.unlink()
    other = new_file(disk.folder, "other", bytes(40 * MIB))  # of 64 MiB: it would take the blocks if it could
    assert (rig.move(tr.WRITE, memory, target, count=8, length=MIB).status == 0).all()
    assert direct_read(other, 40 * MIB) == bytes(40 * MIB)
    assert buffer.bytes.any()


def test_a_striped_target_over_two_file_systems(loops: Loops, lba_bytes: int) -> None:
    disks = [loops.mount("ext4", 64 * MIB, mkfs=("-b", "4096")) for _ in range(2)]
    for disk in disks:
        new_file(disk.folder, "kv", bytes(2 * MIB))
    specs = [
        {
            "transport": "soft",
            "name": f"disk{i}",
            "image": str(disk.image),
            "memory_bytes": disk.image.stat().st_size,
            "lba_bytes": lba_bytes,
            "block_devices": [{"device": str(disk.path)}],
        }
        for i, disk in enumerate(disks)
    ]
    rig = SoftRig()
    rig.close()
    rig.runtime = tr.make_nvme_runtime(
        controllers=specs, roots=[str(disk.folder) for disk in disks], unit=65536
    )
    buffer, memory = rig.memory(4 * MIB, seed=5)
    target = rig.runtime.open("striped://kv")
    assert (rig.move(tr.WRITE, memory, target, count=4, length=MIB).status == 0).all()
    units = buffer.bytes.reshape(-1, 65536)
    for i, disk in enumerate(disks):
        assert disk.folder is not None
        assert direct_read(disk.folder / "kv", 2 * MIB) == units[i::2].tobytes()
    assert rig.runtime.shutdown(30)
