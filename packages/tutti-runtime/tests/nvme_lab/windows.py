# SPDX-License-Identifier: Apache-2.0
"""Memory that a machine's devices reach: mappings of its memory's file, or of a peer's."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nvme_lab.machine import Machine
from tutti_runtime.host_memory import HostMemory
from tutti_runtime.testing.subjects import Subject

__all__ = ["MachineSubject", "machine_window", "peer_window"]

ALIGN = 64 * 1024


def _window(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    """``size`` bytes of a file at or after ``offset``, at an address that can be registered.

    They stay mapped as long as the array or a part of it is there.
    """
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), size + ALIGN, offset=offset)
    whole = np.frombuffer(mapped, np.uint8)
    skip = -int(whole.ctypes.data) % ALIGN
    return whole[skip : skip + size]


def machine_window(machine: Machine, size: int, behind: int = 0) -> NDArray[np.uint8]:
    """Of the half that is the caller's, ``behind`` bytes (whole pages) from its beginning."""
    return _window(machine.ram, machine.ram_bytes // 2 + behind, size)


def peer_window(machine: Machine, size: int) -> NDArray[np.uint8]:
    """Of another device on the bus."""
    assert machine.peer is not None
    return _window(machine.peer.file, 0, size)


class MachineMemory(HostMemory):
    """What the contract's checks expect of memory, in a machine's."""

    def __init__(self, machine: Machine, size: int, behind: int) -> None:
        self.bytes = machine_window(machine, size, behind)
        self.address = int(self.bytes.ctypes.data)
        self.huge_pages = False
        self.size = size


class MachineSubject(Subject):
    """A runtime on a machine's drives whose memory is the machine's."""

    machine: Machine
    used: int = 0

    def memory(self, size: int) -> tuple[HostMemory, int]:
        memory = MachineMemory(self.machine, size, self.used)
        self.used += (size + 2 * ALIGN - 1) // ALIGN * ALIGN
        self._kept.append(memory)
        return memory, self.runtime.register_memory(memory.address, size)
