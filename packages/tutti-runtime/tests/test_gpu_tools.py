# SPDX-License-Identifier: Apache-2.0
"""The GPU tests and the GPU benchmark also run with the driver of our own, so that they do not rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def run(fakes: Path, *command: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "LD_LIBRARY_PATH": str(fakes)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_the_gpu_tests_pass_with_our_driver(fake_libraries: Path, tmp_path: Path) -> None:
    # One data path and one long test less than on a GPU machine: the others differ in what is real there.
    chosen = "not uring and not torch and not grow and not cufile"
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--import-mode=importlib", "-k", chosen]
    said = run(fake_libraries, "-m", "pytest", *options, str(HERE / "test_gpu.py"), folder=tmp_path)
    assert int(said.split(" passed")[0].split()[-1]) >= 25


def test_the_benchmark_of_the_window_reports_both_ways(fake_libraries: Path, tmp_path: Path) -> None:
    script = HERE.parent / "benchmarks" / "gpu_window.py"
    if not script.exists():
        pytest.skip("the tests are apart from the benchmarks")
    report = tmp_path / "report.json"
    sizes = ["--gib", "0.03125", "--files", "8", "--threads", "2", "--batch-mib", "2", "--rounds", "1"]
    said = run(
        fake_libraries,
        str(script),
        "--folder",
        str(tmp_path),
        *sizes,
        "--json",
        str(report),
        folder=tmp_path,
    )
    row = json.loads(report.read_text())["rows"][0]
    for way in ("read", "write"):
        assert row[way]["calls"] == 4 * 16
        assert min(row[way][f"{kind}_gbs"] for kind in ("files", "copies", "together")) > 0
        assert f"  {way}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
