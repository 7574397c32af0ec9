# SPDX-License-Identifier: Apache-2.0
"""The example in the README runs."""

from __future__ import annotations

from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not README.exists():
        pytest.skip("the tests are apart from the README")
    example = README.read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README", "exec"), {})
    written = (tmp_path / "example.seg").stat()
    assert written.st_size == 1 << 20
