# SPDX-License-Identifier: Apache-2.0
"""A file system of some megabytes on a loop device."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["fill_up", "remount", "small_disk", "unmount"]


@contextlib.contextmanager
def small_disk(directory: Path, size: int) -> Iterator[Path]:
    """Mount an ext4 of that size; skip the test where that cannot be done."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root and mkfs.ext4 to make a small disk")
    image, mount = directory / "disk.img", directory / "disk"
    image.touch()
    os.truncate(image, size)
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a loop device: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        unmount(mount)


def unmount(mount: Path) -> None:
    """Unmount, and try again for some seconds: a store whose disk failed may end a little after its close."""
    deadline = time.monotonic() + 20
    while True:
        done = subprocess.run(["umount", str(mount)], capture_output=True, text=True)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
            left = [link for link in links if link.startswith(f"{mount}/")]
            pytest.fail(f"umount {mount}: {done.stderr.strip()}; still open here: {left}")
        time.sleep(0.1)


def remount(mount: Path, how: str) -> None:
    """Remount read-only (``ro``) or writable (``rw``)."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(mount)], check=True)


def fill_up(path: Path, leave: int = 0) -> None:
    """Write zeros until there is no room for a single block, or until ``leave`` bytes are free."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for size in (1 << 20, 4096):
            try:
                while not leave or os.statvfs(path).f_bavail * os.statvfs(path).f_frsize > leave + size:
                    os.write(descriptor, bytes(size))
                    os.fsync(descriptor)
            except OSError as error:
                assert error.errno == errno.ENOSPC
    finally:
        os.close(descriptor)
