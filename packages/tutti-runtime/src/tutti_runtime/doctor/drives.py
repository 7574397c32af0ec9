# SPDX-License-Identifier: Apache-2.0
"""Requirements on NVMe drives: their presence, what drives them, and who uses them."""

from __future__ import annotations

from tutti_runtime.doctor.findings import Finding, met, missing, unknown
from tutti_runtime.doctor.system import PciDevice, System

__all__ = ["kernel_drive", "multipath_off", "raw_drive"]


def _used_by(system: System, drive: PciDevice) -> str:
    """A mount point on the drive, or ``""``."""
    folder = f"/sys/bus/pci/devices/{drive.bdf}/nvme"
    controllers = system.names(folder)
    for line in system.read("/proc/self/mounts").splitlines():
        device, point, *_ = line.split()
        if any(device.startswith(f"/dev/{name}n") for name in controllers):
            return point
    return ""


def kernel_drive(system: System) -> Finding:
    """A drive that the kernel drives: files are on it."""
    name = "NVMe drive of the kernel"
    bound = [drive.bdf for drive in system.drives if drive.driver == "nvme"]
    if bound:
        return met(name, ", ".join(bound))
    others = ", ".join(f"{drive.bdf} ({drive.driver or 'no driver'})" for drive in system.drives)
    return missing(
        name, others or "no NVMe drive on the PCI bus", "give the drive to the kernel's nvme driver"
    )


def multipath_off(system: System) -> Finding:
    """The kernel's multipath hides the PCI device from P2PDMA."""
    name = "NVMe multipath off"
    value = system.read("/sys/module/nvme_core/parameters/multipath")
    if value == "Y":
        return missing(name, "nvme_core.multipath is Y", "boot with nvme_core.multipath=N")
    if value == "N":
        return met(name, "nvme_core.multipath is N")
    if system.config is not None and "CONFIG_NVME_MULTIPATH" not in system.config:
        return met(name, "the kernel is built without it")
    return unknown(name, "the kernel does not tell", "boot with nvme_core.multipath=N")


def raw_drive(system: System) -> Finding:
    """A whole drive that a process may have: bound to vfio-pci."""
    name = "NVMe drive on vfio-pci"
    given = [drive for drive in system.drives if drive.driver == "vfio-pci"]
    if given:
        groups = ", ".join(f"{drive.bdf} (group {drive.iommu_group or 'unknown'})" for drive in given)
        return met(name, groups)
    free = [drive for drive in system.drives if not _used_by(system, drive)]
    if free:
        bdf = free[0].bdf
        fix = (
            f"a drive that nobody mounts: echo vfio-pci > /sys/bus/pci/devices/{bdf}/driver_override; "
            f"echo {bdf} > /sys/bus/pci/devices/{bdf}/driver/unbind; echo {bdf} > /sys/bus/pci/drivers_probe"
        )
        found = ", ".join(f"{drive.bdf} ({drive.driver or 'no driver'})" for drive in free)
        return missing(name, found, fix)
    used = ", ".join(f"{drive.bdf} is mounted at {_used_by(system, drive)}" for drive in system.drives)
    return missing(name, used or "no NVMe drive on the PCI bus", "set a whole drive aside for it")
