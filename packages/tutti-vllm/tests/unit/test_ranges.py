# SPDX-License-Identifier: Apache-2.0
"""Ranges lie around what they name, end whatever happens, and are not there unless they are asked for."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tutti_engine import ChunkTransfer, Geometry, StorePlan, TuttiEngine
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.movers.plain import PlainMover
from tutti_engine.store.layout import StoreLayout
from tutti_vllm.messages import StepOrders
from tutti_vllm.worker_side import ranges
from tutti_vllm.worker_side.worker import WorkerSide

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
LAYOUT = StoreLayout(("/nowhere",), 2, 8192, 16384, 8, 8)


class Marks:
    def __init__(self):
        self.seen = []

    def push(self, name):
        self.seen.append(name)

    def pop(self):
        self.seen.append("/")


def engine(layout):
    return TuttiEngine(
        GEOMETRY, backend=MemoryBackend(num_layers=2, segment_bytes=GEOMETRY.segment_bytes, num_chunks=8)
    )


@pytest.fixture
def side():
    side = WorkerSide(0, engine)
    yield side
    side.shutdown(5.0)


def register(side):
    pages = [memoryview(bytearray(16 * 4096)) for _ in range(2)]
    side.register(PlainMover(GEOMETRY, pages), ["layer.0", "layer.1"])


def test_a_steps_work_lies_in_ranges(side):
    marks = Marks()
    ranges.add_to_worker(side, marks)
    register(side)
    plan = StorePlan(1, (ChunkTransfer(b"k", 2, ((3, 4),)),))
    side.begin_step(StepOrders(LAYOUT, stores=(plan,)))
    side.start_loads()
    side.wait_for_layer("layer.0")
    side.finish_step()
    assert marks.seen == ["start loads", "/", "wait for layer", "/", "store pages", "gather", "/", "/"]


def test_a_range_ends_also_when_what_it_names_fails(side):
    marks = Marks()
    ranges.add_to_worker(side, marks)
    side.register(SimpleNamespace(gather=lambda: 1 / 0, scatter=None), [])
    with pytest.raises(ZeroDivisionError):
        side._mover.gather()
    assert marks.seen == ["gather", "/"]


def test_every_method_that_is_wrapped_exists_and_off_means_untouched(side):
    register(side)
    assert set(ranges._WORKER) <= set(dir(WorkerSide)) and not set(ranges._WORKER) & set(vars(side))
    assert not set(ranges._MOVER) & set(vars(side._mover))


def test_without_a_way_to_make_ranges_one_line_says_so(side, caplog):
    ranges.add_to_worker(side, None)
    assert caplog.messages == ["Tutti: nvtx is switched on, but there is none: install the package nvtx."]
    assert "start_loads" not in vars(side)


@pytest.mark.parametrize(
    ("setting", "variable", "wanted"),
    [(False, None, False), (True, None, True), (False, "1", True), (False, "0", False), (True, "0", True)],
)
def test_who_switches_them_on(monkeypatch, setting, variable, wanted):
    monkeypatch.delenv(ranges.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(ranges.VARIABLE, variable)
    assert ranges.are_wanted(setting) is wanted


def test_the_package_is_taken_before_torchs_part_of_it(monkeypatch):
    calls = []
    package = ModuleType("nvtx")
    package.push_range = lambda name, domain: calls.append((name, domain))
    package.pop_range = lambda domain: calls.append(domain)
    monkeypatch.setitem(sys.modules, "nvtx", package)
    marks = ranges.find_marks()
    marks.push("x")
    marks.pop()
    assert calls == [("x", "tutti"), "tutti"]


def fake_torch(monkeypatch, push):
    torch, cuda = ModuleType("torch"), ModuleType("torch.cuda")
    torch.cuda, cuda.nvtx = cuda, SimpleNamespace(range_push=push, range_pop=lambda: None)
    for name, module in (("nvtx", None), ("torch", torch), ("torch.cuda", cuda)):
        monkeypatch.setitem(sys.modules, name, module)


def test_torchs_part_is_the_second_choice_and_a_cpu_build_has_none(monkeypatch):
    calls = []
    fake_torch(monkeypatch, calls.append)
    ranges.find_marks().push("x")
    assert calls == ["tutti", "tutti: x"]

    def missing(name):
        raise RuntimeError("NVTX functions not installed")

    fake_torch(monkeypatch, missing)
    assert ranges.find_marks() is None
