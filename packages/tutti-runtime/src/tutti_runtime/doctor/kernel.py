# SPDX-License-Identifier: Apache-2.0
"""Requirements on the kernel and on the IOMMU."""

from __future__ import annotations

import re

from tutti_runtime.doctor.findings import Finding, met, missing, unknown
from tutti_runtime.doctor.system import System, version_of

__all__ = ["io_uring", "iommu_off", "iommu_on", "iommu_state", "locked_memory", "p2pdma", "vfio"]

P2PDMA_KERNEL = (6, 2)
CAP_IPC_LOCK = 14
# Below it there is no window worth the name: queues and lists take a few MiB of it.
LEAST_LOCKED = 1 << 30


def io_uring(system: System) -> Finding:
    """Allowed, or the pool of threads does its work: never missing."""
    disabled = system.read("/proc/sys/kernel/io_uring_disabled")
    if version_of(system.kernel) >= (6, 6) and disabled in ("1", "2"):
        return met(
            "host I/O", f"a pool of threads: kernel.io_uring_disabled is {disabled} (0 allows io_uring)"
        )
    if version_of(system.kernel) < (5, 11):
        return met(
            "host I/O", f"a pool of threads: kernel {system.kernel or 'unknown'} has no io_uring for it"
        )
    return met("host I/O", "io_uring (a container's seccomp profile may still refuse it)")


def p2pdma(system: System) -> Finding:
    """User space can hold P2PDMA memory and give it to O_DIRECT."""
    name = "kernel with P2PDMA"
    fix = "boot a kernel of 6.2 or later that is built with CONFIG_PCI_P2PDMA=y"
    if not version_of(system.kernel):
        return unknown(name, "the kernel's version cannot be read", fix)
    if version_of(system.kernel) < P2PDMA_KERNEL:
        return missing(name, f"kernel {system.kernel}", fix)
    if system.config is None:
        return unknown(
            name,
            f"kernel {system.kernel}, whose build options cannot be read",
            "look for p2pdma_pgmap_ops in /proc/kallsyms as root",
        )
    if system.config.get("CONFIG_PCI_P2PDMA") != "y":
        return missing(name, f"kernel {system.kernel} without CONFIG_PCI_P2PDMA", fix)
    return met(name, f"kernel {system.kernel} with CONFIG_PCI_P2PDMA")


def iommu_state(system: System) -> str:
    """``off``, ``passthrough`` (every group maps one to one) or ``translating``."""
    groups = system.names("/sys/kernel/iommu_groups")
    if not groups:
        return "off"
    kinds = {system.read(f"/sys/kernel/iommu_groups/{group}/type") for group in groups}
    return "passthrough" if kinds == {"identity"} else "translating"


def iommu_off(system: System) -> Finding:
    """Nothing translates between two devices."""
    state = iommu_state(system)
    if state == "translating":
        fix = "boot with intel_iommu=off or amd_iommu=off; iommu=pt is documented for some systems only"
        return missing("IOMMU off", "the IOMMU translates", fix)
    if state == "passthrough":
        fix = (
            "documented for some systems only; if transfers fail, boot with intel_iommu=off or amd_iommu=off"
        )
        return unknown("IOMMU off", "the IOMMU is in passthrough", fix)
    return met("IOMMU off", "no IOMMU group exists")


def iommu_on(system: System) -> Finding:
    """What vfio needs: a container with a type 1 IOMMU."""
    if iommu_state(system) != "off":
        return met("IOMMU for vfio", f"{len(system.names('/sys/kernel/iommu_groups'))} IOMMU groups")
    fix = "enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on (AMD: on by default)"
    return missing("IOMMU for vfio", "no IOMMU group exists", fix)


def vfio(system: System) -> Finding:
    """The kernel's part of driving a device from a process."""
    name = "vfio"
    if not system.exists("/dev/vfio/vfio"):
        return missing(name, "/dev/vfio/vfio is missing", "modprobe vfio-pci")
    if not (system.has_module("vfio_pci") or system.exists("/sys/bus/pci/drivers/vfio-pci")):
        return missing(name, "vfio-pci is not loaded", "modprobe vfio-pci")
    return met(name, "vfio-pci is loaded")


def locked_memory(system: System) -> Finding:
    """Memory that is mapped for a drive on vfio stays pinned, within the process's limit."""
    name = "memory that may be pinned"
    fix = (
        "raise RLIMIT_MEMLOCK (ulimit -l unlimited; LimitMEMLOCK=infinity), or give the process CAP_IPC_LOCK"
    )
    rights = re.search(r"^CapEff:\s*([0-9a-f]+)", system.read("/proc/self/status"), re.MULTILINE)
    if rights and int(rights[1], 16) >> CAP_IPC_LOCK & 1:
        return met(name, "no limit: the process has CAP_IPC_LOCK")
    limit = re.search(r"^Max locked memory\s+(\S+)", system.read("/proc/self/limits"), re.MULTILINE)
    if limit is None:
        return unknown(name, "the process's limits cannot be read", fix)
    if limit[1] == "unlimited":
        return met(name, "no limit")
    if int(limit[1]) < LEAST_LOCKED:
        return missing(name, f"{limit[1]} bytes, less than 1 GiB", fix)
    return met(name, f"{limit[1]} bytes")
