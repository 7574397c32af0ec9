# SPDX-License-Identifier: Apache-2.0
"""Totals only grow, and whoever watches them need not copy them to see that nothing moved."""

import pytest

from tutti_engine.counters import Counters


def test_a_change_shows_without_a_snapshot():
    counters = Counters()
    seen = counters.changes
    assert counters["a"] == 0 and counters.changes == seen
    counters.add("a", 3)
    assert counters.changes != seen
    assert counters.snapshot() == {"a": 3}


def test_a_counter_never_goes_back():
    counters = Counters()
    counters.add("a", 3)
    seen = counters.changes
    with pytest.raises(ValueError, match="a cannot go back by 1"):
        counters.add("a", -1)
    assert (counters["a"], counters.changes) == (3, seen)
