# SPDX-License-Identifier: Apache-2.0
"""The doctor against trees that look like machines: each requirement is told met and told missing."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tutti_runtime.doctor import WAYS, Finding, System, Way, examine
from tutti_runtime.doctor.__main__ import main

GPU = "0000:41:00.0"
DRIVE = "0000:42:00.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jun  4 00:00:00 UTC 2024"
STATIC = 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcufile.so"
LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {}              unlimited   bytes\n"
Change = Callable[["Tree"], None]


class Tree:
    """A faked root; the default is a machine on which GPUDirect Storage works both ways."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.root / name.lstrip("/")).unlink()

    def link(self, name: str, target: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def config(self, text: str) -> None:
        path = self.root / "proc/config.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))

    def device(self, bdf: str, vendor: int, kind: int, driver: str) -> None:
        folder = f"/sys/bus/pci/devices/{bdf}"
        self.write(f"{folder}/vendor", f"{vendor:#06x}\n")
        self.write(f"{folder}/class", f"{kind:#08x}\n")
        self.write(f"{folder}/resource", "0x0 0x0 0x0\n0x3c000000000 0x3dfffffffff 0x14220c\n")
        if driver:
            self.link(f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")

    def iommu(self, kind: str) -> None:
        self.write("/sys/kernel/iommu_groups/7/type", kind + "\n")
        self.link(f"/sys/bus/pci/devices/{DRIVE}/iommu_group", "../../../kernel/iommu_groups/7")

    def vfio(self) -> None:
        self.write("/dev/vfio/vfio", "")
        self.write("/sys/module/vfio_pci/srcversion", "")
        self.iommu("DMA-FQ")
        self.link(f"/sys/bus/pci/devices/{DRIVE}/driver", "../../../bus/pci/drivers/vfio-pci")

    def way(self, name: str) -> Way:
        return next(way for way in examine(System(self.root)) if way.name == name)

    def finding(self, way: str, beginning: str) -> Finding:
        return next(item for item in self.way(way).findings if item.name.startswith(beginning))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    made.write("/proc/sys/kernel/io_uring_disabled", "0\n")
    made.config("CONFIG_PCI_P2PDMA=y\nCONFIG_NVME_MULTIPATH=y\n# CONFIG_VFIO is not set\n")
    made.write("/proc/driver/nvidia/version", OPEN.format("565.57.01"))
    made.write("/proc/driver/nvidia/params", f"EnableMSI: 1\n{STATIC}\n")
    made.write(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    made.device(GPU, 0x10DE, 0x030200, "nvidia")
    made.device(DRIVE, 0x144D, 0x010802, "nvme")
    made.write(f"/sys/bus/pci/devices/{DRIVE}/nvme/nvme3/model", "X")
    made.write("/sys/module/nvme_core/parameters/multipath", "N\n")
    made.write("/sys/module/nvidia_fs/version", "2.24\n")
    made.write("/proc/self/mounts", "/dev/vda / ext4 rw 0 0\n")
    made.write("/proc/self/status", "Name:\tpython\nCapEff:\t0000000000000000\n")
    made.write("/proc/self/limits", LIMITS.format("unlimited"))
    made.write(f"{LIBRARY}.1.13.1", "")
    made.link(f"{LIBRARY}.0", "libcufile.so.1.13.1")
    return made


def test_a_machine_that_has_everything_of_cufile(tree: Tree) -> None:
    ways = examine(System(tree.root))
    assert {way.name: way.possible for way in ways} == {
        "host": "yes",
        "gds": "yes",
        "gds-p2pdma": "yes",
        "gpu-initiated": "no",
    }
    assert [way.name for way in ways] == list(WAYS)
    assert all(finding.found for way in ways for finding in way.findings)
    assert all(bool(finding.fix) == (finding.state != "met") for way in ways for finding in way.findings)


def test_a_bare_machine_still_has_the_host_bounce(tmp_path: Path) -> None:
    ways = {way.name: way for way in examine(System(tmp_path))}
    assert [ways[name].possible for name in WAYS] == ["yes", "no", "no", "no"]
    assert {finding.state for finding in ways["gds"].findings} == {"missing"}


MISSING: list[tuple[str, str, str, Change]] = [
    ("gds", "NVIDIA driver", "not loaded", lambda t: t.remove("/proc/driver/nvidia/version")),
    (
        "gds",
        "nvidia-fs",
        "not loaded",
        lambda t: t.remove("/sys/module/nvidia_fs/version") or _drop_module(t),
    ),
    ("gds", "libcufile", "not installed", lambda t: t.remove(f"{LIBRARY}.0")),
    ("gds", "NVMe drive", "vfio-pci", lambda t: t.vfio()),
    ("gds-p2pdma", "kernel", "5.15.0", lambda t: t.write("/proc/sys/kernel/osrelease", "5.15.0-1")),
    ("gds-p2pdma", "kernel", "without CONFIG_PCI_P2PDMA", lambda t: t.config("CONFIG_PCI=y\n")),
    (
        "gds-p2pdma",
        "open driver",
        "proprietary",
        lambda t: t.write("/proc/driver/nvidia/version", CLOSED.format("570.86.15")),
    ),
    (
        "gds-p2pdma",
        "open driver",
        "560.35.03",
        lambda t: t.write("/proc/driver/nvidia/version", OPEN.format("560.35.03")),
    ),
    (
        "gds-p2pdma",
        "static BAR1",
        "RmForceDisableIomapWC=1",
        lambda t: t.write("/proc/driver/nvidia/params", 'RegistryDwords: "RMForceStaticBar1=1"\n'),
    ),
    ("gds-p2pdma", "static BAR1", "no parameters", lambda t: t.remove("/proc/driver/nvidia/params")),
    (
        "gds-p2pdma",
        "GPU",
        "GeForce",
        lambda t: t.write(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: NVIDIA GeForce RTX 4090\n"),
    ),
    ("gds-p2pdma", "IOMMU off", "translates", lambda t: t.iommu("DMA")),
    ("gds-p2pdma", "libcufile", "1.12.0", lambda t: _older_cufile(t)),
    (
        "gds-p2pdma",
        "NVMe multipath",
        "Y",
        lambda t: t.write("/sys/module/nvme_core/parameters/multipath", "Y\n"),
    ),
    (
        "gpu-initiated",
        "memory that",
        "8388608",
        lambda t: t.write("/proc/self/limits", LIMITS.format(8 << 20)),
    ),
    ("gpu-initiated", "IOMMU", "no IOMMU group", lambda t: None),
    ("gpu-initiated", "vfio", "/dev/vfio/vfio", lambda t: None),
    ("gpu-initiated", "NVMe drive", "(nvme)", lambda t: None),
    ("gpu-initiated", "GPU memory", "nothing known in kernels", lambda t: t.vfio()),
]


def _drop_module(tree: Tree) -> None:
    (tree.root / "sys/module/nvidia_fs").rmdir()


def _older_cufile(tree: Tree) -> None:
    tree.write(f"{LIBRARY}.1.12.0", "")
    tree.link(f"{LIBRARY}.0", "libcufile.so.1.12.0")


@pytest.mark.parametrize(("way", "name", "found", "change"), MISSING, ids=[f"{m[0]} {m[2]}" for m in MISSING])
def test_what_is_missing_is_named_with_a_fix(
    tree: Tree, way: str, name: str, found: str, change: Change
) -> None:
    change(tree)
    finding = tree.finding(way, name)
    assert finding.state == "missing"
    assert found in finding.found
    assert finding.fix
    assert tree.way(way).possible == "no"


def test_what_cannot_be_read_is_not_called_met(tree: Tree) -> None:
    tree.remove("/proc/config.gz")
    assert tree.finding("gds-p2pdma", "kernel").state == "unknown"
    assert tree.way("gds-p2pdma").possible == "unknown"


def test_an_iommu_in_passthrough_is_not_called_off(tree: Tree) -> None:
    tree.iommu("identity")
    assert tree.finding("gds-p2pdma", "IOMMU off").state == "unknown"
    tree.write("/sys/kernel/iommu_groups/8/type", "DMA\n")
    assert tree.finding("gds-p2pdma", "IOMMU off").state == "missing"


def test_the_config_beside_the_kernel_counts_too(tree: Tree) -> None:
    tree.remove("/proc/config.gz")
    tree.write("/boot/config-6.8.0-45-generic", "CONFIG_PCI_P2PDMA=y\n")
    assert tree.way("gds-p2pdma").possible == "yes"


def test_a_drive_on_vfio_leaves_only_the_gpus_memory(tree: Tree) -> None:
    tree.vfio()
    states = {finding.name: finding.state for finding in tree.way("gpu-initiated").findings}
    assert [name for name, state in states.items() if state != "met"] == [
        "GPU memory for a drive of a process"
    ]
    assert "group 7" in tree.finding("gpu-initiated", "NVMe drive").found


def test_a_mounted_drive_is_not_offered(tree: Tree) -> None:
    tree.write("/proc/self/mounts", "/dev/nvme3n1p2 /data ext4 rw 0 0\n")
    finding = tree.finding("gpu-initiated", "NVMe drive")
    assert "mounted at /data" in finding.found
    assert "unbind" not in finding.fix


def test_a_free_drive_comes_with_the_commands(tree: Tree) -> None:
    assert (
        f"echo {DRIVE} > /sys/bus/pci/devices/{DRIVE}/driver/unbind"
        in tree.finding("gpu-initiated", "NVMe drive").fix
    )


def test_a_right_lifts_the_limit_of_pinned_memory(tree: Tree) -> None:
    tree.write("/proc/self/limits", LIMITS.format(8 << 20))
    tree.write("/proc/self/status", "CapEff:\t0000000000004000\n")
    assert tree.finding("gpu-initiated", "memory that").state == "met"
    tree.write("/proc/self/status", "CapEff:\t00000000ffffbfff\n")
    assert tree.finding("gpu-initiated", "memory that").state == "missing"
    tree.remove("/proc/self/limits")
    assert tree.finding("gpu-initiated", "memory that").state == "unknown"


def test_io_uring_switched_off_means_threads(tree: Tree) -> None:
    tree.write("/proc/sys/kernel/io_uring_disabled", "2\n")
    assert "threads" in tree.finding("host", "host I/O").found
    assert tree.way("host").possible == "yes"


def test_the_command_line(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(tree.root)]
    assert main(root) == 0
    text = capsys.readouterr().out
    assert "gds-p2pdma: possible." in text
    assert "gpu-initiated: not possible." in text
    assert "Not tested on hardware" in text
    assert main([*root, "--require", "gds", "--require", "gds-p2pdma"]) == 0
    assert main([*root, "--require", "gpu-initiated"]) == 1
    tree.remove("/proc/config.gz")
    assert main([*root, "--require", "gds-p2pdma"]) == 1
    capsys.readouterr()
    assert main([*root, "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    assert {way["name"]: way["possible"] for way in ways}["gds-p2pdma"] == "unknown"
    assert set(ways[0]["findings"][0]) == {"name", "state", "found", "fix"}
    with pytest.raises(SystemExit) as caught:
        main([*root, "--require", "magic"])
    assert caught.value.code == 2


def test_this_machine_can_be_looked_at() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tutti_runtime.doctor", "--json"], capture_output=True, text=True, check=True
    )
    assert [way["name"] for way in json.loads(done.stdout)["ways"]] == list(WAYS)
