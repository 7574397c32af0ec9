# SPDX-License-Identifier: Apache-2.0
import time

from tutti_engine.execution.lane import Lane


def test_tasks_run_in_order_and_one_that_raises_costs_no_other_its_turn():
    done = []
    lane = Lane("test")
    for number in range(5):
        lane.put(lambda number=number: done.append(number) if number != 2 else 1 // 0)
    lane.stop(time.monotonic() + 30)
    assert done == [0, 1, 3, 4]
