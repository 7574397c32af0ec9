# SPDX-License-Identifier: Apache-2.0
"""The benchmark of shares of a device asks the driver for what it means to. No device is needed."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of the installed package", allow_module_level=True)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("gpu_green", "gpu_sm", "gpu_cases", "gpu_timing"):
        sys.modules.pop(name, None)


class Driver:
    """Cuts a device of 132 multiprocessors by eights, or by twos where groups may be cut."""

    def __init__(self, resource: type, fails: str = "") -> None:
        self.resource, self.fails = resource, fails
        self.called: list[str] = []
        self.current: list[Any] = []
        self.made = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name == self.fails.removeprefix("no "):
            if self.fails.startswith("no ") or not name.startswith("cu"):
                raise AttributeError(name)
            return lambda *_: 801

        def call(*arguments: Any) -> int:
            self.called.append(name)
            return int(getattr(self, f"do_{name}", lambda *_: 0)(*arguments) or 0)

        return call

    def _at(self, pointer: Any) -> Any:
        return pointer._obj

    def do_cuDeviceGetDevResource(self, device: Any, whole: Any, kind: Any) -> None:
        assert kind.value == 1
        self._at(whole).sm_count = 132

    def do_cuDevSmResourceSplitByCount(
        self, part: Any, groups: Any, whole: Any, rest: Any, flags: Any, least: Any
    ) -> None:
        step = 2 if flags.value == 1 else 8
        own = -(-least.value // step) * step
        assert self._at(groups).value == 1
        self._at(part).sm_count, self._at(rest).sm_count = own, self._at(whole).sm_count - own

    def do_cuGreenCtxCreate(self, green: Any, description: Any, device: Any, flags: Any) -> None:
        assert flags.value == 1, "the driver refuses a green context without a default stream"
        self.made += 1
        self._at(green).value = self.made

    def do_cuCtxFromGreenCtx(self, context: Any, green: Any) -> None:
        self._at(context).value = 100 + green.value

    def do_cuGreenCtxStreamCreate(self, stream: Any, green: Any, flags: Any, priority: Any) -> None:
        self._at(stream).value = 1000 + green.value

    def do_cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.current.append(context.value)

    def do_cuCtxPopCurrent_v2(self, context: Any) -> None:
        self.current.pop()

    def do_cuGetErrorString(self, code: int, text: Any) -> None:
        self._at(text).value = b"operation not supported"


@pytest.mark.parametrize(("sms", "cut"), [(2, (2, 130)), (3, (4, 128)), (8, (8, 124)), (12, (16, 116))])
def test_a_device_is_cut_in_a_part_and_the_rest(load, sms: int, cut: tuple[int, int]) -> None:
    green = load("gpu_green")
    driver = Driver(green.Resource)
    made = green.GreenContexts(sms, driver=driver)
    assert made.sms == cut and made.streams == [1001, 1002]
    with made.current(1):
        assert driver.current == [102]
        with made.current(0):
            assert driver.current == [102, 101]
    assert driver.current == []


def test_the_driver_s_structure_has_its_size(load) -> None:
    resource = load("gpu_green").Resource
    assert ctypes.sizeof(resource) == 144 and resource.sm_count.offset == 96


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        ("cuGreenCtxCreate", "cuGreenCtxCreate failed with 801: operation not supported"),
        ("no cuGreenCtxCreate", "no cuGreenCtxCreate: green contexts came with CUDA 12.4"),
    ],
)
def test_what_the_driver_refuses_is_named(load, fails: str, text: str) -> None:
    green = load("gpu_green")
    with pytest.raises(green.GreenError, match=text):
        green.GreenContexts(8, driver=Driver(green.Resource, fails))


def test_the_table_has_shares_and_errors(load) -> None:
    sm = load("gpu_sm")
    assert sm.busy_share(4, 132, 0.5) == pytest.approx(0.01515, abs=1e-5)
    row = {"method": "kernel", "direction": "gather", "GB/s": 20.0, "share": 0.0123, "GEMM slower": 0.02}
    printed = sm.table([row, {"method": "green", "error": "GreenError: no"}])
    assert "| kernel | gather | 20.0 | 1.2% | 2.0% |" in printed and "| green | GreenError: no |" in printed


def test_without_a_device_the_program_says_so(load, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    sm = load("gpu_sm")
    monkeypatch.setattr(sm.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_sm"])
    assert sm.main() == 2
    assert "needs a CUDA device" in capsys.readouterr().err
