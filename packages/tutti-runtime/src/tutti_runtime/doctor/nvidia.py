# SPDX-License-Identifier: Apache-2.0
"""Requirements on NVIDIA's driver, its GPUs and cuFile."""

from __future__ import annotations

import re

from tutti_runtime.doctor.findings import Finding, met, missing, unknown
from tutti_runtime.doctor.system import System, version_of

__all__ = ["cufile", "driver", "gpu", "nvidia_fs", "open_driver", "p2pdma_gpu", "static_bar1"]

P2PDMA_DRIVER = (565,)
P2PDMA_CUFILE = (1, 13)
P2PDMA_GPUS = ("A100", "A40", "L4", "L40S", "H100", "H200", "B100", "B200", "B300")
BAR1_KEYS = ("RMForceStaticBar1=1", "RmForceDisableIomapWC=1")
BAR1_LINE = 'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'


def gpu(system: System) -> Finding:
    """A GPU is on the bus."""
    found = system.gpus
    if not found:
        return missing("NVIDIA GPU", "none on the PCI bus", "use a machine with one")
    return met("NVIDIA GPU", ", ".join(device.bdf for device in found))


def _driver(system: System) -> tuple[str, str]:
    """Version and flavour (``open`` or ``proprietary``) of the loaded driver, or two empty strings."""
    text = system.read("/proc/driver/nvidia/version")
    found = re.search(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)", text)
    if not found:
        return "", ""
    return found[1], "open" if "Open Kernel Module" in text else "proprietary"


def driver(system: System) -> Finding:
    """Any driver."""
    version, flavour = _driver(system)
    if not version:
        return missing("NVIDIA driver", "not loaded", "install NVIDIA's driver")
    return met("NVIDIA driver", f"{version} ({flavour} kernel modules)")


def open_driver(system: System) -> Finding:
    """The open kernel modules, new enough for P2PDMA."""
    name = "open driver 565 or later"
    version, flavour = _driver(system)
    fix = "install the open kernel modules of driver 565 or later (nvidia-open)"
    if not version:
        return missing(name, "no NVIDIA driver is loaded", fix)
    if flavour != "open" or version_of(version) < P2PDMA_DRIVER:
        return missing(name, f"{version} ({flavour} kernel modules)", fix)
    return met(name, f"{version} (open kernel modules)")


def static_bar1(system: System) -> Finding:
    """All of the GPU's memory behind BAR1, for good."""
    name = "static BAR1"
    fix = f"put this line into /etc/modprobe.d/nvidia.conf and reload the driver: {BAR1_LINE}"
    params = system.read("/proc/driver/nvidia/params")
    if not params:
        return missing(name, "the driver shows no parameters", fix)
    line = next((text for text in params.splitlines() if text.startswith("RegistryDwords:")), "")
    lacking = [key for key in BAR1_KEYS if key.lower() not in line.lower()]
    if lacking:
        return missing(name, f"the driver runs without {' and '.join(lacking)}", fix)
    return met(name, "the driver was loaded with it")


def p2pdma_gpu(system: System) -> Finding:
    """A model that NVIDIA lists."""
    name = "GPU that P2PDMA supports"
    folder = "/proc/driver/nvidia/gpus"
    models = []
    for bdf in system.names(folder):
        found = re.search(r"Model:\s*(.+)", system.read(f"{folder}/{bdf}/information"))
        models.append(found[1].strip() if found else "")
    if not models:
        return missing(name, "no GPU of the driver", f"use one of {', '.join(P2PDMA_GPUS)}")
    listed = [model for model in models if re.search(rf"\b({'|'.join(P2PDMA_GPUS)})\b", model)]
    if not listed:
        return missing(name, ", ".join(models), f"NVIDIA lists {', '.join(P2PDMA_GPUS)}")
    return met(name, ", ".join(listed))


def nvidia_fs(system: System) -> Finding:
    """The kernel module of GPUDirect Storage."""
    if system.has_module("nvidia_fs"):
        version = system.read("/sys/module/nvidia_fs/version")
        return met("nvidia-fs", f"loaded{', version ' + version if version else ''}")
    return missing("nvidia-fs", "not loaded", "install nvidia-fs (package nvidia-gds) and modprobe nvidia-fs")


def cufile(system: System, *, least: tuple[int, ...] = ()) -> Finding:
    """The library, of at least a version where one is given."""
    wanted = f" {'.'.join(map(str, least))} or later" if least else ""
    name = f"libcufile{wanted}"
    if not system.cufile:
        return missing(
            name, "libcufile.so.0 is not installed", "pip install nvidia-cufile, or install CUDA's own"
        )
    found = f"{system.cufile_version or 'version not told'} at {system.cufile}"
    if not least:
        return met(name, found)
    if not system.cufile_version:
        return unknown(name, found, "compare its version yourself: CUDA 12.8 has 1.13")
    if version_of(system.cufile_version) < least:
        return missing(name, found, "install CUDA 12.8 or later, or a newer nvidia-cufile")
    return met(name, found)
