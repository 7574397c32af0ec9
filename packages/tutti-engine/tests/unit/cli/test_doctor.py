# SPDX-License-Identifier: Apache-2.0
"""``tutti doctor``: verdicts on this machine and on what a machine could be."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tutti_engine import doctor as looks
from tutti_engine.doctor import Finding, installed, machine, mounts, roots


def of_root(found, name):
    (finding,) = [each for each in found["findings"] if each["root"] and each["name"] == name]
    return finding


@pytest.fixture
def patient(monkeypatch, tutti):
    """Let the doctor find what a test says."""

    def set_findings(*findings):
        monkeypatch.setattr("tutti_engine.cli.doctor.examine", lambda roots, master: list(findings))

    return set_findings


def test_this_machine_and_a_root_are_looked_at_and_left_as_they_are(tutti, store):
    before = sorted(store.rglob("*"))
    found = tutti("doctor", store, "--json", code=None).document
    assert {each["verdict"] for each in found["findings"]} <= {"ok", "note", "warn", "fail"}
    names = {each["name"] for each in found["findings"] if not each["root"]}
    assert {"kernel", "io_uring", "locked memory", "open files", "tutti-runtime", "data path"} <= names
    assert of_root(found, "directory")["verdict"] == "ok"
    assert of_root(found, "stores")["found"].startswith("1, 0 of them in use")
    assert all(each["fix"] for each in found["findings"] if each["verdict"] in ("warn", "fail"))
    assert sorted(store.rglob("*")) == before


def test_the_data_path_is_the_one_that_the_runtime_takes(tutti):
    runtime = pytest.importorskip("tutti_runtime")
    with runtime.make_file_runtime() as made:
        path = made.caps()["data_path"]
    found = tutti("doctor", "--json", code=None).document
    (line,) = [each["found"] for each in found["findings"] if each["name"] == "data path"]
    assert line.startswith(f"{path}: ")


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("note", 0), ("warn", 1), ("fail", 2)])
def test_the_exit_code_is_the_worst_verdict(tutti, patient, verdict, code):
    patient(Finding("ok", "one", "good"), Finding(verdict, "two", "[odd]", "mend it", "/mnt"))
    shown = tutti("doctor", code=code).stdout
    assert "[odd]" in shown and "fix: mend it" in shown and "/mnt" in shown
    assert tutti("doctor", "--json", code=code).document["verdict"] == verdict


def test_what_others_print_meanwhile_is_not_part_of_the_answer(tutti, monkeypatch):
    def examine(roots, master):
        print("a library greets")
        return []

    monkeypatch.setattr("tutti_engine.cli.doctor.examine", examine)
    assert tutti("doctor", "--json").document == {"verdict": "ok", "findings": []}


def test_too_few_descriptors_fail_with_the_number_to_set():
    pytest.importorskip("typer", reason="extra cli")

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))

    done = subprocess.run(
        [sys.executable, "-m", "tutti_engine.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=few,
    )
    assert done.returncode == 2, done.stderr
    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["name"] == "open files"]
    assert found["verdict"] == "fail" and "ulimit -n" in found["fix"]


def test_roots_that_a_store_would_refuse(tutti, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    verdicts = {
        name: of_root(tutti("doctor", tmp_path / name, "--json", code=None).document, "directory")["verdict"]
        for name in ("file", "link", "open", "new")
    }
    assert verdicts == {"file": "fail", "link": "fail", "open": "warn", "new": "note"}
    assert not (tmp_path / "new").exists()
    linked = of_root(tutti("doctor", tmp_path / "link", "--json", code=2).document, "directory")
    assert "symbolic link" in linked["found"] and linked["fix"] == f"name {tmp_path}"


@pytest.mark.parametrize(
    ("refusal", "switch", "verdict", "words"),
    [
        (0, None, "ok", "works"),
        (errno.ENOSYS, None, "warn", "Linux 5.11"),
        (errno.EPERM, "2", "warn", "sysctl kernel.io_uring_disabled=0"),
        (errno.EPERM, "0", "warn", "seccomp"),
        (errno.EPERM, None, "warn", "seccomp"),
        (errno.ENOMEM, None, "warn", "ulimit -l"),
        (errno.EMFILE, None, "warn", "refused"),
    ],
)
def test_each_refusal_of_io_uring_has_its_own_fix(tmp_path, refusal, switch, verdict, words):
    if switch is not None:
        (tmp_path / "switch").write_text(f"{switch}\n")
    found = machine.io_uring(refusal, tmp_path / "switch")
    assert found.verdict == verdict and words in found.found + found.fix


def test_io_uring_is_tried_and_leaves_no_descriptor():
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    assert machine.probe_io_uring() in (0, errno.EPERM, errno.ENOSYS, errno.ENOMEM, errno.EACCES)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_locked_memory_is_unlimited_with_the_capability_alone():
    assert machine.memory_lock(8 << 20, capabilities=0).verdict == "warn"
    assert machine.memory_lock(8 << 20, capabilities=1 << machine.IPC_LOCK).verdict == "ok"
    assert machine.memory_lock(resource.RLIM_INFINITY, capabilities=0).verdict == "ok"
    assert machine.memory_lock(2 << 30, capabilities=0).verdict == "ok"


MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:5 / /mnt rw - tmpfs none rw
23 22 0:6 / /mnt/my\\040drive rw shared:1 - nfs4 host:/x rw
24 21 8:2 / /mnt rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "verdict"),
    [
        ("/somewhere", "ext4", "ok"),
        ("/mntx", "ext4", "ok"),
        ("/mnt/a", "xfs", "ok"),
        ("/mnt/my drive/b", "nfs4", "fail"),
    ],
)
def test_the_innermost_and_latest_mount_counts(tmp_path, path, kind, verdict):
    (tmp_path / "mountinfo").write_text(MOUNTS)
    mount = mounts.find_mount(Path(path), tmp_path / "mountinfo")
    assert mount is not None and mount.kind == kind
    assert roots.file_system(mount, path).verdict == verdict


def test_unknown_file_systems_and_missing_lists_are_notes(tmp_path):
    assert mounts.find_mount(tmp_path, tmp_path / "none") is None
    assert roots.file_system(None, "/x").verdict == "note"
    assert roots.file_system(mounts.Mount("/", "zfs", "pool", ()), "/x").verdict == "note"
    assert roots.file_system(mounts.Mount("/", "overlay", "overlay", ()), "/x").verdict == "warn"


@pytest.mark.parametrize(
    ("refusal", "verdict"), [(0, "ok"), (None, "note"), (errno.EINVAL, "warn"), (errno.ENOSPC, "fail")]
)
def test_direct_io(refusal, verdict):
    assert roots.direct_io(refusal, "/x").verdict == verdict


@pytest.mark.parametrize(
    ("drive", "node", "gpus", "verdict"),
    [
        ("nvme0n1", 0, {0, 1}, "ok"),
        ("nvme0n1", 1, {0}, "warn"),
        ("nvme0n1", None, {0}, "note"),
        ("nvme0n1", 0, set(), "note"),
        ("", None, {0}, "note"),
    ],
)
def test_a_drive_on_another_node_than_all_gpus_is_a_warning(drive, node, gpus, verdict):
    assert roots.numa(drive, node, gpus, "/x").verdict == verdict


def test_nodes_are_read_from_what_the_devices_hang_on(tmp_path):
    gpu = tmp_path / "devices/pci/0000:01:00.0"
    drive = tmp_path / "devices/pci/0000:02:00.0/nvme/nvme0/nvme0n1"
    for folder, node in ((gpu, "1\n"), (drive.parents[2], "0\n")):
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node)
    drive.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:01:00.0").symlink_to(gpu)
    device = tmp_path.stat().st_dev
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / f"dev/block/{os.major(device)}:{os.minor(device)}").symlink_to(drive)
    assert mounts.gpu_nodes(tmp_path) == {1}
    assert mounts.drive_node(tmp_path, tmp_path) == ("nvme0n1", 0)


def test_room_that_stores_may_still_take_is_counted():
    assert roots.room(1000, 500, 400, "/x").verdict == "ok"
    assert roots.room(1000, 500, 501, "/x").verdict == "warn"
    assert roots.room(1000, 40, 0, "/x").verdict == "warn"


def test_a_missing_gpu_way_is_a_note_that_names_what_is_missing():
    def way(possible, *findings):
        return SimpleNamespace(name="gds", title="direct", possible=possible, findings=findings)

    unsure = SimpleNamespace(name="kernel", state="unknown", found="?", fix="look")
    absent = SimpleNamespace(name="GPU", state="missing", found="none", fix="buy one")
    good, bad = installed.gpu_ways([way("yes"), way("no", unsure, absent)])
    assert good.verdict == "ok"
    assert (bad.verdict, bad.found, bad.fix) == ("note", "not possible: GPU, none", "buy one")


def test_findings_of_other_distributions_are_asked_and_a_broken_one_is_told(monkeypatch):
    def broken():
        raise RuntimeError("no luck")

    points = [
        SimpleNamespace(name="b", value="b:broken", load=lambda: broken),
        SimpleNamespace(
            name="a", value="a:fine", load=lambda: lambda: [{"verdict": "ok", "name": "A", "found": "1"}]
        ),
    ]
    monkeypatch.setattr(looks, "entry_points", lambda group: points)
    found = list(looks.from_entry_points())
    assert [(each.verdict, each.name) for each in found] == [("ok", "A"), ("fail", "b")]
    assert "no luck" in found[1].found


def test_a_verdict_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'fine'"):
        Finding("fine", "x", "y")
