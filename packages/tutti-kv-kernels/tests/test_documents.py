# SPDX-License-Identifier: Apache-2.0
"""What the documents show runs."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
import torch

import tutti_kv_kernels as tk

PACKAGE = Path(__file__).parents[1]


def test_readme_example_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text("utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})


def test_readme_s_support_table_is_that_of_now() -> None:
    module = runpy.run_path(str(PACKAGE / "tests" / "support_table.py"))
    text = (PACKAGE / "README.md").read_text("utf-8")
    assert "| NO |" not in text
    assert module["updated"](text) == text, "run `python tests/support_table.py --write`"


def test_readme_lists_the_vectors_that_are_tested() -> None:
    vectors = runpy.run_path(str(PACKAGE / "tests" / "test_checksum.py"))["VECTORS"]
    text = (PACKAGE / "README.md").read_text("utf-8")
    for _, value in vectors:
        assert f"`0x{value:016x}`" in text


def test_bandwidth_benchmark_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    module = runpy.run_path(str(PACKAGE / "benchmarks" / "cpu_bandwidth.py"))
    result = tmp_path / "rows.json"
    size = ["--total-mib", "1", "--segment-kib", "64", "--rounds", "1", "--json", str(result)]
    module["main"]([*size, "--pages", "4096", "4100", "--strided", "64"])
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 4
    assert all(name in table[0] for name in ("memcpy", "indexed", "gather", "scatter", "checksum"))
    rows = json.loads(result.read_text("utf-8"))
    assert [(row["run_bytes"], row["runs"]) for row in rows] == [(4096, 1), (4100, 1), (64, 256)]
    assert all(row["ratios"]["memcpy"] == 1 for row in rows)


def test_bandwidth_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, which draws the plot, is not installed")
    module = runpy.run_path(str(PACKAGE / "benchmarks" / "cpu_bandwidth.py"))
    shapes = [module["Shape"](4096, 1), module["Shape"](64, 16)]
    module["plot"](
        [module["measure"](shape, 65536, 1 << 20, 1, [1]) for shape in shapes], tmp_path / "plot.png"
    )
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_device_benchmark_s_checksum_by_torch_is_the_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the benchmark would compare a transfer with work that differs."""
    monkeypatch.syspath_prepend(str(PACKAGE / "benchmarks"))
    module = runpy.run_path(str(PACKAGE / "benchmarks" / "gpu_layers.py"))
    rows = torch.randint(0, 256, (16, 4096), dtype=torch.uint8)
    positions = torch.arange(1, 4096 // 8 + 1) * module["_INDEX_FACTOR"]
    found = module["torch_checksums"](rows.view(torch.int64), positions)
    assert [value % 2**64 for value in found.tolist()] == [tk.checksum(row) for row in rows]
