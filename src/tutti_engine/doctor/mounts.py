# SPDX-License-Identifier: Apache-2.0
"""Which file system and which drive a directory is on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MOUNTS", "Mount", "drive_node", "find_mount", "gpu_nodes"]

MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of proc_pid_mountinfo(5)."""

    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def find_mount(directory: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the mount that a directory is on; None if nobody knows."""
    best = None
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = os.path.realpath(directory)
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point, options = fields.split()[4:6]
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)
        # Of two mounts on one place the later one is seen.
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            kind, source = rest.split()[:2]
            best = Mount(point, kind, source, tuple(options.split(",")))
    return best


def node_of(device: Path) -> int | None:
    """Return the NUMA node of a device's folder or of the one that it hangs on; None if none is told."""
    for folder in (device, *device.parents):
        try:
            node = int((folder / "numa_node").read_text())
        except (OSError, ValueError):
            continue
        return node if node >= 0 else None
    return None


def drive_node(directory: Path, sys: Path = Path("/sys")) -> tuple[str, int | None]:
    """Return the name of the block device below a directory and its NUMA node; empty where there is none."""
    try:
        device = directory.stat().st_dev
        folder = (sys / f"dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return "", None
    return folder.name, node_of(folder)


def gpu_nodes(sys: Path = Path("/sys")) -> set[int]:
    """Return the NUMA nodes that NVIDIA's GPUs hang on."""
    nodes = set()
    for device in (sys / "bus/pci/devices").glob("*"):
        try:
            vendor = int((device / "vendor").read_text(), 16)
            kind = int((device / "class").read_text(), 16) >> 8
        except (OSError, ValueError):
            continue
        if vendor == 0x10DE and kind in (0x0300, 0x0302):
            node = node_of(device.resolve())
            if node is not None:
                nodes.add(node)
    return nodes
