# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a shared store's cost runs and says all that it promises; its times are nobody's here."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "shared_time.py"


def test_it_measures_every_kind_of_prompt(tmp_path, monkeypatch, capsys):
    if not BENCHMARK.exists():
        pytest.skip("the tests are apart from the benchmarks")
    report = tmp_path / "report.json"
    monkeypatch.setattr(
        sys, "argv", [str(BENCHMARK), "--rounds", "2", "--sizes", "2048", "--json", str(report)]
    )
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert ended.value.code == 0
    found = json.loads(report.read_text())["microseconds"]["2048"]
    prompts = {"miss", "local", "shared"}
    assert set(found) == prompts | {f"in {kind}" for kind in prompts} | {
        "again",
        "table",
        "plain local",
        "nothing",
        "noise",
    }
    assert found["plain local"] > 0
    assert "32 chunks" in capsys.readouterr().out
