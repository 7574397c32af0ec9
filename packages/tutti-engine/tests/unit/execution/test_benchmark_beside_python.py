# SPDX-License-Identifier: Apache-2.0
"""The benchmark of transfers beside a thread that runs Python moves what it says. It needs tutti-runtime."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime")

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "beside_python.py"


def test_it_loads_and_stores_beside_each_kind_of_thread(tmp_path, monkeypatch, capsys):
    if not SCRIPT.exists():
        pytest.skip("the tests are apart from the benchmarks")
    result = tmp_path / "result.json"
    arguments = ["--chunks", "4", "--rounds", "1", "--folder", str(tmp_path), "--json", str(result)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(result.read_text())
    assert len(found["found"]) == 12 and found["found"]["spin, nothing"]["turns"][0] > 0
    assert found["counters"]["load_waves"] >= 4 and found["counters"]["store_waves"] >= 5
    assert "| launches, store |" in capsys.readouterr().out
