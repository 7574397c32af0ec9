# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run with tiny sizes and report what they are for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "bandwidth.py"


def report_of(name: str, folder: Path, *options: str) -> dict:
    script = SCRIPT.with_name(name)
    if not script.exists():
        pytest.skip("the tests are apart from the benchmarks")
    out = folder / "report.json"
    command = [sys.executable, str(script), "--folder", str(folder), "--json", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    return json.loads(out.read_text())


def test_striping_reports_both_parts(tmp_path: Path) -> None:
    sizes = [
        "--file-mib",
        "8",
        "--block-kib",
        "64",
        "--unit-kib",
        "64",
        "--rounds",
        "1",
        "--rate-mib",
        "8",
        "--seconds",
        "1",
    ]
    report = report_of("striping.py", tmp_path, *sizes, "--direct", "auto", "--throttle", "fault")
    assert [row["what"] for row in report["one_drive"]] == ["read", "write"]
    assert all(row["ratio"] > 0 for row in report["one_drive"])
    assert report["scaling"]["throttle"] == "fault path"
    assert all(row["times_rate"] > 0 for row in report["scaling"]["rows"])


def test_opening_is_reported_per_file(tmp_path: Path) -> None:
    report = report_of("open_files.py", tmp_path, "--files", "20", "--rounds", "1")
    assert report["files"] == 20
    assert set(report["warm"]) == {"os.open + os.fstat", "open", "open_batch"}
    assert all(value > 0 for value in report["warm"].values())


def test_reads_under_writes_runs_with_a_modelled_drive(tmp_path: Path) -> None:
    script = SCRIPT.with_name("reads_under_writes.py")
    if not script.exists():
        pytest.skip("the tests are apart from the benchmarks")
    report = tmp_path / "report.json"
    command = [sys.executable, str(script), "--folder", str(tmp_path), "--file-mib", "32", "--rounds", "1"]
    command += ["--seconds", "0.1", "--device-mbs", "2000", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())
    assert list(rows) == ["reads alone", "paced", "not paced"]
    assert all(row["read_gbs"] > 0 for row in rows.values())
    assert "reads alone" in done.stdout


def test_the_soft_controller_reports_a_rate_for_each_size(tmp_path: Path) -> None:
    script = SCRIPT.with_name("nvme_soft.py")
    if not script.exists():
        pytest.skip("the tests are apart from the benchmarks")
    report = tmp_path / "report.json"
    command = [sys.executable, str(script), "--commands", "3000", "--rounds", "1", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert {row["bytes"] for row in rows} == {512, 4096}
    assert all(row["commands_per_second"] > 0 for row in rows)


def test_teams_report_all_that_threads_can_answer(tmp_path: Path) -> None:
    script = SCRIPT.with_name("nvme_gpu.py")
    if not script.exists():
        pytest.skip("the tests are apart from the benchmarks")
    report = tmp_path / "report.json"
    command = [sys.executable, str(script), "--execution", "cpu", "--rounds", "1", "--slices", "512"]
    command += ["--segments", "16", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())
    assert all(row["commands_per_second"] > 0 for row in rows["submission"])
    assert rows["copies"]["ratio"] > 0
    assert [row["slices"] for row in rows["host"]] == [16, 256, 4096, 16384]


def test_the_cost_of_a_broker_is_reported(tmp_path: Path) -> None:
    script = SCRIPT.with_name("nvme_broker.py")
    if not script.exists():
        pytest.skip("the tests are apart from the benchmarks")
    report = tmp_path / "report.json"
    command = [sys.executable, str(script), "--rounds", "1", "--seconds", "0.02", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())
    assert len(rows) == 3 and all(row["own"] > 0 and row["brokered"] > 0 for row in rows.values())
