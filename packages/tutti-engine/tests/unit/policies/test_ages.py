# SPDX-License-Identifier: Apache-2.0
"""Buckets of ages, and what a place is worth at each."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.policies.ages import NUM_BUCKETS, STARTS, WIDTHS, bucket_of, densities


@given(st.integers(-10, 2**33))
def test_an_age_lies_in_its_bucket(age):
    bucket = bucket_of(age)
    assert 0 <= bucket < NUM_BUCKETS
    if 0 < age < STARTS[-1]:
        # Beyond a few minutes an age is cut to its eight leading bits before it is looked up.
        assert STARTS[bucket] <= age < STARTS[bucket + 1] * (1 + 2**-7)


def test_buckets_grow_with_the_age():
    found = [bucket_of(age) for age in range(100_000)]
    assert found == sorted(found)
    assert bucket_of(10**12) == NUM_BUCKETS - 1


def test_a_constant_rate_is_worth_itself_at_any_age():
    rate = 1e-3
    values = densities([rate] * NUM_BUCKETS)
    early = [value for value, start in zip(values, STARTS) if start < 100]
    assert all(value == pytest.approx(rate, rel=0.05) for value in early)


def test_what_was_never_hit_is_worth_nothing():
    assert densities([0.0] * NUM_BUCKETS) == [0.0] * NUM_BUCKETS


def test_a_peak_that_lies_ahead_is_worth_waiting_for_the_more_the_nearer_it_is():
    rates = [0.0] * NUM_BUCKETS
    peak = bucket_of(120)
    rates[peak] = 0.05
    values = densities(rates)
    assert values[0] > 0
    assert all(one < two for one, two in pairwise(values[: peak + 1]))
    assert not any(values[peak + 1 :])


def test_a_value_is_the_best_ratio_of_hits_to_time_held():
    rates = [0.02 if 5 < bucket < 12 else 0.0005 for bucket in range(NUM_BUCKETS)]
    values = densities(rates)

    def by_definition(start):
        alive, hits, held, best = 1.0, 0.0, 0.0, 0.0
        for rate, width in zip(rates[start:], WIDTHS[start:]):
            left = alive * math.exp(-rate * width)
            hits += alive - left
            held += (alive + left) / 2 * width
            best, alive = max(best, hits / held), left
        return best

    for start in range(20):
        assert values[start] == pytest.approx(by_definition(start), rel=0.05)
