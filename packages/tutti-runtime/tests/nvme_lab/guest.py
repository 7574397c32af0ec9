# SPDX-License-Identifier: Apache-2.0
"""A guest that runs one Python script: Debian's kernel, an emulated IOMMU, drives, and a peer on the bus.

``fetch_kernel.sh`` unpacks kernels into the folders that ``TUTTI_GUEST_KERNEL`` and, for one with P2PDMA,
``TUTTI_GUEST_KERNEL_P2P`` name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvme_lab.drives import Drive, Peer
from nvme_lab.machine import QEMU, need_qemu
from nvme_lab.trace import TRACE_ARGUMENTS, events, unprovoked

__all__ = ["GuestResult", "boot", "need_kernel"]

MODULES = ("irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci")
BUSYBOX_NAMES = ("sh", "mount", "mkdir", "insmod", "grep", "cut", "usleep", "sleep", "chroot", "stty")
LIMIT_SECONDS = 240
ROOT_SERIAL = "tutti-root"
# no_timer_check: on a busy host the guest's timer comes late, which the kernel takes for a broken one.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 no_timer_check"
IOMMU = ("-device", "intel-iommu,intremap=on")


@dataclass(frozen=True)
class GuestResult:
    """``printed`` by the script, ``console`` of the kernel."""

    printed: str
    console: str
    trace: Path

    @property
    def dma_faults(self) -> list[str]:
        """Lines in which the IOMMU refused a device."""
        return [line for line in self.console.splitlines() if "DMAR" in line and "fault" in line.lower()]

    def unprovoked(self, *provoked: str) -> list[str]:
        return unprovoked(self.trace, frozenset(provoked))

    def events(self, name: str) -> int:
        return events(self.trace)[name]


def need_kernel(variable: str = "TUTTI_GUEST_KERNEL") -> Path:
    """The folder of the unpacked kernel that a variable names; skips the test where there is none."""
    need_qemu()
    named = os.environ.get(variable, "")
    if not named or not list(Path(named).rglob("vmlinuz*")):
        pytest.skip(f"{variable} names no unpacked kernel (tests/nvme_lab/fetch_kernel.sh makes one)")
    for tool in ("busybox", "cpio"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: busybox-static, cpio)")
    return Path(named)


def _initramfs(kernel: Path, folder: Path) -> Path:
    tree = folder / "initramfs"
    for name in ("bin", "modules", "proc", "sys", "dev", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy2(str(shutil.which("busybox")), tree / "bin" / "busybox")
    for name in BUSYBOX_NAMES:
        (tree / "bin" / name).symlink_to("busybox")
    for name in MODULES:
        for module in kernel.rglob(f"{name}.ko"):
            shutil.copy2(module, tree / "modules" / module.name)
    init = tree / "init"
    shutil.copy2(Path(__file__).with_name("init.sh"), init)
    init.chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    image = folder / "initramfs.cpio"
    with image.open("wb") as sink:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"],
            cwd=tree,
            input=names.encode(),
            stdout=sink,
            check=True,
        )
    return image


def boot(
    kernel: Path,
    folder: Path,
    root: Path,
    drives: Sequence[Drive],
    *,
    peer: Peer | None = None,
    buses: Sequence[str] = (),
    iommu: bool = True,
) -> GuestResult:
    """Run the guest until it powers off; ``buses``: QEMU's arguments for what the drives' ``bus`` names."""
    initramfs = _initramfs(kernel, folder)
    console, printed, trace = folder / "console", folder / "printed", folder / "trace"
    made = [QEMU, "-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max"]
    made += ["-smp", "2", "-m", "768", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    made += ["-serial", f"file:{console}", "-serial", f"file:{printed}"]
    made += ["-kernel", str(next(kernel.rglob("vmlinuz*"))), "-initrd", str(initramfs)]
    made += ["-append", COMMAND_LINE + (" intel_iommu=on" if iommu else ""), *(IOMMU if iommu else ())]
    made += ["-D", str(trace), *TRACE_ARGUMENTS]
    made += buses
    made += peer.arguments(None) if peer is not None else []
    for number, drive in enumerate([*drives, Drive(root, ROOT_SERIAL)]):
        made += drive.arguments(number, None)
    done = subprocess.run(made, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return GuestResult(printed.read_text(errors="replace"), console.read_text(errors="replace"), trace)
