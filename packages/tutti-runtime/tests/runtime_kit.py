# SPDX-License-Identifier: Apache-2.0
"""What the tests of this package share: memory, targets, requests and runtimes of every data path."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import tutti_runtime as tr
from tutti_runtime import _core
from tutti_runtime.host_memory import HostMemory

KIB = 1024
PAGE = 4096
ALIGN = 64 * KIB


class Buffer(HostMemory):
    """Memory that can be registered."""

    def fill_random(self, seed: int) -> np.ndarray:
        self.bytes[:] = np.random.default_rng(seed).integers(0, 256, self.size, dtype=np.uint8)
        return self.bytes.copy()


@dataclass
class Setup:
    """A runtime of one kind, with a way to make targets for it."""

    name: str
    direct: str
    folder: Path
    runtime: tr.Runtime
    _made: int = field(default=0)
    _kept: list[Buffer] = field(default_factory=list)

    def uri(self, size: int) -> str:
        self._made += 1
        if self.name == "memory":
            return f"mem://target-{self._made}?size={size}"
        path = self.folder / f"target-{self._made}"
        with path.open("wb") as file:
            file.truncate(size)
        return path.as_uri()

    def target(self, size: int, *, writable: bool = True) -> int:
        return self.runtime.open(self.uri(size), writable=writable)

    def memory(self, size: int) -> tuple[Buffer, int]:
        buffer = Buffer(size)
        self._kept.append(buffer)  # registered memory must stay mapped, whatever a test does with its name
        return buffer, self.runtime.register_memory(buffer.address, size)


def request(
    direction: int, memory: int, memory_offset: int, target: int, target_offset: int, length: int
) -> tuple:
    return (direction, 0, memory, memory_offset, target, target_offset, length)


def batch(*rows: tuple) -> np.ndarray:
    return np.array(list(rows), dtype=tr.REQUEST_DTYPE)


def run(runtime: tr.Runtime, requests: np.ndarray, timeout: float = 30.0) -> tr.Completion:
    """Submit a batch that must be accepted whole, and wait for it."""
    result = runtime.submit(requests)
    assert result.accepted.all(), result.errors
    assert result.handle is not None
    return runtime.wait(result.handle, timeout)


def until_the_kernel_holds_a_thread(seconds: float = 30.0) -> None:
    """Return once a thread of this process, io_uring's among them, waits in the kernel and goes on to."""
    end, before = time.monotonic() + seconds, set[str]()
    while True:
        now = set()
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it may have ended
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                now |= {task.name} if state == "D" else set()
        if now & before:
            return
        assert time.monotonic() < end, "nothing is held"
        before = now
        threading.Event().wait(0.02)


def open_files() -> int:
    """Descriptors of this process; the look at them counts as one."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def file_system(path: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, what, *_ = line.split()
        where = where.encode().decode("unicode_escape")
        if os.path.commonpath([str(path), where]) == where and len(where) >= len(best):
            best, kind = where, what
    return kind


def takes_direct(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(bytes(PAGE))
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return file_system(folder.resolve()) not in ("tmpfs", "overlay")


def make(name: str, direct: str, folder: Path, **settings: int) -> tr.Runtime:
    if name == "memory":
        settings.pop("threads", None)
        settings.pop("queue_depth", None)
        return tr.make_memory_runtime(**settings)
    if direct == "on" and not takes_direct(folder):
        pytest.skip(f"{file_system(folder.resolve())} of the temporary folder takes no O_DIRECT")
    try:
        return tr.make_file_runtime(data_path=name, direct=direct, **settings)
    except OSError as error:
        if name != "uring":
            raise
        pytest.skip(f"no io_uring here: {error}")


def faulty(name: str, control: _core.FaultControl, **settings: object) -> tr.Runtime:
    """A runtime whose data path misbehaves as `control` says; files are opened without O_DIRECT."""
    if name == "memory":
        return tr.Runtime(_core.make_memory(settings.get("max_in_flight", 4096), control))  # type: ignore[arg-type]
    try:
        return tr.Runtime(_core.make_file(data_path=name, direct="off", **settings, fault=control))
    except OSError as error:
        if name != "uring":
            raise
        pytest.skip(f"no io_uring here: {error}")


MakeFaulty = Callable[..., "tuple[Setup, _core.FaultControl]"]


def pages(setup: Setup, direction: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    buffer, memory = setup.memory(16 * PAGE)
    target = setup.target(16 * PAGE)
    rows = batch(*[request(direction, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(count)])
    return rows, buffer.bytes


FILE_PATHS = [("posix", "on"), ("posix", "off"), ("uring", "on"), ("uring", "off")]
ALL_PATHS = [("memory", "none"), *FILE_PATHS]


def pair_id(pair: tuple[str, str]) -> str:
    return pair[0] if pair[0] == "memory" else f"{pair[0]}-direct_{pair[1]}"


def child(code: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run `code` in a Python of its own, with the helpers at hand; returns what it printed."""
    start = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


class LoopMount:
    """A small ext4 of its own on a loop device, which can be frozen: writes then wait until it is thawed."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder / "mounted"
        self.folder.mkdir()
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size)
        command = ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)]
        self._run(command)
        self._run(["mount", "-o", "loop", str(image), str(self.folder)])
        self._frozen = False

    @staticmethod
    def _run(command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no loop mount here: {' '.join(command[:1])} says {done.stderr.strip()}")

    def _ioctl(self, code: int) -> None:
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, code, 0)
        finally:
            os.close(fd)

    def freeze(self) -> None:
        # A process with writes on a frozen file system cannot even be killed: should this one hang or be
        # ended, somebody else must thaw.
        rescue = ["sh", "-c", 'sleep 60; exec fsfreeze -u "$0"', str(self.folder)]
        self._rescue = subprocess.Popen(rescue, start_new_session=True, stderr=subprocess.DEVNULL)
        self._ioctl(0xC0045877)  # FIFREEZE
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._ioctl(0xC0045878)  # FITHAW
            self._frozen = False
            os.killpg(self._rescue.pid, signal.SIGKILL)
            self._rescue.wait()

    def unmount(self) -> None:
        self.thaw()
        subprocess.run(["umount", "-l", str(self.folder)], check=False)
