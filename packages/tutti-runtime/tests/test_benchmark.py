# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs and prints a line per data path and block size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "bandwidth.py"


def test_bandwidth_runs_with_tiny_sizes(tmp_path: Path) -> None:
    if not SCRIPT.exists():
        pytest.skip("the tests are apart from the benchmarks")
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path), "--file-mib", "2", "--direct", "off"]
    command += ["--blocks-kib", "64", "256", "--depth", "4", "--repeat", "1", "--paths", "posix"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if " posix " in line]
    assert [row[:3] for row in rows] == [["64", "KiB", "posix"], ["256", "KiB", "posix"]]
    assert all(float(rate) > 0 for row in rows for rate in row[3:5])
    assert not list(tmp_path.iterdir())
