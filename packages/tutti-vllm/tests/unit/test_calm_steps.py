# SPDX-License-Identifier: Apache-2.0
"""Batches are looked at again in time, whatever turns they take and whoever is in them."""

import pytest

from tutti_vllm.scheduler_side.calm_steps import CalmSteps


def batch(names):
    return dict.fromkeys(names, 1)


@pytest.fixture
def calm():
    return CalmSteps()


def quiet_steps(calm, names):
    """Run a batch until it is to be looked at; return how often it was not."""
    count = 0
    while calm.goes_on(batch(names), {}):
        count += 1
    return count


def test_a_batch_goes_on_up_to_the_step_that_ends_a_chunk(calm):
    assert not calm.goes_on(batch("ab"), {}) and not calm.lasts
    calm.begin(batch("ab"), 5)
    assert calm.lasts
    assert quiet_steps(calm, "ab") == 4
    assert not calm.lasts


@pytest.mark.parametrize("left", [0, 1])
def test_a_chunk_that_ends_with_the_next_step_leaves_none(calm, left):
    calm.begin(batch("ab"), left)
    assert not calm.lasts and quiet_steps(calm, "ab") == 0


def test_batches_that_take_turns_count_for_themselves(calm):
    calm.begin(batch("ab"), 4)
    calm.begin(batch("c"), 9)
    turns = [[calm.goes_on(batch(names), {}) for names in ("ab", "c")] for _ in range(4)]
    assert turns == [[True, True]] * 3 + [[False, True]]
    calm.begin(batch("ab"), 2)
    assert [quiet_steps(calm, names) for names in ("ab", "c")] == [1, 4]


@pytest.mark.parametrize("other", ["a", "abc", "ac", "b", "ba"])
def test_another_batch_is_looked_at(calm, other):
    calm.begin(batch("ab"), 9)
    assert not calm.goes_on(batch(other), {})


@pytest.mark.parametrize("other", ["a", "abc", "ac"])
def test_where_a_batch_has_changed_the_others_are_looked_at_too(calm, other):
    calm.begin(batch("ab"), 9)
    calm.begin(batch("c"), 9)
    assert not calm.goes_on(batch(other), {})
    assert not calm.goes_on(batch("c"), {})


def test_a_batch_with_the_same_ends_and_fewer_requests_is_another(calm):
    calm.begin(batch("abc"), 9)
    assert not calm.goes_on(batch("ac"), {})


@pytest.mark.parametrize("step", [({"a": 1, "b": 2}, {}), (batch("ab"), {"b": [7]})])
def test_several_tokens_or_speculated_ones_end_the_calm(calm, step):
    calm.begin(batch("ab"), 9)
    assert not calm.goes_on(*step)
    assert not calm.goes_on(batch("ab"), {}), "until the batch was looked at"


def test_news_end_the_calm_of_all(calm):
    calm.begin(batch("ab"), 9)
    calm.begin(batch("c"), 9)
    calm.end()
    assert not calm.lasts
    assert [quiet_steps(calm, names) for names in ("ab", "c")] == [0, 0]


def test_a_step_that_computes_nothing_is_looked_at(calm):
    calm.begin({}, 9)
    assert not calm.lasts and not calm.goes_on({}, {})
    calm.begin(batch("ab"), 9)
    assert not calm.goes_on({}, {}) and not calm.lasts
