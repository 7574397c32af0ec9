# SPDX-License-Identifier: Apache-2.0
"""Linux's P2PDMA under a guest: the file data paths move bytes between a drive and another device's memory.

The other device is a drive with a controller memory buffer, which stands in for a GPU. QEMU copies the bytes
itself, so this shows the kernel's path and its refusals, not what PCIe does.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nvme_lab.drives import Drive, make_image
from nvme_lab.guest import boot, need_kernel
from nvme_lab.guest_report import parse
from nvme_lab.root_image import GUEST_LAB, build_root_image

MIB = 1 << 20
LAB = Path(__file__).parent / "nvme_lab"
SWITCH = (
    *("-device", "pcie-root-port,id=root0,chassis=1"),
    *("-device", "x3130-upstream,id=up,bus=root0"),
    *("-device", "xio3130-downstream,id=bus0,bus=up,chassis=2"),
    *("-device", "xio3130-downstream,id=bus1,bus=up,chassis=3"),
)
APART = (
    *("-device", "pcie-root-port,id=bus0,chassis=1"),
    *("-device", "pcie-root-port,id=bus1,chassis=2"),
)
CASES = {
    "route": (SWITCH, ("memory_of_the_other_drive", "threads_reach_it", "io_uring_reaches_it")),
    "no-route": (
        APART,
        ("memory_of_the_other_drive", "without_a_route_every_item_fails", "host_memory_still_works"),
    ),
}


def _run(folder: Path, case: str) -> dict[str, dict[str, Any]]:
    kernel = need_kernel("TUTTI_GUEST_KERNEL_P2P")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    data = make_image(folder / "data", 32 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(data)], check=True)
    root = build_root_image(folder, [LAB], f"{GUEST_LAB}/nvme_lab/guest_p2p.py {case}")
    drives = [
        Drive(make_image(folder / "empty", MIB), "CMB", cmb_mib=16, bus="bus0"),
        Drive(data, "DATA", bus="bus1"),
    ]
    result = boot(kernel, folder, root, drives, buses=CASES[case][0], iommu=False)
    root.unlink()
    assert "exit status 0" in result.printed, result.printed + result.console
    assert result.unprovoked() == []
    return parse(result.printed)


@pytest.mark.parametrize("case", CASES)
def test_p2pdma(tmp_path: Path, case: str) -> None:
    answers = _run(tmp_path, case)
    assert tuple(answers) == CASES[case][1]
    assert {name: line["error"] for name, line in answers.items() if line["error"]} == {}
