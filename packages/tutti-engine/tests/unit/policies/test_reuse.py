# SPDX-License-Identifier: Apache-2.0
"""What the history finds in a prompt, and what it concludes from many."""

import pytest

from tutti_engine.policies.ages import bucket_of
from tutti_engine.policies.reuse import SHARED, ReuseHistory, length_class, own_mark, shared_mark, turn_of


def path(*numbers):
    return [bytes([number]) for number in numbers]


def test_marks_tell_turns_lengths_and_uses_apart():
    assert turn_of(own_mark(3, 10)) == 3 and turn_of(own_mark(99, 10)) == 16
    assert [length_class(n) for n in (1, 2, 3, 4, 127, 128, 9999)] == [0, 1, 1, 2, 6, 7, 7]
    assert turn_of(shared_mark(5)) == 0
    assert SHARED <= shared_mark(1) < shared_mark(2) < shared_mark(10**6) < 256


def test_a_prompt_that_goes_on_is_recognised_where_it_does():
    history = ReuseHistory(100, 400)
    history.note(path(1, 2, 3), own_mark(1, 3), shared_mark(1), 0, 100)
    match = history.find(path(1, 2, 3, 4, 5))
    assert (match.depth, match.turn, match.shared) == (3, 1, 0)


def test_a_prompt_that_leaves_out_the_last_chunks_is_recognised_too():
    history = ReuseHistory(100, 400)
    history.note(path(1, 2, 3, 4, 5), own_mark(2, 5), shared_mark(1), 0, 100)
    assert history.find(path(1, 2, 3, 4, 9)).turn == 2
    assert history.find(path(1, 2, 8, 9)).turn == 0, "too much of it is gone"


def test_what_is_shared_is_known_again_with_its_uses():
    history = ReuseHistory(100, 400)
    for number in range(3):
        history.note(path(1, 2, 10 + number), own_mark(1, 3), shared_mark(1), 2, 100 + number)
    match = history.find(path(1, 2, 99))
    assert (match.depth, match.shared, match.uses) == (0, 2, 3)


def test_nothing_is_concluded_from_little():
    history = ReuseHistory(100, 400)
    for number in range(60):
        history.note([b"%d" % number], own_mark(1, 1), shared_mark(1), 0, number)
    assert history.table is None


def test_classes_whose_prompts_are_gone_on_with_are_worth_more():
    history = ReuseHistory(100, 400)
    for number in range(400):
        now = number * 10
        first = [b"%d" % number]
        history.note(first, own_mark(1, 1), shared_mark(1), 0, now)
        if number % 4 == 0:
            history.note([*first, b"+%d" % number], own_mark(2, 2), shared_mark(1), 0, now + 5)
            history.note([*first, b"+%d" % number, b"++"], own_mark(3, 3), shared_mark(1), 0, now + 8)
    assert history.table is not None
    young = bucket_of(1)
    assert history.table[own_mark(2, 2)][young] > 2 * history.table[own_mark(1, 1)][young]


def test_it_remembers_no_more_than_it_may():
    history = ReuseHistory(10, 40)
    for number in range(20_000):
        keys = [b"%d-%d" % (number, chunk) for chunk in range(4)]
        history.note(keys, own_mark(1, 4), shared_mark(1), 0, number)
    assert len(history._records) <= 4096
    assert len(history._places) <= 4 * 4096


@pytest.mark.parametrize("turn", [1, 2, 16, 99])
@pytest.mark.parametrize("chunks", [0, 1, 2, 127, 128, 10**6])
def test_every_prompt_has_a_mark_of_its_own_turn(turn, chunks):
    mark = own_mark(turn, chunks)
    assert 0 <= mark < SHARED
    assert turn_of(mark) == min(turn, 16)
