# SPDX-License-Identifier: Apache-2.0
"""Loads are refused when computing is faster, and nothing that a clock does can decide that alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.planning.break_even import BreakEven
from tutti_engine.planning.time_models import TimeModel


def measured(load: float, compute: float, *, fixed: float = 0.0, **options: object) -> BreakEven:
    """Return what has measured ``load`` and ``compute`` seconds a token, and ``fixed`` seconds a load."""
    even = BreakEven(**options)
    for tokens in (256, 4096, 1024, 16384, 512):
        even.note_load(tokens, fixed + load * tokens)
        even.note_compute(tokens, compute * tokens)
    return even


def test_the_faster_way_is_taken_and_both_times_are_given() -> None:
    decision = measured(1e-6, 1e-4).should_load(1000)
    assert decision and decision.why == "load: 1000 tokens: load 1 ms, compute 100 ms"
    assert decision.load_seconds == pytest.approx(1e-3) and decision.compute_seconds == pytest.approx(0.1)
    decision = measured(1e-4, 1e-6).should_load(1000)
    assert not decision and decision.why == "compute: 1000 tokens: load 100 ms, compute 1 ms"


def test_a_fixed_cost_makes_short_hits_not_worth_their_load() -> None:
    even = measured(1e-6, 1e-5, fixed=0.02)
    assert [bool(even.should_load(tokens)) for tokens in (256, 1024, 4096, 65536)] == [
        False,
        False,
        True,
        True,
    ]


def test_what_a_step_takes_in_any_case_is_not_saved_by_a_load() -> None:
    """A prompt of 1,000 tokens on an H200: computed in 34 ms, 19 of which its last 40 tokens take alone."""
    even = BreakEven()
    for tokens, seconds in ((960, 0.005), (7936, 0.03), (960, 0.005), (31936, 0.11)):
        even.note_load(tokens, seconds)
    for _ in range(3):
        even.note_compute(1000, 0.034)
        even.note_compute(8000, 0.207)
        even.note_rest(40, 1000, 0.019)
        even.note_rest(40, 8000, 0.024)
    assert even.should_load(960, 40), "5 ms and 19 ms"
    for _ in range(3):
        even.note_wait(0.016)
    decision = even.should_load(960, 40)
    assert not decision, "the server takes 16 ms to look at it"
    assert decision.why.startswith("compute: 960 tokens and 40 after them: load 5.39 ms, wait 16 ms, ")
    assert decision.why.endswith("compute the rest 19 ms; compute all 34 ms")
    assert even.should_load(960, 40, beside=False), "a step that waits for it does not wait to be planned"
    assert even.should_load(7936, 64)
    with pytest.raises(ValueError, match="rest at least 0"):
        even.should_load(960, -1)


def test_costs_of_the_first_time_do_not_refuse_for_ever() -> None:
    """What is refused is measured no more."""
    even = measured(1e-6, 1e-5)
    for seconds in (0.5, 0.001, 0.001):
        even.note_wait(seconds)
        even.note_rest(40, 8000, seconds)
    assert even.should_load(7900, 100).why.startswith(
        "load: 7900 tokens and 100 after them: load 7.9 ms, wait 1 ms, compute the rest 1 ms"
    )


def test_what_is_left_behind_a_long_prompt_takes_longer() -> None:
    even = measured(1e-6, 1e-4)
    for _ in range(3):
        even.note_rest(40, 1000, 0.019)
        even.note_rest(40, 64000, 0.056)
    assert "the rest 56 ms" in even.should_load(50000, 40, context=60000).why
    assert "the rest 19 ms" in even.should_load(960, 40).why


def test_what_many_tokens_take_behind_a_long_prompt_is_not_taken_for_what_few_do() -> None:
    """A server's memory has the most of a prompt; what went from its end is in the store, or new."""
    even = measured(1e-6, 2.5e-5)
    for _ in range(5):
        even.note_rest(8000, 108000, 0.55)
    decision = even.should_load(8000, 40, context=108040)
    assert decision.load and "compute the rest 1 ms; compute all 550 ms" in decision.why
    for _ in range(5):
        even.note_rest(40, 108040, 0.6)
    assert not even.should_load(8000, 40, context=108040), "nothing is saved"


def test_no_part_of_a_prompt_takes_longer_than_all_of_it() -> None:
    """Whatever the first steps behind a long prompt had to wait for."""
    even = measured(1e-5, 1e-5)
    for _ in range(9):
        even.note_rest(8000, 108000, 600.0)
    assert "compute all 1.08e+03 ms" in even.should_load(8000, 40, context=108040).why


def test_short_prompts_are_not_judged_by_what_long_ones_take_a_token() -> None:
    even = BreakEven()
    for _ in range(3):
        for tokens, seconds in ((1000, 0.034), (8000, 0.207), (32000, 1.165), (64000, 3.195)):
            even.note_compute(tokens, seconds)
    assert even.compute_seconds(1000) == pytest.approx(0.034)
    assert even.compute_seconds(64000) == pytest.approx(3.195)
    assert even.compute_seconds(700) == pytest.approx(0.034 * 0.7)


def test_steps_of_a_few_tokens_do_not_teach_what_a_token_takes() -> None:
    """After a restart all prompts may be hits: what is left of them is no measure of computing them whole."""
    even = BreakEven()
    for _ in range(5):
        even.note_load(960, 0.005)
        even.note_rest(40, 1000, 0.019)
        even.note_rest(40, 64000, 0.056)
    assert even.should_load(960, 40).why == "load: too few measurements of compute yet (0 of 3)"


def test_nothing_is_refused_before_both_times_were_measured() -> None:
    even = BreakEven()
    assert even.should_load(1)
    for _ in range(2):
        even.note_load(1000, 100.0)
    assert even.should_load(1000).why == "load: too few measurements of load yet (2 of 3)"
    even.note_load(1000, 100.0)
    assert even.should_load(1000).why == "load: too few measurements of compute yet (0 of 3)"
    for _ in range(3):
        even.note_compute(1000, 1.0)
    assert not even.should_load(1000)


@pytest.mark.parametrize("seconds", [0.0, -3600.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tokens", [1000, 0, -5])
def test_measurements_that_mean_nothing_change_nothing(seconds: float, tokens: int) -> None:
    even = measured(1e-6, 1e-4)
    before = even.explain()
    even.note_load(tokens, seconds)
    even.note_compute(0, 1.0)
    assert even.explain() == before
    assert even.counters["break_even_ignored"] == 2


def test_one_outlier_does_not_turn_the_answer_and_a_lasting_change_does() -> None:
    even = measured(1e-5, 1e-4)
    even.note_load(1000, 3600.0)
    assert even.should_load(1000)
    for _ in range(12):
        even.note_load(1000, 1.0)
    assert not even.should_load(1000)
    for _ in range(40):
        even.note_load(1000, 1e-2)
    assert even.should_load(1000)


def test_a_clock_that_lied_at_the_beginning_is_not_believed_for_long() -> None:
    even = BreakEven()
    for _ in range(8):
        even.note_load(1000, 0.01)
    for _ in range(3):
        even.note_compute(1000, 1e-9)
    assert not even.should_load(1000)
    for _ in range(8):
        even.note_compute(1000, 1.0)
    assert even.should_load(1000)


def test_small_differences_do_not_turn_the_answer() -> None:
    assert measured(1.01e-5, 1e-5).should_load(1000)
    assert not measured(1.05e-5, 1e-5).should_load(1000)
    assert measured(1.2e-5, 1e-5, margin=0.5).should_load(1000)


def test_refusals_do_not_last_for_ever_without_a_measurement() -> None:
    even = measured(1e-3, 1e-5, probe_every=4)
    answers = [bool(even.should_load(1000)) for _ in range(12)]
    assert answers == 3 * [False, False, False, True]
    assert (even.counters["break_even_refused"], even.counters["break_even_probes"]) == (9, 3)


def test_hits_of_one_size_are_tried_again_although_those_of_another_are_loaded() -> None:
    """What those of the one size take says nothing of the other."""
    even = BreakEven(probe_every=4)
    for _ in range(3):
        even.note_load(960, 0.005)
        even.note_compute(1000, 0.034)
        even.note_compute(60000, 0.1)
    answers = []
    for _ in range(8):
        answers.append(bool(even.should_load(59900, 100)))
        assert even.should_load(960)
    assert answers == 2 * [False, False, False, True]


def test_hits_of_two_sizes_that_take_turns_are_both_tried_again() -> None:
    even = measured(1e-3, 1e-5, probe_every=4)
    loaded = dict.fromkeys((1000, 9000), 0)
    for _ in range(24):
        for tokens in loaded:
            loaded[tokens] += bool(even.should_load(tokens))
    assert min(loaded.values()) >= 6, "one in four of 24"
    assert sum(loaded.values()) <= 24, "one in four of each, and one in four of all"


def test_hits_of_all_sizes_together_are_tried_again() -> None:
    """However many sizes there are: the drive is the same."""
    even = measured(1e-3, 1e-5, probe_every=4)
    assert any(even.should_load(1 << size) for size in range(4, 12))


@pytest.mark.parametrize("what", ["rest", "load", "compute the rest"])
def test_bad_first_measurements_of_one_size_are_forgotten_while_others_are_loaded(what: str) -> None:
    """A server whose first long hits were slow, for whatever reason, and whose short ones are fine."""
    even = measured(1e-6, 1e-4)
    bad = {
        "rest": lambda: even.note_rest(40, 50000, 600.0),
        "load": lambda: even.note_load(40000, 600.0),
        "compute the rest": lambda: even.note_compute(10000, 600.0),
    }[what]
    for _ in range(3):
        bad()
    rest = 10000 if what == "compute the rest" else 100
    last = []
    for _ in range(600):
        if even.should_load(960, 40):
            even.note_load(960, 960e-6)
            even.note_rest(40, 1000, 0.001)
        last.append(bool(even.should_load(40000, rest, context=50000)))
        if not last[-1]:
            even.note_compute(40000 + rest, 1e-4 * (40000 + rest))
            continue
        even.note_load(40000, 0.04)
        if rest < 1000:
            even.note_rest(40, 50000, 0.002)
        else:
            even.note_compute(rest, 1e-4 * rest)
    assert all(last[-100:])


def test_a_short_prompt_is_not_refused_for_what_a_step_behind_a_long_one_takes() -> None:
    even = measured(1e-6, 1e-5)
    for _ in range(3):
        even.note_rest(40, 64000, 0.5)
    assert even.should_load(960, 40).why.endswith("compute the rest 0.4 ms; compute all 10 ms")
    for _ in range(3):
        even.note_rest(40, 2000, 0.004)
    assert "the rest 4 ms" in even.should_load(30000, 40).why, "no less than behind a shorter one"


def test_what_is_known_can_be_read() -> None:
    assert BreakEven().explain() == "load: 0 of 3 measurements; compute: 0 of 3 measurements"
    assert (
        measured(2e-6, 1e-4).explain().startswith("load: 2 us a token and 0 ms at least, of 5 measurements")
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [({"margin": -0.1}, "margin"), ({"margin": math.nan}, "margin"), ({"probe_every": 1}, "probe_every")],
)
def test_settings_out_of_range_are_refused(options: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BreakEven(**options)
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        BreakEven().should_load(0)


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=1, max_value=1e7),
            st.floats(min_value=1e-9, max_value=1e6) | st.sampled_from([0.0, -1.0, math.nan, math.inf]),
        ),
        max_size=60,
    ),
    st.integers(1, 10**7),
)
def test_no_measurements_make_an_estimate_that_is_no_time(samples: list, tokens: int) -> None:
    model = TimeModel()
    for size, seconds in samples:
        model.note(size, seconds)
    if model.known:
        assert math.isfinite(model.predict(tokens)) and model.predict(tokens) > 0
        assert model.predict(2 * tokens) >= model.predict(tokens)


@given(
    fixed=st.floats(0, 0.1),
    rate=st.floats(1e-7, 1e-3),
    sizes=st.lists(st.integers(64, 131072), min_size=30, max_size=60),
)
def test_a_line_is_found_again(fixed: float, rate: float, sizes: list[int]) -> None:
    model = TimeModel()
    for size in sizes:
        model.note(size, fixed + rate * size)
    last = sizes[-5:]
    for size in last:
        expected = fixed + rate * size
        assert expected / 3 < model.predict(size) < expected * 3


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 10**400), st.floats()), max_size=30))
def test_no_measurements_make_an_answer_that_is_no_number(notes: list[tuple[bool, int, float]]) -> None:
    even = BreakEven()
    for is_load, tokens, seconds in notes:
        (even.note_load if is_load else even.note_compute)(tokens, seconds)
    decision = even.should_load(1000)
    for seconds in (decision.load_seconds, decision.compute_seconds):
        assert seconds is None or (math.isfinite(seconds) and seconds >= 0)
