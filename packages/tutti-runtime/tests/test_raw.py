# SPDX-License-Identifier: Apache-2.0
"""Block devices and image files as targets."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from loop_kit import MIB, Loops
from runtime_kit import KIB, PAGE, Setup, batch, open_files, request, run

import tutti_runtime as tr

SIZE = 256 * KIB


def test_an_image_file_can_be_opened_in_slices(file_setup: Setup) -> None:
    image = file_setup.folder / "image"
    expected = np.random.default_rng(4).integers(0, 256, SIZE, dtype=np.uint8)
    image.write_bytes(expected.tobytes())
    runtime = file_setup.runtime
    buffer, memory = file_setup.memory(SIZE)
    slices = [(0, 64 * KIB), (64 * KIB, 128 * KIB), (192 * KIB, 0)]
    targets = [
        runtime.open(f"raw://{image}?offset={offset}&size={size or 64 * KIB}") for offset, size in slices
    ]
    rest = runtime.open(f"raw://{image}?offset={192 * KIB}")
    facts = [runtime.query(target) for target in [*targets, rest]]
    assert [(f["offset"], f["size"]) for f in facts] == [
        (0, 64 * KIB),
        (64 * KIB, 128 * KIB),
        (192 * KIB, 64 * KIB),
        (192 * KIB, 64 * KIB),
    ]
    rows = [
        request(tr.READ, memory, offset, target, 0, size or 64 * KIB)
        for (offset, size), target in zip(slices, targets, strict=True)
    ]
    run(runtime, batch(*rows))
    assert np.array_equal(buffer.bytes, expected)
    buffer.bytes[:PAGE] = 0xEE
    run(runtime, batch(request(tr.WRITE, memory, 0, rest, PAGE, PAGE), request(tr.FLUSH, 0, 0, rest, 0, 0)))
    assert image.read_bytes()[193 * KIB + 3 * KIB] == 0xEE
    outside = runtime.submit(batch(request(tr.READ, memory, 0, targets[0], 64 * KIB, PAGE)))
    assert outside.errors.tolist() == [
        errno.EINVAL
    ]  # a slice ends where it was said to, not where the file does


def test_an_odd_image_is_cut_to_whole_pages(file_setup: Setup) -> None:
    image = file_setup.folder / "image"
    image.write_bytes(bytes(2 * PAGE + 100))
    assert file_setup.runtime.query(file_setup.runtime.open(f"raw://{image}"))["size"] == 2 * PAGE
    image.write_bytes(bytes(100))
    with pytest.raises(tr.InvalidUriError, match="holds 100 bytes"):
        file_setup.runtime.open(f"raw://{image}")


BAD_RAW = {
    "raw://": "raw:///absolute/path",
    "raw://x": "raw:///absolute/path",
    "raw://host/x": "raw:///absolute/path",
    "raw:///x?": "cannot look",
    "raw:///x?offset=1": "multiple of 4096",
    "raw:///x?offset=-4096": "decimal",
    "raw:///x?offset=9223372036854775808": "decimal",
    "raw:///x?size=0": "4096 to",
    "raw:///x?size=4097": "multiple of 4096",
    "raw:///x?size=4096&size=4096": "twice",
    "raw:///x?length=4096": "known keys: offset, size",
    "raw:///x#y": "%23",
    "raw:///a/../x": "'..'",
    "raw:///x%00": "NUL",
}


@pytest.mark.parametrize("uri", BAD_RAW)
def test_a_bad_raw_uri_names_the_rule(uri: str) -> None:
    with tr.make_file_runtime(data_path="posix", threads=1) as runtime:
        with pytest.raises((tr.InvalidUriError, FileNotFoundError)) as caught:
            runtime.open(uri)
        assert BAD_RAW[uri] in str(caught.value)


@pytest.mark.parametrize(
    "query", [f"offset={SIZE}", f"offset={2**63 - 4096}", f"size={SIZE + PAGE}", f"offset={PAGE}&size={SIZE}"]
)
def test_a_slice_must_lie_inside(file_setup: Setup, query: str) -> None:
    image = file_setup.folder / "image"
    image.write_bytes(bytes(SIZE))
    with pytest.raises(tr.InvalidUriError, match="must lie inside"):
        file_setup.runtime.open(f"raw://{image}?{query}")
    assert image.stat().st_size == SIZE


def test_what_is_neither_device_nor_file(tmp_path: Path, file_setup: Setup) -> None:
    with pytest.raises(IsADirectoryError, match="block device or an image file"):
        file_setup.runtime.open(f"raw://{tmp_path}")
    with pytest.raises(OSError, match="character device") as caught:
        file_setup.runtime.open("raw:///dev/zero")
    assert caught.value.errno == errno.EINVAL
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic link"):
        file_setup.runtime.open(f"raw://{tmp_path}/link")


@pytest.mark.root
def test_a_block_device_is_a_target(file_setup: Setup, loops: Loops) -> None:
    device = loops.device(4 * MIB)
    runtime = file_setup.runtime
    buffer, memory = file_setup.memory(SIZE)
    expected = buffer.fill_random(6)
    target = runtime.open(f"raw://{device.path}")
    facts = runtime.query(target)
    assert (facts["kind"], facts["size"], facts["path"]) == ("device", 4 * MIB, str(device.path))
    assert facts["root"] == device.path.stat().st_rdev
    run(runtime, batch(request(tr.WRITE, memory, 0, target, MIB, SIZE)))
    assert run(runtime, batch(request(tr.FLUSH, 0, 0, target, 0, 0))).status.tolist() == [0]
    assert device.image.read_bytes()[MIB : MIB + SIZE] == expected.tobytes()
    buffer.bytes[:] = 0
    run(runtime, batch(request(tr.READ, memory, 0, target, MIB, SIZE)))
    assert np.array_equal(buffer.bytes, expected)
    with pytest.raises(OSError, match="which raw:// opens") as caught:
        runtime.open(f"file://{device.path}")
    assert caught.value.errno == errno.EINVAL


@pytest.mark.root
def test_a_device_that_is_written_is_held_alone(file_setup: Setup, loops: Loops) -> None:
    device = loops.device(4 * MIB)
    runtime = file_setup.runtime
    held = runtime.open(f"raw://{device.path}?size={MIB}")
    again = runtime.open(
        f"raw://{device.path}?offset={MIB}&size={MIB}"
    )  # its own runtime may have more slices
    reader = runtime.open(f"raw://{device.path}", writable=False)  # a reader disturbs nobody
    with tr.make_file_runtime(data_path="posix") as other, pytest.raises(OSError, match="in use") as caught:
        other.open(f"raw://{device.path}")
    assert caught.value.errno == errno.EBUSY
    runtime.close(held)
    with tr.make_file_runtime(data_path="posix") as other, pytest.raises(OSError, match="in use"):
        other.open(f"raw://{device.path}")
    runtime.close_batch([again, reader])
    with tr.make_file_runtime(data_path="posix") as other:
        other.open(f"raw://{device.path}")


@pytest.mark.root
def test_a_mounted_device_is_not_written(file_setup: Setup, loops: Loops) -> None:
    device = loops.mount("ext4", 16 * MIB)
    before = open_files()
    with pytest.raises(OSError, match="mounted") as caught:
        file_setup.runtime.open(f"raw://{device.path}")
    assert caught.value.errno == errno.EBUSY
    assert caught.value.filename == str(device.path)
    assert open_files() == before
    file_setup.runtime.open(f"raw://{device.path}", writable=False)


@pytest.mark.root
def test_a_read_only_device(file_setup: Setup, loops: Loops) -> None:
    device = loops.device(4 * MIB, "-r")
    before = open_files()
    with pytest.raises(OSError, match="read-only") as caught:
        file_setup.runtime.open(f"raw://{device.path}")
    assert caught.value.errno == errno.EROFS
    assert open_files() == before
    target = file_setup.runtime.open(f"raw://{device.path}", writable=False)
    _, memory = file_setup.memory(SIZE)
    assert run(file_setup.runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE))).status.tolist() == [0]


@pytest.mark.root
@pytest.mark.parametrize("block", [512, 4096])
def test_logical_blocks_up_to_a_page(file_setup: Setup, loops: Loops, block: int) -> None:
    device = loops.device(4 * MIB, "-b", str(block))
    target = file_setup.runtime.open(f"raw://{device.path}?offset={PAGE}")
    _, memory = file_setup.memory(SIZE)
    rows = batch(request(tr.WRITE, memory, PAGE, target, PAGE, PAGE))
    assert run(file_setup.runtime, rows).status.tolist() == [0]


@pytest.mark.root
def test_a_device_that_lost_its_medium(file_setup: Setup, loops: Loops) -> None:
    device, healthy = loops.device(4 * MIB), loops.device(4 * MIB)
    runtime = file_setup.runtime
    target, other = runtime.open(f"raw://{device.path}"), runtime.open(f"raw://{healthy.path}")
    _, memory = file_setup.memory(SIZE)
    os.truncate(device.image, MIB)
    rows = batch(
        request(tr.READ, memory, 0, target, 2 * MIB, PAGE),
        request(tr.READ, memory, PAGE, target, 0, PAGE),
        request(tr.READ, memory, 2 * PAGE, other, 2 * MIB, PAGE),
    )
    done = run(runtime, rows)
    assert done.status.tolist() == [errno.EIO, 0, 0]
    os.truncate(device.image, 4 * MIB)
    assert not run(runtime, rows).status.any()


@pytest.mark.root
def test_a_device_that_is_detached(file_setup: Setup, loops: Loops) -> None:
    """The kernel takes a loop device away when its last user closes it, so the next open finds it empty."""
    device = loops.device(4 * MIB)
    runtime = file_setup.runtime
    target = runtime.open(f"raw://{device.path}")
    subprocess.run(["losetup", "-d", str(device.path)], check=True)
    _, memory = file_setup.memory(SIZE)
    rows = batch(request(tr.READ, memory, 0, target, 0, PAGE))
    assert run(runtime, rows).status.tolist() == [0]
    runtime.close(target)
    with pytest.raises((OSError, tr.InvalidUriError)):
        runtime.open(f"raw://{device.path}", writable=False)
