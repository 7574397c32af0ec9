# SPDX-License-Identifier: Apache-2.0
"""Handles of batches, waiting, cancelling, gates and dependencies."""

from __future__ import annotations

import errno
import select
import threading

import numpy as np

from tutti_runtime.errors import InvalidHandleError
from tutti_runtime.ordering import Gate, WordDependency
from tutti_runtime.requests import READ, WRITE
from tutti_runtime.testing.contract_checks.kit import PAGE, PATIENCE, bench, raises, require, until
from tutti_runtime.testing.subjects import Subject

__all__ = [
    "a_batch_waits_for_a_word",
    "a_canceled_item_never_happens",
    "a_handle_is_good_once",
    "gates_open",
    "many_threads_share_a_runtime",
    "the_eventfd_counts_batches",
    "waiting_without_time_makes_progress",
]


def a_handle_is_good_once(subject: Subject) -> None:
    """After wait or abandon a handle is an error, for good."""
    work = bench(subject)
    first = work.submit(work.rows(READ)[:2])
    work.wait(first)
    second = work.submit(work.rows(READ)[:2])
    subject.runtime.abandon(second)
    work.wait(work.submit(work.rows(READ)[:2]))
    for handle in (first, second, 0, 1 << 63, work.target):
        for call in (subject.runtime.poll, subject.runtime.wait, subject.runtime.abandon):
            with raises(InvalidHandleError, f"a batch handle that is no longer good, given to {call}"):
                call(handle)


def waiting_without_time_makes_progress(subject: Subject) -> None:
    """A caller that only ever waits 0 seconds gets its result; poll says when."""
    work = bench(subject)
    handle = work.submit(work.rows(READ))

    def there() -> bool:
        try:
            subject.runtime.wait(handle, 0)
        except TimeoutError:
            return False
        return True

    until(there, "wait(0) ends with the result")
    handle = work.submit(work.rows(READ))
    until(lambda: subject.runtime.poll(handle), "poll comes true")
    subject.runtime.wait(handle, 0)


def the_eventfd_counts_batches(subject: Subject) -> None:
    """The completion descriptor is readable when a batch has finished, and not before the first."""
    work = bench(subject)
    fd = subject.runtime.completion_fd()
    require(not select.select([fd], [], [], 0)[0], "nothing has finished yet")
    handles = [work.submit(work.rows(READ)[i : i + 2]) for i in range(4)]
    require(select.select([fd], [], [], PATIENCE)[0], "the descriptor becomes readable")
    for handle in handles:
        work.wait(handle)


def a_canceled_item_never_happens(subject: Subject) -> None:
    """Each item of a canceled batch is run or ECANCELED, and ECANCELED has not touched its memory."""
    work = bench(subject)
    work.write_all(11)
    work.host.bytes[:] = 0xA5
    rows = work.rows(READ)
    result = subject.runtime.submit(rows)
    if result.handle is None:
        return
    subject.runtime.cancel(result.handle)
    done = work.wait(result.handle)
    require(set(done.status.tolist()) <= {0, errno.ECANCELED}, "run or canceled", done.status)
    canceled = np.flatnonzero(result.accepted)[done.status == errno.ECANCELED]
    pages = work.host.bytes.reshape(-1, PAGE)[canceled]
    require(not subject.whole_items or (pages == 0xA5).all(), "a canceled read leaves memory alone")


def gates_open(subject: Subject) -> None:
    """A gate opens with the first errno of the batch, also when nothing was accepted."""
    work = bench(subject)
    words, memory = subject.memory(PAGE)
    good = work.rows(WRITE)[:1]
    bad = good.copy()
    bad["length"] = 1
    for number, (rows, status) in enumerate([(good, 0), (bad, errno.EINVAL)]):
        handle = subject.runtime.submit(rows, gate=Gate(memory, 16 * number, 7)).handle
        word = words.bytes.view(np.uint64)[2 * number : 2 * number + 2]
        until(lambda word=word: int(word[0]) == 7, "a gate opens")  # type: ignore[misc]
        require(int(word[1]) in (status, errno.EAGAIN), "a gate has the status of its batch", word)
        if handle is not None:
            work.wait(handle)
    subject.runtime.unregister_memory(memory)


def a_batch_waits_for_a_word(subject: Subject) -> None:
    """Memory is not touched before the word is there; a deadline ends what still waits."""
    work = bench(subject)
    expected = work.write_all(12)
    words, memory = subject.memory(PAGE)
    word = words.bytes.view(np.uint64)
    work.host.bytes[:] = 0xA5
    result = subject.runtime.submit(work.rows(READ)[:2], after=WordDependency(memory, 0, 5))
    require(result.handle is not None, "a batch that waits is accepted")
    require(not subject.runtime.poll(result.handle or 0), "it does not end before its word")
    require((work.host.bytes == 0xA5).all(), "it does not touch memory before its word")
    word[0] = 5
    done = work.wait(result.handle or 0)
    require(not done.status.any(), "it runs after its word", done.status)
    moved = len(done.status) * PAGE
    require(np.array_equal(work.host.bytes[:moved], expected[:moved]), "it brings its bytes")
    late = subject.runtime.submit(work.rows(READ)[:2], after=WordDependency(memory, 8, 1), timeout=0.01)
    done = work.wait(late.handle or 0)
    require((done.status == errno.ETIMEDOUT).all(), "a deadline ends what waits", done.status)
    require(not done.late.any(), "no device holds what never began")


def many_threads_share_a_runtime(subject: Subject) -> None:
    """Threads submit and wait at once; each gets its own results."""
    work = bench(subject)
    expected = work.write_all(13)
    work.host.bytes[:] = 0
    problems: list[BaseException] = []

    def read(first: int) -> None:
        try:
            for page in range(first, work.pages, 4):
                done = work.wait(work.submit(work.rows(READ, np.array([page]))))
                require(done.status.tolist() == [0], "a thread's read succeeds", done.status)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    require(np.array_equal(work.host.bytes, expected), "all pages are read")
