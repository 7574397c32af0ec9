# SPDX-License-Identifier: Apache-2.0
"""The device that misbehaves on demand, and what the runtime makes of it."""

from __future__ import annotations

import errno
import time

import numpy as np
import pytest
from runtime_kit import KIB, PAGE, MakeFaulty, batch, pages, request, run

import tutti_runtime as tr
from tutti_runtime import _core

SIZE = 64 * KIB


def test_one_item_fails_alone(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({"rules": [{"item": 2, "error": errno.ENOSPC, "times": 1}]})
    rows, _ = pages(setup, tr.WRITE, 4)
    done = run(setup.runtime, rows)
    assert done.status.tolist() == [0, 0, errno.ENOSPC, 0]
    assert done.bytes.tolist() == [PAGE, PAGE, 0, PAGE]
    assert not run(setup.runtime, rows).status.any()


def test_every_nth_after_some(make_faulty: MakeFaulty) -> None:
    setup, control = make_faulty(
        {"rules": [{"direction": "write", "skip": 1, "every": 3, "error": errno.EIO}]}
    )
    rows, _ = pages(setup, tr.WRITE, 8)
    expected = [0, errno.EIO, 0, 0, errno.EIO, 0, 0, errno.EIO]
    assert run(setup.runtime, rows).status.tolist() == expected
    rows["direction"] = tr.READ
    assert not run(setup.runtime, rows).status.any()
    control.set_plan({})
    rows["direction"] = tr.WRITE
    assert not run(setup.runtime, rows).status.any()


def test_only_the_target_that_is_named(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({"rules": [{"target": "target-2", "error": errno.EIO}]})
    rows, _ = pages(setup, tr.READ, 2)
    rows["target"][1] = setup.target(SIZE)
    assert run(setup.runtime, rows).status.tolist() == [0, errno.EIO]


def test_a_short_transfer_moves_a_part_and_is_an_error(make_faulty: MakeFaulty) -> None:
    setup, control = make_faulty({"rules": [{"short": PAGE}]})
    buffer, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    expected = buffer.fill_random(3)
    rows = batch(request(tr.WRITE, memory, 0, target, 0, 4 * PAGE))
    done = run(setup.runtime, rows)
    assert (done.status.tolist(), done.bytes.tolist()) == ([errno.EIO], [PAGE])
    control.set_plan({})
    rows["direction"] = tr.READ
    buffer.bytes[:] = 1
    run(setup.runtime, rows)
    assert np.array_equal(buffer.bytes[:PAGE], expected[:PAGE])
    assert not buffer.bytes[PAGE : 4 * PAGE].any()
    control.set_plan({"rules": [{"short": 0}]})
    done = run(setup.runtime, rows)
    assert (done.status.tolist(), done.bytes.tolist()) == ([errno.EIO], [0])


@pytest.mark.parametrize("k", range(6))
def test_a_device_that_takes_k_of_n(make_faulty: MakeFaulty, k: int) -> None:
    setup, control = make_faulty({"accept": k})
    rows, _ = pages(setup, tr.WRITE, 5)
    result = setup.runtime.submit(rows)
    assert result.errors.tolist() == [0] * k + [errno.EAGAIN] * (5 - k)
    if result.handle is not None:
        assert setup.runtime.wait(result.handle, 30).status.tolist() == [0] * k
    control.set_plan({})
    assert not run(setup.runtime, rows).status.any()


def test_order_and_delay_change_no_result(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({"reorder": 5, "rules": [{"every": 3, "delay": (0.0, 0.003)}], "seed": 7})
    buffer, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    expected = buffer.fill_random(9)
    for direction in (tr.WRITE, tr.READ):
        rows = batch(*[request(direction, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(16)])
        done = run(setup.runtime, rows)
        assert not done.status.any()
        assert done.bytes.tolist() == [PAGE] * 16
        if direction == tr.WRITE:
            buffer.bytes[:] = 0
    assert np.array_equal(buffer.bytes, expected)


def test_a_bandwidth_is_kept(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({"bandwidth": SIZE / 0.05})
    rows, _ = pages(setup, tr.READ, 16)
    begin = time.monotonic()
    assert not run(setup.runtime, rows).status.any()
    assert time.monotonic() - begin >= 0.05


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"rule": []}, "no key 'rule'"),
        ({"rules": [{"items": 1}]}, "no key 'items'"),
        ({"rules": [{"item": "x"}]}, "item='x'"),
        ({"rules": [{"direction": "up"}]}, "direction='up'"),
        ({"rules": [{"short": 7}]}, "short="),
        ({"rules": [{"every": 0}]}, "every="),
        ({"rules": [{"delay": (2, 1)}]}, "delay="),
        ({"bandwidth": -1}, "bandwidth="),
        ({"write_cost": 0}, "write_cost="),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _core.FaultControl(plan)
