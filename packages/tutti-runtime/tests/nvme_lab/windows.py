# SPDX-License-Identifier: Apache-2.0
"""Memory that a machine's devices reach: mappings of its memory's file, or of a peer's."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nvme_lab.machine import Machine

__all__ = ["machine_window", "peer_window", "shared_window"]

ALIGN = 64 * 1024


@contextmanager
def shared_window(path: Path, offset: int, size: int) -> Iterator[NDArray[np.uint8]]:
    """``size`` bytes of a file at or after ``offset``, at an address that can be registered.

    The mapping stays as long as the array or a part of it does.
    """
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), size + ALIGN, offset=offset)
    whole = np.frombuffer(mapped, np.uint8)
    skip = -int(whole.ctypes.data) % ALIGN
    yield whole[skip : skip + size]


def machine_window(machine: Machine, size: int) -> Iterator[NDArray[np.uint8]]:
    """Of the half that is the caller's."""
    return shared_window(machine.ram, machine.ram_bytes // 2, size)


def peer_window(machine: Machine, size: int) -> Iterator[NDArray[np.uint8]]:
    """Of another device on the bus."""
    assert machine.peer is not None
    return shared_window(machine.peer.file, 0, size)
