# SPDX-License-Identifier: Apache-2.0
"""The ways between a drive and a GPU, and what each needs."""

from __future__ import annotations

from tutti_runtime.doctor import drives, kernel, nvidia
from tutti_runtime.doctor.findings import Finding, Way, missing
from tutti_runtime.doctor.system import System

__all__ = ["WAYS", "examine"]

UNTESTED = "Not tested on hardware by this project."


def _peer_addresses(system: System) -> Finding:
    """Nothing upstream tells a drive that a process drives where a GPU's memory is on the bus."""
    behind = "the IOMMU" if kernel.iommu_state(system) != "off" else "a process"
    return missing(
        "GPU memory for a drive of a process",
        f"nothing known in kernels up to 7.3 maps a GPU's memory for vfio ({behind} cannot name it)",
        "none without a kernel module of one's own; queues and data in pinned host memory need none of this",
    )


def _host(system: System) -> Way:
    return Way(
        "host",
        "host bounce: drive to pinned host memory, copy to the GPU",
        "Tested. Works without a GPU as well, for memory of the host.",
        (kernel.io_uring(system),),
    )


def _gds(system: System) -> Way:
    findings = (
        nvidia.gpu(system),
        nvidia.driver(system),
        nvidia.nvidia_fs(system),
        nvidia.cufile(system),
        drives.kernel_drive(system),
    )
    return Way("gds", "GPUDirect Storage with nvidia-fs: cuFile, drive to GPU memory", UNTESTED, findings)


def _p2pdma(system: System) -> Way:
    findings = (
        nvidia.p2pdma_gpu(system),
        nvidia.open_driver(system),
        nvidia.static_bar1(system),
        kernel.p2pdma(system),
        kernel.iommu_off(system),
        nvidia.cufile(system, least=nvidia.P2PDMA_CUFILE),
        drives.kernel_drive(system),
        drives.multipath_off(system),
    )
    return Way("gds-p2pdma", "GPUDirect Storage over P2PDMA: cuFile, no nvidia-fs", UNTESTED, findings)


def _gpu_initiated_host(system: System) -> tuple[Finding, ...]:
    return (
        nvidia.gpu(system),
        nvidia.driver(system),
        kernel.vfio(system),
        kernel.iommu_on(system),
        kernel.locked_memory(system),
        drives.raw_drive(system),
    )


def _gpu_initiated(system: System) -> Way:
    findings = (*_gpu_initiated_host(system), _peer_addresses(system))
    note = (
        "Needs a whole drive. The CPU can fill the same queues (make_nvme_runtime), which needs neither GPU "
        "nor NVIDIA's driver nor the last line. " + UNTESTED
    )
    return Way("gpu-initiated", "GPU-initiated: a kernel on the GPU drives the queues", note, findings)


WAYS = {"host": _host, "gds": _gds, "gds-p2pdma": _p2pdma, "gpu-initiated": _gpu_initiated}
"""Every way's name and the function that examines it."""


def examine(system: System | None = None) -> tuple[Way, ...]:
    """Look at this machine, or at ``system``. Raises nothing for what is missing: that is in the findings."""
    where = System() if system is None else system
    return tuple(look(where) for look in WAYS.values())
