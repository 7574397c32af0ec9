# SPDX-License-Identifier: Apache-2.0
"""What ``tutti doctor`` says about vLLM."""

import json
from importlib.metadata import entry_points

import pytest

from tutti_vllm.commands import doctor
from tutti_vllm.commands.doctor_shared import examine_shared
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
    (found,) = doctor.examine_vllm()
    assert found["verdict"] == verdict
    assert bool(found["fix"]) == (verdict != "ok")
    assert str(version) in found["found"]


def test_the_command_line_finds_it_where_this_package_is_installed():
    points = [point for point in entry_points(group="tutti_engine.doctor") if point.name == "vllm"]
    if not points:
        pytest.skip("runs from the source, which has no entry points")
    assert points[0].load() is doctor.examine


def shared_store(path, **options):
    store = {"kind": "tutti_engine.testing.shared_stores:DirectoryStore", "path": str(path)} | options
    return {"TUTTI_SHARED_STORE": json.dumps(store)}


def test_a_shared_store_is_asked_if_the_environment_names_one(tmp_path):
    assert examine_shared({}) == []
    (found,) = examine_shared(shared_store(tmp_path))
    assert (found["verdict"], found["fix"]) == ("ok", "")


@pytest.mark.parametrize("trouble", ["cut", "hang"])
def test_a_shared_store_that_does_not_answer_is_told(tmp_path, trouble):
    (tmp_path / trouble).touch()
    (found,) = examine_shared(shared_store(tmp_path), patience=0.2)
    (tmp_path / trouble).unlink()
    assert found["verdict"] == "fail" and "does not say" in found["found"] and found["fix"]


def test_wrong_settings_of_a_shared_store_are_told(tmp_path):
    (found,) = examine_shared(shared_store(tmp_path, pth="x"))
    assert found["verdict"] == "fail" and "'pth'" in found["found"]
