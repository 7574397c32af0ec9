# SPDX-License-Identifier: Apache-2.0
"""In the guest: teams of threads that fill queues through vfio, and registers that are taken away."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tutti_runtime as tr
from tutti_runtime.nvme_layers import NvmeLayers

__all__ = ["LayeredFile", "by_teams", "lose_the_registers", "move"]

SLICE = 16384
TEAMS = 2
# linux/vfio.h
GET_REGION_INFO = ord(";") << 8 | 108
CONFIG_REGION = 7
# PCI Local Bus Specification: the command register, and whether the device answers in memory space.
COMMAND, MEMORY_SPACE = 4, 2


def by_teams(bdfs: Sequence[str]) -> tr.Runtime:
    """Return a runtime on vfio drives, each with a queue for the CPU and two for teams."""
    controllers = [{"transport": "vfio", "bdf": bdf} for bdf in bdfs]
    runtime = tr.make_nvme_runtime(controllers=controllers, device_executor="cpu", device_queues=TEAMS)
    said = runtime.caps()
    assert said["device_execution"] is True, said
    assert f"{TEAMS * len(bdfs)} teams" in said["features_used"]["device_execution"], said
    return runtime


def move(runtime: tr.Runtime, rows: np.ndarray, *, timeout: float = 60) -> np.ndarray:
    """Status of each row, submitted by the device."""
    result = runtime.submit(rows, timeout=timeout, execution="device")
    assert result.accepted.all(), result.errors
    return runtime.wait(result.handle, timeout=90).status


class LayeredFile:
    """A file's extents on a drive as layers that write and read all of it, one slice behind the other."""

    def __init__(self, bdf: str, extents: Sequence[tuple[int, int, int]], size: int, lba_bytes: int) -> None:
        self.memory = tr.HostMemory(size)
        self.layers = NvmeLayers(controllers=[{"transport": "vfio", "bdf": bdf}], queues=TEAMS)
        window = self.layers.add_window(self.memory.address, size)
        blocks = [tuple(part // lba_bytes for part in extent) for extent in sorted(extents)]
        place = self.layers.add_place(0, 1, blocks)
        rows = [(0, place, window, at, at, min(SLICE, size - at)) for at in range(0, size, SLICE)]
        slices = np.array(rows, dtype=np.uint64)
        self.kinds = {kind: self.layers.add_layer(kind, slices) for kind in ("read", "write")}

    def run(self, kind: str) -> None:
        layer = self.kinds[kind]
        assert self.layers.wait(self.layers.submit(layer), 60)
        assert not self.layers.statuses(layer).any(), self.layers.statuses(layer)

    def close(self) -> None:
        counters = self.layers.counters()
        assert counters["commands"] >= 2 * self.memory.bytes.size // SLICE, counters
        assert counters["strays"] == counters["remade"] == counters["resets"] == 0, counters
        self.layers.stop()
        del self.layers  # and with it the drive


def lose_the_registers(runtime: tr.Runtime, rows: np.ndarray) -> None:
    """Switch the drive's memory space off: the kernel takes its mapping away, and an access is a SIGBUS."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    (device,) = (int(link.name) for link in links if "vfio-device" in str(link.readlink()))
    region = bytearray(struct.pack("<IIIIQQ", 32, 0, CONFIG_REGION, 0, 0, 0))
    fcntl.ioctl(device, GET_REGION_INFO, region)
    offset = struct.unpack("<IIIIQQ", region)[5] + COMMAND
    (command,) = struct.unpack("<H", os.pread(device, 2, offset))
    assert os.pwrite(device, struct.pack("<H", command & ~MEMORY_SPACE), offset) == 2
    for execution in ("host", "device"):
        result = runtime.submit(rows, timeout=60, execution=execution)
        assert result.accepted.all(), result.errors
        status = set(runtime.wait(result.handle, timeout=90).status.tolist())
        assert status == {errno.ENODEV}, (execution, status)
