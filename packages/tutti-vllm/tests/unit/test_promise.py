# SPDX-License-Identifier: Apache-2.0
"""What vLLM is told about a hit: how much, when, and whether its steps wait for it."""

from dataclasses import dataclass, field

import pytest

from tutti_engine import Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_vllm.messages import StepReport
from tutti_vllm.scheduler_side.load_mode import LoadChooser, LoadRules
from tutti_vllm.scheduler_side.scheduler import SchedulerSide

# Chunks of 4 blocks of 16 tokens; hashes of 16 tokens.
GEOMETRY = Geometry(num_layers=1, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)


@dataclass
class Request:
    request_id: str
    num_tokens: int
    num_computed_tokens: int = 0
    cache_salt: str | None = None
    block_hashes: list = field(default_factory=list)

    def __post_init__(self):
        self.block_hashes = [f"{n}".encode() for n in range(self.num_tokens // 16)]


class Rig:
    def __init__(self, **rules):
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(64))
        self.side = SchedulerSide(self.engine, None, hash_tokens=16, rules=LoadRules(**rules))
        filler = self.add("filler", 512)
        orders = self.step(filler=512)
        results = [StoreResult(p.plan_id, (b"s" * 8,) * len(p.transfers)) for p in orders.stores]
        self.side.take_report(StepReport({0: tuple(results)}))
        self.side.remove_request(filler.request_id)

    def add(self, request_id, tokens):
        request = Request(request_id, tokens)
        self.side.add_request(request)
        return request

    def step(self, **scheduled):
        return self.side.build_orders(scheduled, {}, lambda request_id: (list(range(100, 200)),))

    def measure(self, load_us, compute_us):
        for tokens in (100, 200, 400, 800):
            self.engine.break_even.note_load(tokens, tokens * load_us * 1e-6)
            self.engine.break_even.note_compute(tokens, tokens * compute_us * 1e-6)

    def admit(self, request):
        tokens, _ = self.side.promise(request, 0)
        self.side.plan_load(request, (list(range(1, 40)),), tokens)
        return tokens

    def counters(self):
        return self.side.counters()


def test_a_refusal_is_counted_once_a_request_however_often_vllm_asks():
    rig = Rig()
    rig.measure(load_us=50, compute_us=20)
    request = rig.add("r", 500)
    assert [rig.side.promise(request, 0) for _ in range(50)] == [(0, False)] * 50
    assert rig.counters()["break_even_refused"] == 1


def test_an_answer_stands_while_measurements_change():
    rig = Rig()
    rig.measure(load_us=20, compute_us=50)
    request = rig.add("r", 500)
    assert rig.side.promise(request, 0)[0] == 448
    for _ in range(3):
        rig.measure(load_us=50, compute_us=20)
    assert rig.side.promise(request, 0)[0] == 448
    assert rig.side.promise(rig.add("s", 500), 0) == (0, False)


def test_another_hit_is_another_question():
    rig = Rig()
    rig.measure(load_us=50, compute_us=20)
    request = rig.add("r", 500)
    rig.side.promise(request, 0)
    rig.side.promise(request, 256)
    assert rig.counters()["break_even_refused"] == 2


def test_after_a_preemption_the_question_is_a_new_one():
    rig = Rig()
    rig.measure(load_us=20, compute_us=50)
    request = rig.add("r", 500)
    rig.admit(request)
    rig.step()
    for _ in range(4):
        rig.measure(load_us=50, compute_us=20)
    assert rig.side.promise(request, 0) == (0, False)


@pytest.mark.parametrize(("mode", "asynchronous"), [("async", True), ("layerwise", False), ("auto", True)])
def test_the_order_says_how_vllm_was_promised_the_load(mode, asynchronous):
    rig = Rig(mode=mode)
    request = rig.add("r", 500)
    assert rig.side.promise(request, 0) == (448, asynchronous)
    rig.side.plan_load(request, (list(range(1, 40)),), 448)
    (load,) = rig.step().loads
    assert load.layerwise is not asynchronous


def test_auto_waits_in_the_step_for_what_is_short():
    rig = Rig()
    rig.measure(load_us=10, compute_us=100)
    request = rig.add("r", 500)
    assert rig.side.promise(request, 0) == (448, False)


def test_no_step_waits_behind_loads_that_are_beside_the_steps():
    rig = Rig(mode="layerwise")
    parked = rig.add("p", 500)
    rig.admit(parked)
    (load,) = rig.step().loads
    assert load.layerwise
    # As if it had been parked.
    rig.side._chooser.begin(load.plan.plan_id, 448, parked=True)
    other = rig.add("r", 500)
    assert rig.side.promise(other, 0) == (448, True)
    rig.side.take_report(StepReport({0: (LoadResult(load.plan.plan_id),)}))
    assert rig.side.promise(other, 0) == (448, False)


def test_hits_beyond_the_bound_are_asked_for_again():
    rig = Rig(max_tokens=500)
    first, second = rig.add("a", 500), rig.add("b", 500)
    assert rig.admit(first) == 448
    (load,) = rig.step().loads
    assert rig.side.promise(second, 0) == (None, False)
    assert rig.side.promise(second, 0) == (None, False)
    rig.side.take_report(StepReport({0: (LoadResult(load.plan.plan_id),)}))
    assert rig.side.promise(second, 0) == (448, True)


def test_prefills_teach_what_computing_takes_and_waits_for_loads_do_not():
    rig = Rig(mode="layerwise", break_even=False)
    waited = rig.add("w", 500)
    rig.admit(waited)
    rig.step(w=52)
    waited.num_computed_tokens, waited.num_tokens = 500, 501
    rig.step(w=1)
    model = rig.engine.break_even._compute
    assert model.samples == 0
    plain = rig.add("p", 500)
    rig.step(p=500)
    plain.num_computed_tokens = 500
    rig.step(p=1)
    assert model.samples == 0, "its first token is not known yet"
    plain.num_tokens = 501
    rig.step(p=1)
    assert model.samples == 1
    rig.step(p=1)
    short = rig.add("q", 300)
    rig.step(q=300)
    short.num_tokens = 301
    rig.side.remove_request("q")
    assert model.samples == 2, "it ended with its first token"
    rig.side._chooser = LoadChooser(rig.engine.break_even, LoadRules(mode="async"))
    parked = rig.add("a", 500)
    rig.admit(parked)
    rig.step()
    parked.num_computed_tokens = 448
    rig.step(a=52)
    parked.num_computed_tokens, parked.num_tokens = 500, 501
    rig.step(a=1)
    assert model.samples == 2 and rig.engine.break_even._rest.samples == 1, (
        "52 of 500 tokens are a step's time"
    )
    rig.add("x", 300)
    rig.step(x=300)
    rig.side.remove_request("x")
    assert model.samples == 2, "it was aborted"


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_a_promise_is_kept_or_reported_whatever_goes_wrong(monkeypatch, mode):
    from tutti_vllm.scheduler_side import scheduler

    rig = Rig(mode=mode)
    request = rig.add("r", 500)
    tokens, _ = rig.side.promise(request, 0)
    monkeypatch.setattr(scheduler, "LoadTable", lambda *what: 1 / 0)
    rig.side.plan_load(request, ([0, *range(1, 40)],), tokens)
    (load,) = rig.step().loads
    assert (load.plan, load.layerwise) == (None, mode == "layerwise")
    assert load.block_ids == tuple(range(1, 40))
