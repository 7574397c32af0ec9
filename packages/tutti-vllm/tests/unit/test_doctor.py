# SPDX-License-Identifier: Apache-2.0
"""What ``tutti doctor`` says about vLLM."""

from importlib.metadata import entry_points

import pytest

from tutti_vllm import doctor
from tutti_vllm.compat import UnsupportedVllmError


@pytest.mark.parametrize(
    ("version", "verdict"), [("0.32.0", "ok"), ("0.33.1", "warn"), (UnsupportedVllmError("too old"), "fail")]
)
def test_a_version_has_a_verdict_and_all_but_the_tested_one_a_fix(monkeypatch, version, verdict):
    def check_vllm():
        if isinstance(version, Exception):
            raise version
        return version

    monkeypatch.setattr(doctor, "check_vllm", check_vllm)
    (found,) = doctor.examine()
    assert found["verdict"] == verdict
    assert bool(found["fix"]) == (verdict != "ok")
    assert str(version) in found["found"]


def test_the_command_line_finds_it_where_this_package_is_installed():
    points = [point for point in entry_points(group="tutti_engine.doctor") if point.name == "vllm"]
    if not points:
        pytest.skip("runs from the source, which has no entry points")
    assert points[0].load() is doctor.examine
