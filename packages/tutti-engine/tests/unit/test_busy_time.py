# SPDX-License-Identifier: Apache-2.0
"""Time under way counts once, however much is under way."""

from tutti_engine.execution.busy_time import BusyTime


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_what_runs_side_by_side_counts_once():
    clock = Clock()
    busy = BusyTime(clock)
    busy.begin()
    clock.now += 2
    busy.begin()
    clock.now += 3
    busy.end()
    assert (busy.under_way, busy.seconds()) == (1, 5.0)
    clock.now += 1
    busy.end()
    clock.now += 50
    assert (busy.under_way, busy.seconds()) == (0, 6.0)
    busy.begin()
    clock.now += 4
    assert busy.seconds() == 10.0, "what is under way is part of it"


def test_a_clock_that_goes_back_takes_nothing():
    clock = Clock()
    busy = BusyTime(clock)
    busy.begin()
    clock.now += 2
    busy.end()
    busy.begin()
    clock.now -= 60
    assert busy.seconds() == 2.0
    busy.end()
    assert busy.seconds() == 2.0
