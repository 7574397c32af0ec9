# SPDX-License-Identifier: Apache-2.0
"""Verdicts are bounded, the last ones stay, and a full table costs no more than one that fills up."""

import pytest

from tutti_engine.shared.verdicts import bound, keep


class Looked(dict):
    """Counts how often its first keys are looked for: that walks over all that were taken from there."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("most", [1, 10, 640])
def test_the_last_ones_stay(most):
    verdicts = {}
    for number in range(3 * most):
        keep(verdicts, b"%d" % number, float(number), most)
        keep(verdicts, b"%d" % number, number + 0.5, most)
        assert len(verdicts) <= most
    left = list(verdicts.values())
    assert left == [number + 0.5 for number in range(3 * most - len(left), 3 * most)]
    assert len(left) >= most - most // 64


def test_a_full_table_is_not_looked_through_for_each_key():
    verdicts = Looked()
    for number in range(10 * 6400):
        keep(verdicts, b"%d" % number, 1.0, 6400)
    assert verdicts.looks <= 10 * 64


def test_what_is_much_too_many_goes_at_once():
    verdicts = dict.fromkeys((b"%d" % number for number in range(1000)), 1.0)
    bound(verdicts, 10)
    assert list(verdicts) == [b"%d" % number for number in range(990, 1000)]
