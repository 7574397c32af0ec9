# SPDX-License-Identifier: Apache-2.0
"""Loop devices and small file systems on them; every one is detached again, whatever a test does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["MIB", "Device", "Loops", "loops_of"]

MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """A loop device, the file behind it, and where it is mounted, if it is."""

    path: Path
    image: Path
    folder: Path | None = None


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"not possible here: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _must(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Loops:
    """Makes loop devices below one folder; skips the test where they cannot be had."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._made = 0

    def device(self, size: int, *options: str, prepare: Callable[[Path], None] | None = None) -> Device:
        """A loop device over a new file; ``options`` are losetup's, ``prepare`` fills the file before."""
        if os.geteuid() != 0:
            pytest.skip("a loop device needs root")
        if shutil.which("losetup") is None:
            pytest.skip("losetup is not installed")
        self._made += 1
        image = self._folder / f"image-{self._made}"
        with image.open("wb") as file:
            file.truncate(size)
        if prepare is not None:
            prepare(image)
        path = Path(_run("losetup", "--show", "-f", *options, str(image)))
        self._stack.callback(subprocess.run, ["losetup", "-d", str(path)], check=False, capture_output=True)
        return Device(path, image)

    def mount(self, kind: str, size: int, *, mkfs: tuple[str, ...] = (), options: str = "noatime") -> Device:
        """A file system of ``kind``, mounted; ``mkfs`` and ``options`` go to mkfs and mount."""
        tool = f"mkfs.{kind}"
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
        quiet = {"ext4": ("-q", "-F"), "xfs": ("-q", "-f"), "btrfs": ("-q", "-f")}[kind]
        device = self.device(size, prepare=lambda image: _must(tool, *quiet, *mkfs, str(image)))
        folder = self._folder / f"mounted-{self._made}"
        folder.mkdir()
        _run("mount", "-t", kind, "-o", options, str(device.path), str(folder))
        self._stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False, capture_output=True)
        return Device(device.path, device.image, folder)


@contextmanager
def loops_of(folder: Path) -> Iterator[Loops]:
    with ExitStack() as stack:
        yield Loops(folder, stack)
