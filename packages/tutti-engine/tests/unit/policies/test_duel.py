# SPDX-License-Identifier: Apache-2.0
"""Whichever order would have hit more decides; chance alone does not change it."""

from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.policies.duel import Duel

GOOD, BAD = 0, 1


def worth(mark, seconds):
    return 1.0 if mark == GOOD else 0.0


def wrong_worth(mark, seconds):
    return 1.0 - worth(mark, seconds)


def play(duel, believed, rounds=10):
    """Let pairs of prompts end, of which only the good one is gone on with, after others have ended."""
    for number in range(0, 4 * rounds, 4):
        duel.put(number, GOOD, 5, number, believed)
        for other in (1, 2, 3):
            duel.put(number + other, BAD, 5, number, believed)
        duel.use(number, 5)
        for each in range(4):
            duel.drop(number + each)


def test_a_worth_that_is_right_stays():
    duel = Duel(10)
    play(duel, worth)
    assert not duel.last_use_wins


def test_a_worth_that_is_wrong_gives_way_to_last_use_and_comes_back_once_it_is_right():
    duel = Duel(15)
    for number in range(0, 40, 4):
        # By last use the good one is still there; by the wrong worth it goes first.
        for other in (1, 2):
            duel.put(number + other, BAD, 5, number, wrong_worth)
        duel.put(number + 3, GOOD, 10, number, wrong_worth)
        duel.use(number + 3, 10)
        for each in (1, 2, 3):
            duel.drop(number + each)
    assert duel.last_use_wins
    for _ in range(5):
        duel.fade()
    play(duel, worth, rounds=30)
    assert not duel.last_use_wins


def test_one_lucky_prompt_decides_nothing():
    duel = Duel(5)
    duel.put(1, GOOD, 5, 0, wrong_worth)
    duel.put(2, BAD, 5, 0, wrong_worth)
    duel.put(3, GOOD, 5, 0, wrong_worth)
    duel.use(3, 5)
    assert not duel.last_use_wins


def test_before_anything_is_known_both_are_the_same():
    duel = Duel(10)
    play(duel, None)
    assert not duel.last_use_wins


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans()), max_size=60))
def test_no_side_ever_holds_more_than_fits(ends):
    duel = Duel(20)
    for number, (mark, chunks, gone) in enumerate(ends):
        duel.put(number, mark, chunks, number, worth)
        if gone:
            duel.drop(number // 2)
        for side in (duel._by_worth, duel._by_use):
            held = [end for ends in side._classes.values() for end in ends.values()]
            assert sum(chunks for chunks, _ in held) == side._used <= 20
            assert len(held) == len(side._class_of)
