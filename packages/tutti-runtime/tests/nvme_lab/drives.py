# SPDX-License-Identifier: Apache-2.0
"""Drives of a QEMU machine, and what QEMU is told to make them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Drive", "FailAt", "Peer", "make_image"]

SECTOR = 512


@dataclass(frozen=True)
class FailAt:
    """Every ``kind`` ("read" or "write") that touches ``byte`` of the image ends with ``errno``."""

    kind: str
    byte: int
    errno: int


@dataclass(frozen=True)
class Drive:
    """One controller with one namespace over ``image``; ``mdts``: the exponent it reports (0: no limit)."""

    image: Path
    serial: str
    lba_bytes: int = 512
    mdts: int = 7
    cmb_mib: int = 0
    max_iops: int = 0
    fail: FailAt | None = None
    bus: str = ""

    def arguments(self, number: int, slot: int | None) -> list[str]:
        """QEMU's arguments; ``slot`` is the device number on the root bus (``None``: QEMU chooses)."""
        node = f"drive{number}"
        file = f"driver=file,filename={self.image},cache.direct=off,aio=threads"
        made = ["-blockdev", f"{file},node-name={node}-file"]
        below = f"{node}-file"
        if self.max_iops:
            made += ["-object", f"throttle-group,id={node}-group,x-iops-total={self.max_iops}"]
            made += [
                "-blockdev",
                f"driver=throttle,throttle-group={node}-group,node-name={node}-slow,file={below}",
            ]
            below = f"{node}-slow"
        if self.fail is not None:
            inject = f"inject-error.0.event=none,inject-error.0.iotype={self.fail.kind}"
            inject += (
                f",inject-error.0.errno={self.fail.errno},inject-error.0.sector={self.fail.byte // SECTOR}"
            )
            made += ["-blockdev", f"driver=blkdebug,node-name={node}-fails,image={below},{inject}"]
            below = f"{node}-fails"
        made += ["-blockdev", f"driver=raw,node-name={node},file={below}"]
        where = f",bus={self.bus}" if self.bus else ""
        where += f",addr={slot}" if slot is not None else ""
        cmb = f",cmb_size_mb={self.cmb_mib}" if self.cmb_mib else ""
        made += ["-device", f"nvme,id={node}-ctrl,serial={self.serial},mdts={self.mdts}{cmb}{where}"]
        blocks = f"logical_block_size={self.lba_bytes},physical_block_size={self.lba_bytes}"
        return [*made, "-device", f"nvme-ns,drive={node},bus={node}-ctrl,nsid=1,{blocks}"]


@dataclass(frozen=True)
class Peer:
    """Another device's memory on the bus, a stand-in for a GPU's: a BAR whose bytes are those of ``file``."""

    file: Path
    size: int

    def arguments(self, slot: int | None) -> list[str]:
        """QEMU's arguments."""
        where = f",addr={slot}" if slot is not None else ""
        memory = f"memory-backend-file,id=peer,share=on,mem-path={self.file},size={self.size}"
        return ["-object", memory, "-device", f"ivshmem-plain,memdev=peer{where}"]


def make_image(path: Path, size: int) -> Path:
    """A file of ``size`` zero bytes."""
    with path.open("wb") as file:
        file.truncate(size)
    return path
