# SPDX-License-Identifier: Apache-2.0
"""Batches that wait for a word, words that wait for a batch, deadlines and cancellation."""

from __future__ import annotations

import errno
import time

import numpy as np
import pytest
from runtime_kit import KIB, PAGE, Setup, batch, request, run

import tutti_runtime as tr

SIZE = 64 * KIB


class Words:
    """A page of registered memory seen as 64-bit words."""

    def __init__(self, setup: Setup) -> None:
        self.buffer, self.memory = setup.memory(PAGE)
        self.at = self.buffer.bytes.view(np.uint64)

    def wait(self, index: int, value: int, seconds: float = 30.0) -> int:
        """Spin as a stream would until the gate at `index` is open; returns its status."""
        give_up = time.monotonic() + seconds
        while int(self.at[index]) != value:
            assert time.monotonic() < give_up, "the gate stays closed"
            time.sleep(0)
        return int(self.at[index + 1])


def write_of(setup: Setup) -> tuple[np.ndarray, np.ndarray]:
    buffer, memory = setup.memory(SIZE)
    expected = buffer.fill_random(5)
    return batch(request(tr.WRITE, memory, 0, setup.target(SIZE), 0, SIZE)), expected


def test_a_batch_begins_only_when_its_word_has_the_value(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    words.at[4] = 6
    result = setup.runtime.submit(rows, after=tr.WordDependency(words.memory, 32, 7))
    assert result.handle is not None
    with pytest.raises(TimeoutError):
        setup.runtime.wait(result.handle, 0.05)
    with pytest.raises(tr.BusyError):
        setup.runtime.unregister_memory(words.memory)
    words.at[4] = 7
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [0]
    setup.runtime.unregister_memory(words.memory)


def test_the_write_takes_what_the_memory_holds_once_the_word_is_set(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    result = setup.runtime.submit(rows, after=tr.WordDependency(words.memory, 0, 1))
    assert result.handle is not None
    (buffer,) = [kept for kept in setup._kept if kept.size == SIZE]
    expected = buffer.fill_random(77)  # after submit, before the word
    words.at[0] = 1
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [0]
    buffer.bytes[:] = 0
    rows["direction"] = tr.READ
    run(setup.runtime, rows)
    assert np.array_equal(buffer.bytes, expected)


@pytest.mark.parametrize(("word", "value"), [(7, 7), (8, 7), (3, 2**64 - 2), (0, 0)])
def test_a_word_that_is_far_enough_holds_nothing_back(setup: Setup, word: int, value: int) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    words.at[1] = word
    result = setup.runtime.submit(rows, after=tr.WordDependency(words.memory, 8, value))
    assert result.handle is not None
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [0]


def test_a_gate_opens_with_the_status_before_it(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    words.at[:] = 99
    result = setup.runtime.submit(rows, gate=tr.Gate(words.memory, 16, 5))
    assert result.handle is not None
    assert words.wait(2, 5) == 0
    assert setup.runtime.poll(result.handle)
    assert setup.runtime.wait(result.handle, 0).status.tolist() == [0]
    assert words.at[4] == 99


def test_a_gate_tells_the_first_rejection(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    rows = np.repeat(rows, 4)
    rows["length"] = PAGE
    rows["target_offset"] = rows["memory_offset"] = np.arange(4) * PAGE
    rows["target"][2] = 0
    rows["length"][3] = 1
    result = setup.runtime.submit(rows, gate=tr.Gate(words.memory, 0, 1))
    assert words.wait(0, 1) == errno.EBADF
    assert result.handle is not None
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [0, 0]
    none = setup.runtime.submit(rows[3:], gate=tr.Gate(words.memory, 0, 2))
    assert none.handle is None
    assert words.at[:2].tolist() == [2, errno.EINVAL]
    empty = setup.runtime.submit(rows[:0], gate=tr.Gate(words.memory, 0, 3))
    assert empty.handle is None
    assert words.at[:2].tolist() == [3, 0]


def test_a_deadline_ends_what_waits_for_a_word_and_opens_the_gate(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    result = setup.runtime.submit(
        rows, timeout=0.02, after=tr.WordDependency(words.memory, 0, 1), gate=tr.Gate(words.memory, 16, 9)
    )
    assert words.wait(2, 9) == errno.ETIMEDOUT
    assert result.handle is not None
    done = setup.runtime.wait(result.handle, 30)
    assert done.status.tolist() == [errno.ETIMEDOUT]
    assert done.late.tolist() == [False]
    assert done.late_handle is None
    stats = setup.runtime.stats()
    assert stats["timed_out"] == 1
    assert stats["late"] == 0
    assert stats["bytes_written"] == 0
    setup.runtime.unregister_memory(words.memory)


def test_cancel_ends_what_waits_for_a_word(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    result = setup.runtime.submit(
        rows, after=tr.WordDependency(words.memory, 0, 1), gate=tr.Gate(words.memory, 16, 9)
    )
    assert result.handle is not None
    setup.runtime.cancel(result.handle)
    assert words.wait(2, 9) == errno.ECANCELED
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [errno.ECANCELED]
    assert setup.runtime.stats()["canceled"] == 1
    with pytest.raises(tr.InvalidHandleError):
        setup.runtime.cancel(result.handle)


def test_each_item_has_its_own_deadline(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    rows = np.repeat(rows, 3)
    rows["length"] = PAGE
    rows["target_offset"] = rows["memory_offset"] = np.arange(3) * PAGE
    result = setup.runtime.submit(
        rows, timeout=np.array([np.inf, 0.01, 60.0]), after=tr.WordDependency(words.memory, 0, 1)
    )
    assert result.handle is not None
    give_up = time.monotonic() + 30
    while setup.runtime.stats()["timed_out"] == 0 and time.monotonic() < give_up:
        time.sleep(0.001)
    words.at[0] = 1
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [0, errno.ETIMEDOUT, 0]


def test_a_word_that_never_comes_does_not_hold_up_the_end(setup: Setup) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    setup.runtime.submit(rows, after=tr.WordDependency(words.memory, 0, 1), gate=tr.Gate(words.memory, 16, 9))
    assert setup.runtime.shutdown(0.05)
    assert words.at[2:4].tolist() == [9, errno.ECANCELED]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"timeout": -1}, ValueError, "timeout=-1"),
        ({"timeout": float("nan")}, ValueError, "timeout=nan"),
        ({"timeout": "soon"}, TypeError, "timeout='soon'"),
        ({"timeout": True}, TypeError, "timeout=True"),
        ({"timeout": np.zeros(3)}, ValueError, "shape"),
        ({"after": 7.5}, TypeError, "after=7.5"),
        ({"after": tr.WordDependency(0, 0, 1)}, tr.InvalidHandleError, "memory handle 0"),
        ({"after": tr.WordDependency(-1, 0, 1)}, ValueError, "after.memory=-1"),
        ({"gate": "open"}, TypeError, "gate='open'"),
        ({"gate": tr.Gate(5, 0, 2**64)}, ValueError, "gate.value="),
        ({"execution": "device"}, ValueError, "device_execution"),
        ({"execution": "gpu"}, ValueError, "execution='gpu'"),
    ],
)
def test_a_bad_option_starts_nothing(
    setup: Setup, options: dict[str, object], error: type[Exception], words: str
) -> None:
    rows, _ = write_of(setup)
    with pytest.raises(error, match=words):
        setup.runtime.submit(rows, **options)  # type: ignore[arg-type]
    assert setup.runtime.stats()["submitted"] == 0


@pytest.mark.parametrize("offset", [4, PAGE, PAGE - 8, 2**63])
def test_a_gate_outside_its_memory_is_refused(setup: Setup, offset: int) -> None:
    words = Words(setup)
    rows, _ = write_of(setup)
    with pytest.raises(ValueError, match=f"gate offset={offset}"):
        setup.runtime.submit(rows, gate=tr.Gate(words.memory, offset, 1))
    assert setup.runtime.stats()["submitted"] == 0
    setup.runtime.unregister_memory(words.memory)
