# SPDX-License-Identifier: Apache-2.0
"""Admission, the write budget, tenants, and the settings that choose them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.policies.admission import SecondSight, TinyLfu
from tutti_engine.policies.frequency import FrequencySketch
from tutti_engine.policies.settings import PolicySettings
from tutti_engine.policies.tenants import tenant_tag
from tutti_engine.policies.write_budget import WriteBudget


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=300))
def test_a_sketch_never_counts_too_little_before_it_ages(keys):
    sketch = FrequencySketch(1000)
    sketch.note(keys)
    for key in set(keys):
        assert sketch.estimate(key) >= min(15, keys.count(key))


def test_a_sketch_tells_as_many_keys_apart_as_it_was_made_for():
    sketch = FrequencySketch(2000)
    sketch.note([b"%d" % n for n in range(2000)])
    strangers = sum(sketch.estimate(b"x%d" % n) > 0 for n in range(2000))
    assert strangers < 100


def test_a_sketch_forgets():
    sketch = FrequencySketch(64)
    sketch.note([b"a"] * 12)
    sketch.note([b"%d" % n for n in range(640)])
    assert sketch.estimate(b"a") <= 7


@pytest.mark.parametrize("sights", [2, 3])
def test_second_sight_waits_for_as_many_prompts_as_it_is_told(sights):
    admission = SecondSight(100, sights)
    for _ in range(sights - 1):
        admission.begin([b"a"])
        assert not admission.admits(b"a", lambda: None)
    admission.begin([b"a"])
    assert admission.admits(b"a", lambda: None)


def test_tinylfu_asks_for_the_victim_only():
    admission = TinyLfu(100)
    admission.begin([b"seldom", b"often"])
    admission.begin([b"often"])
    assert admission.admits(b"seldom", lambda: None), "there is room"
    assert not admission.admits(b"seldom", lambda: b"often")
    assert admission.admits(b"often", lambda: b"seldom")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 60)), min_size=1, max_size=200))
def test_no_24_hours_see_more_writes_than_the_budget(steps):
    clock = Clock()
    budget = WriteBudget(1000, clock=clock)
    spent = []
    for seconds, wanted in steps:
        clock.now += seconds
        if budget.take(wanted):
            spent.append((clock.now, wanted))
        assert sum(size for at, size in spent if at > clock.now - 86_400) <= 1000


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing():
    clock = Clock()
    clock.now = 10**6
    budget = WriteBudget(86_400 * 4, clock=clock)
    assert budget.take(86_400) and not budget.take(1)
    clock.now = 0
    assert not budget.take(1)
    clock.now = 10
    assert budget.take(30) and not budget.take(1)


def test_no_budget_is_no_limit():
    assert WriteBudget(None).take(10**18)
    assert WriteBudget(None).left() is None


def test_what_is_left_of_a_budget_is_what_can_be_taken():
    budget = WriteBudget(1000, clock=lambda: 0.0)
    assert budget.left() == 250
    assert budget.take(200)
    assert budget.left() == 50
    assert not budget.take(51) and budget.take(50)


def test_tags_are_the_same_in_every_process_and_0_is_nobody():
    assert tenant_tag(None) == 0
    assert tenant_tag("a") == tenant_tag("a") != tenant_tag("b")
    assert all(1 <= tenant_tag(text) < 65_536 for text in ("", "a", "\udc80", "ä" * 999))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"evict": "lru"}, "unknown policy setting 'evict': did you mean 'eviction'"),
        (
            {"eviction": "lur"},
            "eviction must be one of hit_density, lru, s3fifo, not 'lur'; did you mean 'lru'",
        ),
        ({"eviction": None}, "eviction must be one of .* not None"),
        ({"admission": "never"}, "admission must be one of always, second_sight, tinylfu, not 'never'"),
        ({"admission_sights": 1}, "admission_sights must be from 2 to 15, not 1"),
        ({"ttl_seconds": True}, r"ttl_seconds must be a whole number, not True \(bool\)"),
        ({"ttl_seconds": -1}, "ttl_seconds must be from 1 to .*, not -1"),
        ({"daily_write_bytes": "1GB"}, r"daily_write_bytes must be a whole number, not '1GB' \(str\)"),
        ({"tenant_quota": 0}, "tenant_quota must be a share above 0, at most 1, such as 0.25, not 0"),
        ({"tenant_quota": float("nan")}, "tenant_quota must be a share"),
        ({"tenant_quota": "half"}, "tenant_quota must be a share"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule(values, message):
    with pytest.raises(ValueError, match=message) as caught:
        PolicySettings.parse(values)
    assert "\n" not in str(caught.value)
