# SPDX-License-Identifier: Apache-2.0
"""What the documents show runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]


def test_readme_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text("utf-8"), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})


def test_readme_lists_the_vectors_that_are_tested() -> None:
    vectors = runpy.run_path(str(PACKAGE / "tests" / "test_checksum.py"))["VECTORS"]
    text = (PACKAGE / "README.md").read_text("utf-8")
    for _, value in vectors:
        assert f"`0x{value:016x}`" in text


def test_bandwidth_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    module = runpy.run_path(str(PACKAGE / "benchmarks" / "cpu_bandwidth.py"))
    module["main"](["--total-mib", "1", "--segment-kib", "64", "--rounds", "1", "--pages", "4096", "4100"])
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 3
    assert all(name in table[0] for name in ("memcpy", "indexed", "gather", "scatter", "checksum"))
