# SPDX-License-Identifier: Apache-2.0
"""tools/versions.py: the packages are in step, and what it writes is in step again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import versions

PROJECT = """\
[project]
name = "{name}"
version = "{version}"
dependencies = ["tutti-runtime>=0.1,<0.2", "tutti-engine[local, kernels]>=0.1.0,<0.2", "numpy>=1.26,<3.0"]
"""


def repository(root: Path, module: str = "", **packages: str) -> Path:
    for name, version in packages.items():
        folder = root / "packages" / f"tutti-{name}"
        (folder / "src" / f"tutti_{name}").mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PROJECT.format(name=f"tutti-{name}", version=version))
        (folder / "src" / f"tutti_{name}" / "__init__.py").write_text(module)
    return root


def test_the_packages_are_in_step() -> None:
    assert versions.check() == []


def test_patch_releases_may_differ(tmp_path: Path) -> None:
    assert versions.check(repository(tmp_path, engine="0.1.0", vllm="0.1.3")) == []


def test_minors_may_not_differ(tmp_path: Path) -> None:
    found = versions.check(repository(tmp_path, engine="0.1.0", vllm="0.2.0"))
    assert len(found) == 1
    assert "tutti-engine 0.1.0, tutti-vllm 0.2.0" in found[0]


def test_a_module_version_must_match(tmp_path: Path) -> None:
    found = versions.check(repository(tmp_path, '__version__ = "0.1.1"\n', engine="0.1.0"))
    assert found == ["packages/tutti-engine/src/tutti_engine/__init__.py: __version__ 0.1.1 is not 0.1.0"]


def test_a_project_without_a_version_is_named(tmp_path: Path) -> None:
    root = repository(tmp_path, engine="0.1.0")
    (root / "packages" / "tutti-engine" / "pyproject.toml").write_text('[project]\nname = "tutti-engine"\n')
    assert "0 lines read" in versions.check(root)[0]


def test_set_moves_versions_and_sibling_ranges(tmp_path: Path) -> None:
    root = repository(tmp_path, '__version__ = "0.1.0"\n', engine="0.1.0", vllm="0.1.3")
    changed = versions.set_version("0.2.1", root)
    assert len(changed) == 4
    text = (root / "packages" / "tutti-vllm" / "pyproject.toml").read_text()
    assert 'version = "0.2.1"' in text
    assert '"tutti-runtime>=0.2,<0.3", "tutti-engine[local, kernels]>=0.2,<0.3", "numpy>=1.26,<3.0"' in text
    assert versions.check(root) == []
    assert versions.set_version("0.2.1", root) == []


@pytest.mark.parametrize("text", ["0.2", "v0.2.0", "0.2.0.dev1", ""])
def test_set_refuses_what_is_not_a_version(tmp_path: Path, text: str) -> None:
    root = repository(tmp_path, engine="0.1.0")
    with pytest.raises(ValueError, match=r"is not X\.Y\.Z"):
        versions.set_version(text, root)
    assert versions.read_versions(root) == {"tutti-engine": "0.1.0"}
