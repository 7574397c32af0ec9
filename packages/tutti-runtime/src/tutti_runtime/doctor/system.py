# SPDX-License-Identifier: Apache-2.0
"""The files of a running system, below a root that tests replace."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from tutti_runtime.config import find_cufile

__all__ = ["PciDevice", "System", "version_of"]

_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/cuda/lib64",
    "usr/local/cuda/targets/x86_64-linux/lib",
    "usr/local/cuda/targets/sbsa-linux/lib",
)
_CUFILE_PACKAGES = ("nvidia-cufile", "nvidia-cufile-cu13", "nvidia-cufile-cu12")


def version_of(text: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version: ``(6, 8)`` of ``"6.8.0-45-generic"`` and of ``"6.8"``."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


@dataclass(frozen=True)
class PciDevice:
    """A function on the PCI bus, as ``/sys/bus/pci/devices`` shows it."""

    bdf: str
    vendor: int
    device_class: int
    driver: str
    iommu_group: str
    bar_bytes: tuple[int, ...]

    @property
    def is_nvidia_gpu(self) -> bool:
        """A display or 3D controller of NVIDIA."""
        return self.vendor == 0x10DE and self.device_class >> 8 in (0x0300, 0x0302)

    @property
    def is_nvme(self) -> bool:
        """Class 01 08 02: non-volatile memory controller, NVM Express."""
        return self.device_class == 0x010802


@dataclass(frozen=True)
class System:
    """A view of ``/proc``, ``/sys``, ``/boot`` and ``/dev`` below ``root``. Missing files read as ``""``."""

    root: Path = Path("/")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """The text of a file, or ``""`` where it is missing or must not be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder, none where it is missing."""
        try:
            return sorted(entry.name for entry in self.path(folder).iterdir())
        except OSError:
            return []

    def _link_name(self, name: str) -> str:
        where = self.path(name)
        return where.readlink().name if where.is_symlink() else ""

    @property
    def kernel(self) -> str:
        return self.read("/proc/sys/kernel/osrelease")

    @cached_property
    def config(self) -> dict[str, str] | None:
        """The kernel's build options (``CONFIG_X`` → ``y``, ``m``, text), ``None`` where it does not tell."""
        text = ""
        try:
            text = gzip.decompress(self.path("/proc/config.gz").read_bytes()).decode(errors="replace")
        except (OSError, EOFError):
            for name in (f"/boot/config-{self.kernel}", f"/lib/modules/{self.kernel}/config"):
                text = text or self.read(name)
        lines = (line.partition("=") for line in text.splitlines() if line.startswith("CONFIG_"))
        found = {name: value.strip('"') for name, _, value in lines}
        return found or None

    def has_module(self, name: str) -> bool:
        """Loaded, or built in with parameters."""
        return self.exists(f"/sys/module/{name}") or any(
            line.split(" ", 1)[0] == name for line in self.read("/proc/modules").splitlines()
        )

    @cached_property
    def pci(self) -> tuple[PciDevice, ...]:
        return tuple(self._device(bdf) for bdf in self.names("/sys/bus/pci/devices"))

    def _device(self, bdf: str) -> PciDevice:
        folder = f"/sys/bus/pci/devices/{bdf}"
        sizes = []
        for line in self.read(f"{folder}/resource").splitlines()[:6]:
            first, last, *_ = (int(word, 16) for word in line.split())
            sizes.append(last - first + 1 if last > first else 0)
        return PciDevice(
            bdf,
            int(self.read(f"{folder}/vendor") or "0", 16),
            int(self.read(f"{folder}/class") or "0", 16),
            self._link_name(f"{folder}/driver"),
            self._link_name(f"{folder}/iommu_group"),
            tuple(sizes),
        )

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.pci if device.is_nvidia_gpu)

    @property
    def drives(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.pci if device.is_nvme)

    @cached_property
    def cufile(self) -> str:
        """Where ``libcufile.so.0`` is, or ``""``. Python packages count only for the real root."""
        if self.root == Path("/") and (found := find_cufile()):
            return found
        for folder in _LIBRARY_FOLDERS:
            if self.exists(f"/{folder}/libcufile.so.0"):
                return f"/{folder}/libcufile.so.0"
        return ""

    @cached_property
    def cufile_version(self) -> str:
        """From the library's file name (``libcufile.so.1.13.1``) or its Python package; ``""``: not told."""
        if not self.cufile:
            return ""
        real = self.path(self.cufile).resolve().name
        if found := re.fullmatch(r"libcufile\.so\.(\d+\.\d+.*)", real):
            return found[1]
        for package in _CUFILE_PACKAGES if "site-packages" in self.cufile else ():
            try:
                return metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return ""
