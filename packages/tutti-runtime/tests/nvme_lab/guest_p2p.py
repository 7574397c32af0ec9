# SPDX-License-Identifier: Apache-2.0
"""Under a guest with P2PDMA: files of one drive go into another drive's memory by the ordinary data paths.

The command line names the case: ``route`` (both drives below one PCIe switch) or ``no-route``.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tutti_runtime as tr
from nvme_lab import guest_kernel as kernel
from nvme_lab.guest_report import report

__all__ = ["CHECKS"]

MIB = 1 << 20
WINDOW = 2 * MIB
REQUESTS = 4


def content(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


@dataclass
class Guest:
    """``memory``: another drive's, as the kernel's P2PDMA gives it to user space."""

    drives: dict[str, str] = field(default_factory=dict)
    memory: mmap.mmap | None = None
    address: int = 0

    def window(self) -> np.ndarray:
        """One MiB of it that begins at a multiple of 64 KiB."""
        assert self.memory is not None
        whole = np.frombuffer(self.memory, np.uint8)
        skip = -int(whole.ctypes.data) % 65536
        return whole[skip : skip + MIB]


def memory_of_the_other_drive(guest: Guest) -> None:
    guest.drives = kernel.controllers()
    allocator = Path("/sys/bus/pci/devices") / guest.drives["CMB"] / "p2pmem" / "allocate"
    file = os.open(allocator, os.O_RDWR)
    try:
        guest.memory = mmap.mmap(file, WINDOW)
    finally:
        os.close(file)
    view = guest.window()
    view[:4] = (1, 2, 3, 4)
    assert view[:4].tolist() == [1, 2, 3, 4]


def _run(guest: Guest, data_path: str, direction: int, window: np.ndarray, path: Path) -> tr.Completion:
    with tr.make_file_runtime(data_path=data_path, direct="on") as runtime:
        memory = runtime.register_memory(int(window.ctypes.data), MIB)
        target = runtime.open(path.as_uri())
        requests = np.zeros(REQUESTS, dtype=tr.REQUEST_DTYPE)
        requests["direction"], requests["memory"], requests["target"] = direction, memory, target
        requests["length"] = MIB // REQUESTS
        requests["memory_offset"] = requests["target_offset"] = np.arange(REQUESTS) * (MIB // REQUESTS)
        result = runtime.submit(requests, timeout=60)
        assert result.accepted.all(), result.errors
        done = runtime.wait(result.handle, timeout=90)
        runtime.close(target)
        runtime.unregister_memory(memory)
        return done


def _there_and_back(guest: Guest, data_path: str) -> None:
    with kernel.mounted(guest.drives["DATA"], Path("/tmp/mount")) as folder:
        path = folder / data_path
        kernel.write_direct(path, content(MIB, 5))
        window = guest.window()
        window[:] = 0
        done = _run(guest, data_path, tr.READ, window, path)
        assert not done.status.any(), done.status
        assert window.tobytes() == content(MIB, 5)
        window[:] = np.frombuffer(content(MIB, 6), np.uint8)
        done = _run(guest, data_path, tr.WRITE, window, path)
        assert not done.status.any(), done.status
        assert kernel.read_direct(path, MIB) == content(MIB, 6)


def threads_reach_it(guest: Guest) -> None:
    _there_and_back(guest, "posix")


def io_uring_reaches_it(guest: Guest) -> None:
    _there_and_back(guest, "uring")


def without_a_route_every_item_fails(guest: Guest) -> None:
    for data_path in ("posix", "uring"):
        with kernel.mounted(guest.drives["DATA"], Path("/tmp/mount")) as folder:
            path = folder / data_path
            kernel.write_direct(path, content(MIB, 7))
            done = _run(guest, data_path, tr.READ, guest.window(), path)
            assert set(done.status.tolist()) == {errno.EINVAL}, done.status
            assert not done.bytes.any()


def host_memory_still_works(guest: Guest) -> None:
    memory = tr.HostMemory(MIB)
    with kernel.mounted(guest.drives["DATA"], Path("/tmp/mount")) as folder:
        path = folder / "posix"
        done = _run(guest, "uring", tr.READ, memory.bytes, path)
        assert not done.status.any(), done.status
        assert memory.bytes.tobytes() == content(MIB, 7)


CHECKS: dict[str, tuple[Callable[[Guest], None], ...]] = {
    "route": (memory_of_the_other_drive, threads_reach_it, io_uring_reaches_it),
    "no-route": (memory_of_the_other_drive, without_a_route_every_item_fails, host_memory_still_works),
}


if __name__ == "__main__":
    report(Guest(), CHECKS[sys.argv[1]])
