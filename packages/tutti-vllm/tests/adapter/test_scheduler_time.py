# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the scheduler's side runs and reports what it is for."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "scheduler_time.py"


def test_it_reports_each_call(tmp_path, monkeypatch, capsys):
    if not SCRIPT.exists():
        pytest.skip("the tests are apart from the benchmarks")
    result = tmp_path / "times.json"
    small = ["--chunks", "4096", "--steps", "3", "--runs", "2", "--json", str(result)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *small])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(result.read_text())
    restarted = {"hit after a restart", "same, places all over the store"}
    assert set(found) == {"step", "worker_step", "hit", "miss"} | restarted
    parts = {"lookup", "admission", "first_orders", "pickle"}
    assert set(found["hit"]) == parts | {"all of it", "lookup_again", "unpickle", "end"}
    assert "64 running requests" in capsys.readouterr().out
