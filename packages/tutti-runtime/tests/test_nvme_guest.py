# SPDX-License-Identifier: Apache-2.0
"""A guest with an IOMMU and four drives: the kernel's driver, its file system and its tool against ours.

The guest runs once; each of its checks is a test here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nvme_lab.drives import Drive, Peer, make_image
from nvme_lab.guest import GuestResult, boot, need_kernel
from nvme_lab.guest_report import parse
from nvme_lab.root_image import GUEST_LAB, build_root_image

MIB = 1 << 20
LAB = Path(__file__).parent / "nvme_lab"
DRIVES = 4
CHECK_NAMES = (
    "files_by_the_kernel",
    "identify_by_the_kernel_and_its_tool",
    "a_drive_of_the_kernel_is_refused",
    "drives_go_to_vfio",
    "our_identify_agrees",
    "the_bus_master_bit_is_ours",
    "one_process_has_a_drive_once",
    "the_kernels_files_are_read_raw",
    "the_runtime_reads_and_writes_the_same_blocks",
    "teams_fill_the_queues_of_all_drives",
    "registers_that_are_taken_away_are_a_lost_drive",
    "another_devices_memory_is_a_window",
    "the_drives_own_memory_is_a_window",
    "large_windows_lie_for_huge_pages",
    "a_killed_process_leaves_the_drive_usable",
    "a_window_that_is_gone_is_out_of_reach",
    "a_broker_shares_a_drive",
    "the_kernel_has_the_drives_again",
)


def _drive(folder: Path, number: int) -> Drive:
    """With an ext4 on it; every other one has blocks of 4096 bytes, the first one memory of its own."""
    image = make_image(folder / f"drive{number}", 32 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(image)], check=True)
    lba_bytes = 4096 if number % 2 else 512
    return Drive(image, f"S{number}", lba_bytes=lba_bytes, cmb_mib=16 if number == 0 else 0)


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    kernel = need_kernel()
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    folder = tmp_path_factory.mktemp("guest")
    root = build_root_image(folder, [LAB], f"{GUEST_LAB}/nvme_lab/guest_main.py")
    peer = Peer(make_image(folder / "peer", MIB), MIB)
    result = boot(kernel, folder, root, [_drive(folder, number) for number in range(DRIVES)], peer=peer)
    root.unlink()
    return result


@pytest.fixture(scope="module")
def answers(guest: GuestResult) -> dict[str, Any]:
    assert "exit status 0" in guest.printed, guest.printed + guest.console
    return parse(guest.printed)


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_in_the_guest(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["error"] == ""


def test_every_check_has_a_test(answers: dict[str, Any]) -> None:
    assert sorted(answers) == sorted(CHECK_NAMES)


def test_the_iommu_refused_only_what_was_provoked(guest: GuestResult) -> None:
    (line,) = (json.loads(line) for line in guest.printed.splitlines() if line.startswith('{"refused"'))
    at = [text for text in guest.dma_faults if "fault addr" in text]
    assert at, guest.console
    assert [text for text in at if f"fault addr {line['refused']} " not in text] == []


def test_the_drives_saw_no_broken_rule(guest: GuestResult) -> None:
    assert guest.unprovoked() == []


def test_the_tools_answer_was_compared(guest: GuestResult) -> None:
    (line,) = (json.loads(line) for line in guest.printed.splitlines() if line.startswith('{"nvme_cli"'))
    if not line["nvme_cli"]:
        pytest.skip("nvme-cli is not installed (Debian: nvme-cli): its answers were not compared")
