# SPDX-License-Identifier: Apache-2.0
"""The benchmark of statistics runs and reports each of its cases."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "stats_time.py"


def test_it_reports_each_case(tmp_path, monkeypatch, capsys):
    if not SCRIPT.exists():
        pytest.skip("the tests are apart from the benchmarks")
    result = tmp_path / "times.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--calls", "2", "--runs", "1", "--json", str(result)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(result.read_text())
    assert len(found) == 5 and all(spent > 0 for spent in found.values())
    assert capsys.readouterr().out.count("of a step's 50 us") == 2
