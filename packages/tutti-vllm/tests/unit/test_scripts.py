# SPDX-License-Identifier: Apache-2.0
"""Scripts come through their text, and one that fails is made as short as it can be."""

import itertools

import pytest

from tutti_vllm.testing.schedules import Action, Schedule
from tutti_vllm.testing.scripts import (
    Part,
    asked_by,
    from_text,
    script_of,
    shrink,
    smaller,
    to_text,
)
from tutti_vllm.testing.shrink import command

TEXT = "0 none: forget 0 1, ask 3 5, step 2 | 1 hanging: abort 4, settle"


def size(script):
    return sum(1 + len(part.schedule.actions) for part in script)


def test_a_script_is_told_in_a_line():
    script = from_text(TEXT)
    assert script == (
        Part(0, Schedule("none", (Action("forget", 0, 1), Action("ask", 3, 5), Action("step", 2)))),
        Part(1, Schedule("hanging", (Action("abort", 4), Action("settle")))),
    )
    assert to_text(script) == TEXT and asked_by(script) == {3}
    assert command(7, script).endswith(f"--seed 7 --script '{TEXT}'")


@pytest.mark.parametrize(
    "text", ["none: step 1", "0 rain: step 1", "0 none: ask 3", "0 none: fly 3", "0 none"]
)
def test_what_is_no_script_is_refused_by_its_name(text):
    with pytest.raises(ValueError, match=r"is no(t ENGINE| action)"):
        from_text(text)


def test_a_campaigns_schedules_are_known_without_running_it():
    script = script_of(3, 61)
    assert len(script) == 62 and [part.engine for part in script] == [0] * 25 + [1] * 25 + [2] * 12
    assert script_of(3, 30) == script[:31]
    assert from_text(to_text(script)) == script


def test_only_what_makes_it_fail_is_left():
    """A planted failure: a reset of the connector's cache, then on the same engine an ask for two tokens."""
    runs = []

    def fails(script):
        runs.append(script)
        reset_on = set()
        for part in script:
            for action in part.schedule.actions:
                if action.kind == "forget" and action.first:
                    reset_on.add(part.engine)
                if action.kind == "ask" and action.second >= 2 and part.engine in reset_on:
                    return True
        return False

    number = next(n for n in itertools.count(40) if fails(script_of(3, n)))
    runs.clear()
    told = []
    script = shrink(script_of(3, number), fails, seconds=60, told=told.append)
    actions = [(part.engine, action) for part in script for action in part.schedule.actions]
    assert [action.kind for _, action in actions] == ["forget", "ask"]
    (first, reset), (second, ask) = actions
    assert first == second and reset.second == 0 and ask.second in (2, 3)
    assert all(part.schedule.faults == "none" for part in script)
    assert told[-1] == script and len(runs) < 400


def test_a_failure_that_comes_now_and_then_ends_in_a_script_that_did_fail():
    turn = itertools.cycle((True, False, True))
    seen = []

    def fails(script):
        failed = next(turn)
        if failed:
            seen.append(script)
        return failed

    assert shrink(from_text(TEXT), fails, seconds=60) in seen


def test_no_candidate_is_larger_or_what_it_came_from():
    script = script_of(5, 30)
    for each in itertools.islice(smaller(script), 5000):
        assert each != script and size(each) <= size(script)


def test_time_that_is_over_ends_it():
    script = from_text(TEXT)
    assert shrink(script, lambda each: True, seconds=0) == script
