# SPDX-License-Identifier: Apache-2.0
"""Extents are proven or refused with the reason, on real file systems; the proof is checked byte by byte."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from loop_kit import MIB, Device, Loops
from runtime_kit import KIB, PAGE, file_system

import tutti_runtime as tr

pytestmark = pytest.mark.root
EXT4 = 32 * MIB
FOUR_KIB = ("-b", "4096", "-m", "0")


def content(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def folder_of(device: Device) -> Path:
    assert device.folder is not None
    return device.folder


def refused(path: Path, reason: str, *, sync: bool = True) -> tr.ExtentError:
    with pytest.raises(tr.ExtentError) as caught:
        tr.resolve_extents(path, sync=sync)
    assert caught.value.reason == reason, caught.value
    assert caught.value.path == str(path)
    assert reason in tr.EXTENT_REASONS
    assert str(caught.value).startswith(reason)
    return caught.value


def bytes_below(device: Device, extents: np.ndarray) -> bytes:
    """What lies at the extents on the device, without the file system."""
    image = device.image.read_bytes()
    return b"".join(image[e["physical"] : e["physical"] + e["length"]] for e in extents)


@pytest.fixture
def ext4(loops: Loops) -> Device:
    return loops.mount("ext4", EXT4, mkfs=FOUR_KIB)


@pytest.mark.parametrize("size", [1, PAGE, 100 * KIB + 5, 5 * MIB])
def test_the_bytes_are_where_the_map_says(ext4: Device, size: int) -> None:
    path = folder_of(ext4) / "data"
    data = content(size)
    path.write_bytes(data)
    found = tr.resolve_extents(path)
    assert found.extents.dtype == tr.EXTENT_DTYPE
    assert int(found.extents["length"].sum()) == -(-size // PAGE) * PAGE
    assert found.extents["logical"].tolist() == [0, *np.cumsum(found.extents["length"])[:-1].tolist()]
    assert bytes_below(ext4, found.extents)[:size] == data
    assert found.signature.size == size
    assert found.block_device == (os.major(path.stat().st_dev), os.minor(path.stat().st_dev))


def test_xfs_is_as_good(loops: Loops) -> None:
    device = loops.mount("xfs", 320 * MIB)
    path = folder_of(device) / "data"
    data = content(3 * MIB)
    path.write_bytes(data)
    assert bytes_below(device, tr.resolve_extents(path).extents) == data


def test_an_empty_file(ext4: Device) -> None:
    (folder_of(ext4) / "empty").touch()
    refused(folder_of(ext4) / "empty", "empty")


def test_allocated_but_never_written(ext4: Device) -> None:
    path = folder_of(ext4) / "data"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * KIB)
    error = refused(path, "unwritten")
    assert error.extent is not None
    logical, _, length, flags = error.extent
    assert (logical, length) == (0, 64 * KIB)
    assert flags & 0x800
    with path.open("r+b") as file:  # half of it is written: still refused
        file.write(content(32 * KIB))
    refused(path, "unwritten")
    path.write_bytes(content(64 * KIB))
    tr.resolve_extents(path)


def test_blocks_allocated_behind_the_end_do_not_matter(ext4: Device) -> None:
    path = folder_of(ext4) / "data"
    path.write_bytes(content(32 * KIB))
    subprocess.run(["fallocate", "-n", "-l", str(128 * KIB), str(path)], check=True)
    assert int(tr.resolve_extents(path).extents["length"].sum()) == 32 * KIB


def test_written_but_without_a_place(ext4: Device) -> None:
    path = folder_of(ext4) / "data"
    path.write_bytes(content(64 * KIB))
    refused(path, "delalloc", sync=False)
    assert bytes_below(ext4, tr.resolve_extents(path).extents) == content(64 * KIB)


@pytest.mark.parametrize("blocks", [(0, 2), (1,)])
def test_holes(ext4: Device, blocks: tuple[int, ...]) -> None:
    path = folder_of(ext4) / "data"
    with path.open("wb") as file:
        for block in blocks:
            file.seek(block * 64 * KIB)
            file.write(content(64 * KIB))
    refused(path, "hole")


def test_a_hole_at_the_end(ext4: Device) -> None:
    path = folder_of(ext4) / "data"
    path.write_bytes(content(64 * KIB))
    os.truncate(path, 128 * KIB)
    refused(path, "not_covered")


def test_data_inside_the_inode(loops: Loops) -> None:
    device = loops.mount("ext4", EXT4, mkfs=(*FOUR_KIB, "-O", "inline_data", "-I", "256"))
    path = folder_of(device) / "small"
    path.write_bytes(b"x" * 40)
    refused(path, "inline")
    path.write_bytes(content(64 * KIB))
    tr.resolve_extents(path)


def test_blocks_of_one_kib_can_be_off_a_page(loops: Loops) -> None:
    device = loops.mount("ext4", EXT4, mkfs=("-b", "1024", "-m", "0"))
    folder = folder_of(device)
    reasons = []
    for i in range(8):
        (folder / f"pad-{i}").write_bytes(b"x" * 1024)
        path = folder / f"data-{i}"
        path.write_bytes(content(8 * KIB, i))
        try:
            found = tr.resolve_extents(path)
            assert not (found.extents["physical"] % PAGE).any()
            assert bytes_below(device, found.extents) == content(8 * KIB, i)
        except tr.ExtentError as error:
            reasons.append(error.reason)
    assert set(reasons) == {"misaligned"}


def test_a_file_in_too_many_pieces(loops: Loops) -> None:
    device = loops.mount("ext4", 16 * MIB, mkfs=(*FOUR_KIB, "-O", "^has_journal", "-N", "4096"))
    folder = folder_of(device)
    pads = []
    try:
        for i in range(4000):
            pads.append(folder / f"pad-{i}")
            pads[-1].write_bytes(b"x" * PAGE)
    except OSError:
        pads.pop().unlink(missing_ok=True)
    os.sync()
    for pad in pads[::2]:
        pad.unlink()
    os.sync()
    path = folder / "data"
    path.write_bytes(content(200 * PAGE))
    error = refused(path, "too_many")
    assert error.extent is not None
    assert error.extent[0] >= 124 * PAGE
    path.write_bytes(content(100 * PAGE))
    found = tr.resolve_extents(path)
    assert 1 < len(found.extents) <= 124
    assert bytes_below(device, found.extents) == content(100 * PAGE)


def test_blocks_of_two_files(loops: Loops) -> None:
    device = loops.mount("xfs", 320 * MIB, mkfs=("-m", "reflink=1"))
    one, two = folder_of(device) / "one", folder_of(device) / "two"
    one.write_bytes(content(64 * KIB))
    tr.resolve_extents(one)
    subprocess.run(["cp", "--reflink=always", str(one), str(two)], check=True)
    refused(one, "shared")
    refused(two, "shared")
    one.write_bytes(content(64 * KIB))  # truncated first, so it gets blocks of its own
    tr.resolve_extents(one)


def test_compressed_data(loops: Loops) -> None:
    device = loops.mount("btrfs", 128 * MIB, options="noatime,compress-force=zlib")
    path = folder_of(device) / "data"
    path.write_bytes(b"abcd" * 64 * KIB)
    refused(path, "encoded")


def test_addresses_of_no_single_device(loops: Loops) -> None:
    device = loops.mount("btrfs", 128 * MIB)
    path = folder_of(device) / "data"
    path.write_bytes(content(256 * KIB))
    refused(path, "file_system")


def test_data_that_goes_through_the_journal(loops: Loops) -> None:
    device = loops.mount("ext4", EXT4, mkfs=FOUR_KIB, options="noatime,data=journal")
    path = folder_of(device) / "data"
    path.write_bytes(content(64 * KIB))
    refused(path, "journaled")


def test_one_file_that_goes_through_the_journal(ext4: Device) -> None:
    path = folder_of(ext4) / "data"
    path.touch()
    done = subprocess.run(["chattr", "+j", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs CAP_SYS_RESOURCE: {done.stderr.strip()}")
    path.write_bytes(content(64 * KIB))
    refused(path, "journaled")


def test_a_file_system_without_extents() -> None:
    folder = Path("/dev/shm")
    if file_system(folder) != "tmpfs" or not os.access(folder, os.W_OK):
        pytest.skip("/dev/shm is no tmpfs that can be written")
    path = folder / f"tutti-extents-{os.getpid()}"
    try:
        path.write_bytes(bytes(PAGE))
        refused(path, "unsupported")
    finally:
        path.unlink(missing_ok=True)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tr.resolve_extents(tmp_path / "missing")
    with pytest.raises(OSError, match="only a regular file"):
        tr.resolve_extents(tmp_path)
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic link") as caught:
        tr.resolve_extents(tmp_path / "link")
    assert caught.value.filename == str(tmp_path / "link")
    with pytest.raises(ValueError, match="NUL"):
        tr.resolve_extents("/a\0b")


def test_revalidation_says_what_changed(ext4: Device) -> None:
    path = folder_of(ext4) / "data"
    path.write_bytes(content(64 * KIB))
    found = tr.resolve_extents(path)
    assert found.revalidate().unchanged

    with path.open("r+b") as file:  # in place: the same blocks
        file.write(content(64 * KIB, 2))
        os.fsync(file.fileno())
    after = found.revalidate()
    assert not after.unchanged
    assert after.same_extents

    os.truncate(path, 32 * KIB)
    after = found.revalidate()
    assert not after.same_extents
    assert {"size", "extents_hash"} <= set(after.differences)

    found = tr.resolve_extents(path)
    subprocess.run(["fallocate", "-p", "-o", "4096", "-l", "4096", str(path)], check=True)
    assert found.revalidate().differences == ("hole",)

    path.write_bytes(content(64 * KIB))
    found = tr.resolve_extents(path)
    other = path.with_name("other")
    other.write_bytes(content(64 * KIB))
    os.sync()
    other.rename(path)
    assert not found.revalidate().same_extents
    path.unlink()
    assert found.revalidate().differences == ("missing",)


def test_targets_tell_the_extents_of_their_files(ext4: Device) -> None:
    folder = folder_of(ext4)
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(content(64 * KIB))
    with tr.make_striped_runtime(roots=[folder / "a", folder / "b"], unit=PAGE) as runtime:
        maps = runtime.resolve_extents(runtime.open("striped://x"))
        assert [m.path for m in maps] == [str(folder / "a/x"), str(folder / "b/x")]
        target = runtime.open((folder / "a/x").as_uri())
        (one,) = runtime.resolve_extents(target)
        assert one.signature == maps[0].signature
        (folder / "b/x").rename(folder / "a/x")
        with pytest.raises(tr.ExtentError, match="another file") as caught:
            runtime.resolve_extents(target)
        assert caught.value.reason == "changed"
        device = runtime.open(f"raw://{ext4.path}", writable=False)
        with pytest.raises(ValueError, match="device target has no extents"):
            runtime.resolve_extents(device)
    with tr.make_memory_runtime() as runtime, pytest.raises(ValueError, match="memory target has no extents"):
        runtime.resolve_extents(runtime.open("mem://x?size=4096"))
