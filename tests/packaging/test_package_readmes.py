# SPDX-License-Identifier: Apache-2.0
"""The examples in the packages' READMEs run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.layers import ROOT


def example(package: str) -> str:
    text = (ROOT / "packages" / package / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


@pytest.mark.parametrize("package", ["tutti-runtime", "tutti-kv-kernels", "tutti-engine"])
def test_the_example_runs(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package.replace("-", "_"))
    done = subprocess.run(
        [sys.executable, "-c", example(package)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["tutti-runtime", "tutti-kv-kernels", "tutti-engine", "tutti-vllm"])
def test_every_readme_tells_install_example_and_tests(package: str) -> None:
    text = (ROOT / "packages" / package / "README.md").read_text()
    assert f"pip install {package}" in text
    assert "```python" in text
    assert "hatch run" in text or "pytest packages/" in text


def test_the_connectors_example_is_python() -> None:
    compile(example("tutti-vllm"), "packages/tutti-vllm/README.md", "exec")
