# SPDX-License-Identifier: Apache-2.0
"""submit_all: every request exactly once, whatever there is room for."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from runtime_kit import PAGE, MakeFaulty, Setup, batch, request

import tutti_runtime as tr

N = 40


def everything(setup: Setup) -> tuple[np.ndarray, np.ndarray]:
    buffer, memory = setup.memory(N * PAGE)
    target = setup.target(N * PAGE)
    rows = [request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(N)]
    return batch(*rows), buffer.bytes


def seen(setup: Setup, rows: np.ndarray, window: int) -> tuple[list[int], list[int]]:
    """Indices and statuses as they came."""
    indices, status = [], []
    for chosen, done in tr.submit_all(setup.runtime, rows, window=window):
        indices += chosen.tolist()
        status += done.status.tolist()
    return indices, status


@pytest.mark.parametrize(("window", "accept"), [(1, 40), (7, 40), (256, 40), (16, 1), (16, 3)])
def test_each_request_once(make_faulty: MakeFaulty, window: int, accept: int) -> None:
    setup, _ = make_faulty({"accept": accept}, max_in_flight=5)
    rows, _ = everything(setup)
    indices, status = seen(setup, rows, window)
    assert sorted(indices) == list(range(N))
    assert status == [0] * N
    stats = setup.runtime.stats()
    assert stats["completed"] == N
    assert stats["bytes_written"] == N * PAGE


def test_what_is_wrong_is_told_in_its_place(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({"accept": 2, "rules": [{"skip": 5, "times": 1, "error": errno.ENOSPC}]})
    rows, _ = everything(setup)
    rows["length"][3] = 1
    rows["target"][30] = 0
    indices, status = seen(setup, rows, 8)
    assert sorted(indices) == list(range(N))
    by_index = dict(zip(indices, status))
    assert (by_index[3], by_index[30]) == (errno.EINVAL, errno.EBADF)
    assert sorted(by_index.values()) == [0] * (N - 3) + sorted([errno.EINVAL, errno.EBADF, errno.ENOSPC])


def test_a_caller_that_stops_leaves_nothing(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({})
    rows, _ = everything(setup)
    for _ in tr.submit_all(setup.runtime, rows, window=16):
        break
    assert setup.runtime.shutdown(30)


def test_room_that_others_keep_is_an_error(make_faulty: MakeFaulty) -> None:
    setup, control = make_faulty({"rules": [{"hang": True}]}, max_in_flight=2)
    rows, _ = everything(setup)
    assert setup.runtime.submit(rows[:2]).accepted.all()
    assert control.wait_held(2, 30)
    with pytest.raises(BlockingIOError, match="no room"):
        seen(setup, rows, 4)


@pytest.mark.parametrize("window", [0, -1, True, 1.5])
def test_a_bad_window(make_faulty: MakeFaulty, window: object) -> None:
    setup, _ = make_faulty({})
    with pytest.raises(ValueError, match="window="):
        tr.submit_all(setup.runtime, everything(setup)[0], window=window)  # type: ignore[arg-type]
