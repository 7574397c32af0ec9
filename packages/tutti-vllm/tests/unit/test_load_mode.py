# SPDX-License-Identifier: Apache-2.0
"""Whether a hit is loaded, and how."""

import pytest

from tutti_engine.planning.break_even import BreakEven
from tutti_vllm.scheduler_side.load_mode import FORGET_SECONDS, LoadChooser, LoadRules, why_not_layerwise
from tutti_vllm.scheduler_side.prefill_times import PrefillTimes


def measured(load_us, compute_us):
    """A break-even that knows how many microseconds a token takes."""
    known = BreakEven()
    for tokens in (100, 200, 400, 800):
        known.note_load(tokens, tokens * load_us * 1e-6)
        known.note_compute(tokens, tokens * compute_us * 1e-6)
    return known


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def chooser(known=None, **rules):
    clock = Clock()
    made = LoadChooser(BreakEven() if known is None else known, LoadRules(**rules), clock)
    made.clock = clock
    return made


def test_a_hit_that_takes_longer_than_computing_is_refused_and_counted():
    known = measured(load_us=50, compute_us=20)
    choice = chooser(known).choose(1000, 100, 0)
    assert not choice.load
    assert "1000 tokens" in choice.why and choice.why.startswith("compute")
    assert known.counters["break_even_refused"] == 1


def test_break_even_can_be_switched_off():
    known = measured(load_us=50, compute_us=20)
    assert chooser(known, break_even=False).choose(1000, 100, 0).load
    assert known.counters.snapshot() == {}


@pytest.mark.parametrize(
    ("load_us", "rest", "others", "layerwise"),
    [
        (10, 1000, 5, True),  # 10 ms of load hide behind 100 ms of computing
        (50, 300, 5, False),  # 50 ms of load, 30 ms of computing: others would wait 20 ms
        (50, 300, 0, True),  # nobody waits, and 20 ms are short
        (99, 1, 0, True),
        (99, 1, 1, False),
    ],
)
def test_auto_goes_by_what_others_would_wait(load_us, rest, others, layerwise):
    choice = chooser(measured(load_us, compute_us=100)).choose(1000, rest, others)
    assert choice.load
    assert choice.layerwise is layerwise
    assert ("layer-wise" if layerwise else "async") in choice.why


def test_auto_does_not_let_a_server_stand_still_for_a_long_load():
    assert not chooser(measured(load_us=90, compute_us=100)).choose(100_000, 1, 0).layerwise


def test_auto_counts_what_is_on_its_way_before():
    made = chooser(measured(load_us=50, compute_us=100))
    assert made.choose(1000, 600, 3).layerwise
    made.begin(1, 1000, parked=False)
    assert not made.choose(1000, 600, 3).layerwise
    made.end(1)
    assert made.choose(1000, 600, 3).layerwise


def test_without_measurements_nobody_has_to_wait_for_a_load():
    choice = chooser().choose(1000, 1000, 0)
    assert choice.load and not choice.layerwise


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_a_mode_that_the_user_chose_is_kept(mode):
    assert chooser(mode=mode).choose(10**6, 1, 50).layerwise is (mode == "layerwise")


def test_no_mode_makes_steps_wait_that_cannot():
    assert not chooser(measured(1, 100), layerwise=False).choose(1000, 1000, 0).layerwise
    assert not chooser(mode="layerwise", layerwise=False).choose(1000, 1000, 0).layerwise


def test_loads_beyond_the_bound_wait_and_a_single_one_never_does():
    made = chooser(max_tokens=1000)
    assert not made.is_full(5000)
    made.begin(1, 600, parked=True)
    assert not made.is_full(400)
    assert made.is_full(401)
    assert made.counters["load_turn_waits"] == 1
    made.end(1)
    assert not made.is_full(401)


def test_a_load_that_nobody_reports_does_not_hold_back_others_for_ever():
    made = chooser(max_tokens=1000)
    made.begin(1, 1000, parked=True)
    assert made.is_full(1) and made.parked
    made.clock.now += FORGET_SECONDS + 1
    assert not made.is_full(1) and not made.parked


@pytest.mark.parametrize(
    ("mode", "steps", "graphs", "reason"),
    [
        ("auto", 1, False, None),
        ("layerwise", 1, False, None),
        ("async", 1, False, "load_mode"),
        ("auto", 2, False, "before the last one has ended"),
        ("layerwise", 2, False, "before the last one has ended"),
        ("auto", 1, True, "CUDA graphs"),
    ],
)
def test_where_steps_can_wait(mode, steps, graphs, reason):
    why = why_not_layerwise(mode, concurrent_steps=steps, full_graphs=graphs)
    assert why is None if reason is None else reason in why


@pytest.mark.parametrize(
    ("facts", "reason"), [({"whole_requests": True}, "several KV cache groups"), ({"copies": 2}, "2 ranks")]
)
def test_where_a_failed_load_could_not_be_taken_back_no_step_waits(facts, reason):
    why = why_not_layerwise("layerwise", concurrent_steps=1, full_graphs=False, **facts)
    assert why is not None and reason in why


def test_what_the_server_takes_to_look_at_a_load_counts_where_nothing_else_is_loaded():
    made = chooser(measured(load_us=10, compute_us=20), layerwise=False)
    assert made.choose(1000, 10, 0).load
    for plan in range(3):
        made.begin(plan, 1000, parked=True)
        made.clock.now += 0.05
        for seconds in (0.004, 0.01, 0.002):
            made.note_part(plan, seconds, failed=False)
        made.end(plan)
    assert not made.choose(1000, 10, 0).load, "10 ms and 40 ms of waiting, beside 20 ms"
    assert "wait 40 ms" in made.choose(1000, 10, 0).why


@pytest.mark.parametrize("what", ["failed", "another one", "a step waits"])
def test_loads_that_say_nothing_of_the_server_s_delay_are_left_out(what):
    made = chooser(measured(load_us=10, compute_us=20), layerwise=False)
    for plan in range(0, 10, 2):
        made.begin(plan, 1000, parked=what != "a step waits")
        if what == "another one":
            made.begin(plan + 1, 1000, parked=True)
        made.clock.now += 0.05
        for each in (plan, plan + 1):
            made.note_part(each, 0.01, failed=what == "failed")
            made.note_part(each, 0.005, failed=False)
            made.end(each)
    assert made.choose(1000, 10, 0).load


def test_a_step_that_waits_for_its_load_computes_meanwhile():
    choice = chooser(measured(load_us=20, compute_us=20)).choose(1000, 1000, 0)
    assert choice.load and choice.layerwise, "20 ms of either, instead of 40"
    made = chooser(measured(load_us=30, compute_us=20), layerwise=False)
    assert not made.choose(1000, 1000, 0).load


def test_prefills_are_timed_until_the_first_new_token_is_known():
    noted, clock = [], Clock()
    times = PrefillTimes(lambda *what: noted.append(what), clock)
    prefill = times.begin(256, 1000)
    clock.now += 2
    assert not times.end(prefill, 1000), "still computing, or aborted"
    clock.now += 1
    assert times.end(prefill, 1001)
    assert noted == [(744, 3.0)]


def test_a_few_tokens_behind_many_take_the_time_of_a_step():
    noted, rests, clock = [], [], Clock()
    times = PrefillTimes(lambda *what: noted.append(what), clock, note_rest=lambda *what: rests.append(what))
    for computed in (960, 500, 999, 1000):
        prefill = times.begin(computed, 1000)
        clock.now += 1
        times.end(prefill, 1001)
    assert noted == [(500, 1.0)] and rests == [(40, 1000, 1.0), (1, 1000, 1.0)]
