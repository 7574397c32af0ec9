# SPDX-License-Identifier: Apache-2.0
"""Under a guest: drives by the kernel's driver and its file system, then the same drives on vfio-pci."""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvme_lab.plain_driver import Identity, parse_controller, parse_namespace

__all__ = [
    "bind",
    "controllers",
    "identity_by_ioctl",
    "identity_by_tool",
    "mounted",
    "peer_memory",
    "read_direct",
    "write_direct",
]

PCI = Path("/sys/bus/pci")
PAGE = 4096
# NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h: _IOWR('N', 0x41, struct nvme_admin_cmd), 72 bytes.
ADMIN_COMMAND = 3 << 30 | 72 << 16 | ord("N") << 8 | 0x41
WAIT_SECONDS = 60.0


def _wait_for(path: Path) -> Path:
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.02)
    return path


def controllers() -> dict[str, str]:
    """Serial number -> PCI address of the controllers that the kernel's driver has."""
    found = {}
    for controller in Path("/sys/class/nvme").iterdir():
        found[(controller / "serial").read_text().strip()] = (controller / "device").resolve().name
    return found


def bind(bdf: str, driver: str) -> None:
    """Give a device to a driver, whoever has it now."""
    device = PCI / "devices" / bdf
    (device / "driver_override").write_text(driver + "\n")
    if (device / "driver").exists():
        (device / "driver" / "unbind").write_text(bdf)
    (PCI / "drivers_probe").write_text(bdf)
    assert (device / "driver").resolve().name == driver


def node_of(bdf: str) -> Path:
    """The character device of a controller, such as /dev/nvme0."""
    folder = _wait_for(PCI / "devices" / bdf / "nvme")
    return Path("/dev") / next(folder.iterdir()).name


@contextmanager
def mounted(bdf: str, folder: Path) -> Iterator[Path]:
    """The file system on a drive's first namespace."""
    folder.mkdir(exist_ok=True)
    device = _wait_for(Path(f"{node_of(bdf)}n1"))
    subprocess.run(["mount", "-t", "ext4", "-o", "noatime", str(device), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def write_direct(path: Path, data: bytes) -> None:
    """With O_DIRECT, then fsync; a multiple of 4096 bytes."""
    buffer = mmap.mmap(-1, len(data))
    buffer.write(data)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
    try:
        assert os.pwrite(file, buffer, 0) == len(data)
        os.fsync(file)
    finally:
        os.close(file)


def read_direct(path: Path, size: int) -> bytes:
    """With O_DIRECT."""
    buffer = mmap.mmap(-1, size)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        assert os.preadv(file, [buffer], 0) == size
    finally:
        os.close(file)
    return buffer[:]


def _identify_by_ioctl(bdf: str, kind: int, nsid: int) -> bytes:
    buffer = ctypes.create_string_buffer(PAGE)
    words = (kind, 0, 0, 0, 0, 0, 0, 0)
    command = struct.pack(
        "<BBHIIIQQII8I", 0x06, 0, 0, nsid, 0, 0, 0, ctypes.addressof(buffer), 0, PAGE, *words
    )
    with open(node_of(bdf), "rb", buffering=0) as device:
        assert fcntl.ioctl(device, ADMIN_COMMAND, bytearray(command)) == 0
    return buffer.raw


def identity_by_ioctl(bdf: str) -> Identity:
    """Of the kernel's passthrough: Identify with CNS 1 and 0."""
    serial, model, firmware, mdts, namespaces = parse_controller(_identify_by_ioctl(bdf, 1, 0))
    blocks, lba_bytes = parse_namespace(_identify_by_ioctl(bdf, 0, 1))
    limit = PAGE << mdts if mdts else 0
    return Identity(serial, model, firmware, limit, namespaces, blocks * lba_bytes, lba_bytes)


def _tool(*arguments: str) -> dict[str, object]:
    done = subprocess.run(["nvme", *arguments, "-o", "json"], capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def identity_by_tool(bdf: str) -> Identity | None:
    """As nvme-cli prints it; ``None`` where it is not installed."""
    if not Path("/bin/nvme").exists():
        return None
    node = str(node_of(bdf))
    found = _tool("id-ctrl", node)
    space = _tool("id-ns", f"{node}n1", "-n", "1")
    formats = space["lbafs"]
    assert isinstance(formats, list)
    lba_bytes = 1 << formats[int(str(space["flbas"])) & 0xF]["ds"]
    mdts = int(str(found["mdts"]))
    text = [str(found[key]).strip() for key in ("sn", "mn", "fr")]
    limit = PAGE << mdts if mdts else 0
    return Identity(*text, limit, int(str(found["nn"])), int(str(space["nsze"])) * lba_bytes, lba_bytes)


@contextmanager
def peer_memory(bdf: str, size: int) -> Iterator[mmap.mmap]:
    """BAR 2 of a device, mapped."""
    device = PCI / "devices" / bdf
    if (device / "enable").read_text().strip() == "0":
        (device / "enable").write_text("1")
    file = os.open(device / "resource2", os.O_RDWR | os.O_SYNC)
    try:
        mapped = mmap.mmap(file, size)
    finally:
        os.close(file)
    try:
        yield mapped
    finally:
        mapped.close()
