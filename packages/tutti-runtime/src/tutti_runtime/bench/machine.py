# SPDX-License-Identifier: Apache-2.0
"""The properties of a machine that a storage benchmark depends on. It has no name here."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["describe", "drive_class", "file_system"]


def file_system(folder: Path) -> str:
    """Type of the file system that a folder is on, as in /proc/self/mounts."""
    where = str(folder.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, found, *_ = line.split()
        point = point.encode().decode("unicode_escape")
        if os.path.commonpath([where, point]) == point and len(point) >= len(best):
            best, kind = point, found
    return kind


def drive_class(folder: Path) -> str:
    """Kind of the drive below a folder, by the kernel's name of it and whether it rotates."""
    device = folder.stat().st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not node.exists():
        return "no block device"
    whole = node.resolve()
    if (whole / "partition").exists():
        whole = whole.parent
    names = {
        "nvme": "NVMe drive",
        "vd": "virtual drive (virtio)",
        "xvd": "virtual drive (Xen)",
        "loop": "loop device",
        "dm-": "device mapper",
        "md": "software RAID",
        "sd": "SCSI or SATA drive",
    }
    kind = next((text for prefix, text in names.items() if whole.name.startswith(prefix)), "block device")
    rotates = whole / "queue" / "rotational"
    if rotates.exists() and rotates.read_text().strip() == "1" and not kind.startswith("virtual"):
        return f"{kind}, rotating"
    return kind


def describe(folder: Path) -> dict[str, str | int | float]:
    """Cores, memory, kernel, file system, class of drive, and how busy the machine is at this moment."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count() or 1,
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release().split("-")[0],
        "architecture": platform.machine(),
        "file_system": file_system(folder),
        "drive": drive_class(folder),
        "load": round(os.getloadavg()[0], 1),
    }
