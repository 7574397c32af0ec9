# SPDX-License-Identifier: Apache-2.0
"""Targets, memory, and the end of a runtime."""

from __future__ import annotations

import errno

from tutti_runtime.errors import BusyError, InvalidHandleError, RuntimeClosedError
from tutti_runtime.requests import READ, WRITE
from tutti_runtime.testing.contract_checks.kit import PAGE, PATIENCE, bench, raises, require, until
from tutti_runtime.testing.subjects import Subject

__all__ = [
    "abandoned_batches_free_everything",
    "open_batch_reports_each_item",
    "shutdown_ends_everything",
    "stale_handles_are_never_somebody_elses",
]


def stale_handles_are_never_somebody_elses(subject: Subject) -> None:
    """A closed target's and forgotten memory's handle stay errors after their places were given away."""
    work = bench(subject)
    old_target, (_, old_memory) = subject.open(8 * PAGE), subject.memory(8 * PAGE)
    subject.runtime.close(old_target)
    subject.runtime.unregister_memory(old_memory)
    subject.open(8 * PAGE)
    subject.memory(8 * PAGE)
    rows = work.rows(READ)[:3]
    rows["target"][0], rows["memory"][1] = old_target, old_memory
    rows["target"][2], rows["memory"][2] = work.memory, work.target
    result = subject.runtime.submit(rows)
    require((result.errors == errno.EBADF).all(), "requests with stale handles are EBADF", result.errors)
    for call, handle in (
        (subject.runtime.close, old_target),
        (subject.runtime.query, old_target),
        (subject.runtime.unregister_memory, old_memory),
    ):
        with raises(InvalidHandleError, f"a stale handle, given to {call}"):
            call(handle)


def abandoned_batches_free_everything(subject: Subject) -> None:
    """After a batch was given up, its target and memory are free once the device is done."""
    work = bench(subject)
    subject.runtime.abandon(work.submit(work.rows(WRITE)))

    def free() -> bool:
        try:
            subject.runtime.close(work.target)
        except BusyError:
            return False
        return True

    until(free, "the target of an abandoned batch can be closed")
    until(lambda: subject.runtime.stats()["completed"] > 0, "its items are counted")
    subject.runtime.unregister_memory(work.memory)


def open_batch_reports_each_item(subject: Subject) -> None:
    """One that cannot be opened takes no other with it."""
    uris = [subject.target(8 * PAGE).uri, "nonsense", subject.target(8 * PAGE).uri]
    results = subject.runtime.open_batch(uris)
    require([result.target is not None for result in results] == [True, False, True], "items", results)
    require(isinstance(results[1].error, ValueError), "a bad URI is an error of its item", results[1])
    closed = subject.runtime.close_batch([result.target or 0 for result in results])
    require([error is None for error in closed] == [True, False, True], "items of close_batch", closed)


def shutdown_ends_everything(subject: Subject) -> None:
    """Shutdown waits for what is in flight, refuses what comes later, and may be called again."""
    work = bench(subject)
    expected = work.fill(14)
    result = subject.runtime.submit(work.rows(WRITE))
    require(subject.runtime.shutdown(PATIENCE), "shutdown waits for what is in flight")
    for call in (
        lambda: subject.runtime.submit(work.rows(READ)),
        lambda: subject.runtime.wait(result.handle or 0, 0),
        lambda: subject.runtime.open(work.made.uri),
        subject.runtime.stats,
    ):
        with raises(RuntimeClosedError, "a call after shutdown"):
            call()
    require(subject.runtime.shutdown(0), "a second shutdown is fine")
    if work.made.contents is not None and result.accepted.all():
        require((work.made.contents() == expected).all(), "what was in flight has been written")
