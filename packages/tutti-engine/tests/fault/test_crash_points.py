# SPDX-License-Identifier: Apache-2.0
"""A slice of `python -m tutti_engine.testing.crash`, which goes through thousands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

POINTS = 20


def test_whatever_a_kill_leaves_opens_and_every_chunk_that_it_shows_is_right(tmp_path: Path) -> None:
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("the interception library needs a C compiler")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tutti_engine.testing.crash", "--points", str(POINTS)]
    # A relative path: calls are matched by absolute ones.
    command += ["--directory", os.path.relpath(tmp_path), "--json", str(report)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert report.exists(), done.stderr
    result = json.loads(report.read_text())
    print(f"seed {result['seed']}")
    assert result["points"] == POINTS
    assert result["not_reached"] == 0, "a call of which nobody was killed tests nothing"
    assert result["chunks_seen"] > POINTS, "nothing was stored, so nothing was tested"
    assert result["confirmed"] > 0
    assert (result["wrong"], result["start_failures"], result["lost"]) == ([], [], 0)
    assert done.returncode == 0
