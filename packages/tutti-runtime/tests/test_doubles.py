# SPDX-License-Identifier: Apache-2.0
"""The doubles of tutti_runtime.testing do what their names say, on every data path they can stand before."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_kit import PAGE, batch, request

import tutti_runtime as tr
from tutti_runtime import testing
from tutti_runtime.testing.subjects import KINDS, Subject, faults_of, make_subject

N = 8


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    try:
        made = make_subject(request.param, tmp_path)
    except OSError as error:
        pytest.skip(f"{request.param}: {error}")
    with made.runtime:
        yield made


class Work:
    """Eight writes of two pages each, and what the target must hold after them."""

    def __init__(self, subject: Subject) -> None:
        self.runtime = faults_of(subject)
        self.memory, handle = subject.memory(2 * N * PAGE)
        self.memory.bytes[:] = np.random.default_rng(1).integers(0, 256, self.memory.size, dtype=np.uint8)
        self.expected = self.memory.bytes.copy()
        try:
            target = subject.open(2 * N * PAGE)
        except OSError as error:  # O_DIRECT that the file system does not have
            pytest.skip(f"{subject.name}: {error}")
        places = range(0, 2 * N * PAGE, 2 * PAGE)
        self.writes = batch(*[request(tr.WRITE, handle, at, target, at, 2 * PAGE) for at in places])
        self.reads = batch(*[request(tr.READ, handle, at, target, at, 2 * PAGE) for at in places])

    def run(self, rows: np.ndarray) -> tr.Completion:
        result = self.runtime.submit(rows)
        assert result.accepted.all()
        assert result.handle is not None
        return self.runtime.wait(result.handle, 30)

    def read_back(self) -> np.ndarray:
        self.memory.bytes[:] = 0
        assert not self.run(self.reads).status.any()
        return self.memory.bytes


@pytest.mark.parametrize("plan", [testing.delayed((0.0, 0.003)), testing.reordering(N), testing.paced(1e9)])
def test_slow_and_unordered_devices_lose_nothing(subject: Subject, plan: testing.FaultPlan) -> None:
    work = Work(subject)
    work.runtime.faults.set_plan(plan)
    assert not work.run(work.writes).status.any()
    assert np.array_equal(work.read_back(), work.expected)


def test_failing_at_item_i(subject: Subject) -> None:
    work = Work(subject)
    work.runtime.faults.set_plan(testing.failing(errno.ENOSPC, item=3, direction="write"))
    for _ in range(2):
        done = work.run(work.writes)
        assert done.status.tolist() == [0] * 3 + [errno.ENOSPC] + [0] * 4
    work.runtime.faults.set_plan()
    assert not work.run(work.writes).status.any()
    assert np.array_equal(work.read_back(), work.expected)


@pytest.mark.parametrize("k", [0, 1, N - 1, N])
def test_partial_acceptance(subject: Subject, k: int) -> None:
    work = Work(subject)
    work.runtime.faults.set_plan(testing.accepting(k))
    result = work.runtime.submit(work.writes)
    assert result.errors.tolist() == [0] * k + [errno.EAGAIN] * (N - k)
    if result.handle is not None:
        assert work.runtime.wait(result.handle, 30).status.tolist() == [0] * k


def test_short_transfers_are_failures(subject: Subject) -> None:
    if subject.name == "auto":
        pytest.skip("what io_uring cuts short is done again by threads")
    work = Work(subject)
    work.runtime.faults.set_plan(testing.short(PAGE, item=2))
    done = work.run(work.writes)
    if subject.whole_items:
        assert done.status.tolist() == [0, 0, errno.EIO, 0, 0, 0, 0, 0]
        assert done.bytes.tolist() == [2 * PAGE] * 2 + [PAGE] + [2 * PAGE] * 5
    work.runtime.faults.set_plan()
    assert not work.run(work.writes).status.any()
    assert np.array_equal(work.read_back(), work.expected)


def test_hanging_until_released_and_late_after_a_deadline(subject: Subject) -> None:
    work = Work(subject)
    work.runtime.faults.set_plan(testing.hanging(item=1))
    result = work.runtime.submit(work.writes, timeout=0.02)
    assert result.handle is not None
    work.runtime.faults.wait_held(1)
    done = work.runtime.wait(result.handle, 30)
    assert done.status[1] == errno.ETIMEDOUT
    assert done.late[1]
    assert done.late_handle is not None
    assert not work.runtime.poll(done.late_handle)
    with pytest.raises(tr.BusyError):
        work.runtime.close(int(work.writes["target"][0]))
    work.runtime.faults.heal()
    late = work.runtime.wait(done.late_handle, 30)
    assert work.runtime.faults.held() == 0
    assert late.status.tolist() == [0] * int(done.late.sum())


def test_leaving_the_block_heals_the_device() -> None:
    with testing.make_fault_runtime("memory", testing.hanging()) as runtime:
        subject = Subject("memory", runtime, Path(), KINDS["memory"][2])
        work = Work(subject)
        assert runtime.submit(work.writes).handle is not None
        runtime.faults.wait_held(N)
        with pytest.raises(TimeoutError, match="8 operations are held back"):
            runtime.faults.wait_held(N + 1, 0.001)
    assert runtime.shutdown(0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("disk",), "base='disk' must be one of 'memory', 'auto'"),
        (("memory", testing.delayed(-1.0)), "delay="),
        (("posix", testing.short(5)), "short="),
        (("posix", testing.paced(-1.0)), "bandwidth="),
    ],
)
def test_doubles_that_make_no_sense_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        testing.make_fault_runtime(*arguments)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="unknown key 'thread'; the nearest known key is 'threads'"):
        testing.make_fault_runtime("posix", thread=3)
    with pytest.raises(ValueError, match="unknown key 'roots'"):
        testing.make_fault_runtime("memory", roots=["/"])
    with pytest.raises(TypeError, match="plan='slow'"):
        testing.make_fault_runtime("memory", "slow")  # type: ignore[arg-type]
    with testing.make_fault_runtime("memory") as runtime, pytest.raises(ValueError, match="every="):
        runtime.faults.set_plan(testing.failing(5, every=0))
    assert runtime.faults.plan == testing.FaultPlan()
