# SPDX-License-Identifier: Apache-2.0
"""Requests: where bytes go, what is rejected, what results say."""

from __future__ import annotations

import errno

import numpy as np

from tutti_runtime.requests import FLUSH, READ, REQUEST_DTYPE, WRITE
from tutti_runtime.testing.contract_checks.kit import PAGE, bench, require
from tutti_runtime.testing.fuzz.batches import BAD
from tutti_runtime.testing.subjects import Subject

__all__ = [
    "bad_requests_fail_alone",
    "bytes_are_where_they_belong",
    "bytes_come_back",
    "counters_add_up",
    "few_are_accepted_and_all_are_run",
    "long_requests",
    "read_only_targets_take_no_writes",
    "untouched_bytes_stay",
]


def bytes_come_back(subject: Subject) -> None:
    """What was written is read, also after the target was closed and opened."""
    work = bench(subject)
    expected = work.write_all(1)
    require(np.array_equal(work.read_back(), expected), "written bytes come back")
    subject.runtime.close(work.target)
    work.target = subject.runtime.open(work.made.uri, writable=False)
    require(np.array_equal(work.read_back(), expected), "written bytes come back from a reopened target")


def bytes_are_where_they_belong(subject: Subject) -> None:
    """A permutation of pages is seen without the runtime, where that is possible, after a flush."""
    work = bench(subject)
    source = work.fill(2)
    rows = work.rows(WRITE)
    order = np.random.default_rng(3).permutation(work.pages)
    rows["target_offset"] = order * PAGE
    work.run(rows)
    flush = np.zeros(1, REQUEST_DTYPE)
    flush["direction"], flush["target"] = FLUSH, work.target
    work.run(flush)
    expected = np.empty_like(source).reshape(-1, PAGE)
    expected[order] = source.reshape(-1, PAGE)
    require(np.array_equal(work.read_back(), expected.ravel()), "pages go where requests say")
    if work.made.contents is not None:
        require(np.array_equal(work.made.contents(), expected.ravel()), "files hold what was written")


def untouched_bytes_stay(subject: Subject) -> None:
    """Requests change nothing but their own ranges, in targets and in memory."""
    work = bench(subject)
    expected = work.write_all(4)
    odd, even = np.arange(1, work.pages, 2), np.arange(0, work.pages, 2)
    second = work.fill(5)
    work.run(work.rows(WRITE, odd))
    pages = expected.reshape(-1, PAGE)
    pages[odd] = second.reshape(-1, PAGE)[odd]
    work.host.bytes[:] = 0xA5
    work.run(work.rows(READ, even))
    found = work.host.bytes.reshape(-1, PAGE)
    require(np.array_equal(found[even], pages[even]), "reads bring the pages that were not written")
    require((found[odd] == 0xA5).all(), "memory that no read names stays as it is")
    require(np.array_equal(work.read_back(), expected), "writes change their own ranges only")


def long_requests(subject: Subject) -> None:
    """One request may cover the whole target, however it is laid out."""
    work = bench(subject, pages=64)
    expected = work.fill(6)
    row = work.rows(WRITE)[:1]
    row["length"] = 64 * PAGE
    work.run(row)
    require(np.array_equal(work.read_back(), expected), "a long write is whole")
    work.host.bytes[:] = 0
    row["direction"] = READ
    work.run(row)
    require(np.array_equal(work.host.bytes, expected), "a long read is whole")


def bad_requests_fail_alone(subject: Subject) -> None:
    """Each kind of bad request has its errno; good ones around it are run."""
    work = bench(subject)
    expected = work.write_all(7)
    for fields, wanted in BAD:
        rows = work.rows(READ)[:3]
        for name, value in fields.items():
            rows[name][1] = value
        result = subject.runtime.submit(rows)
        require(result.errors[1] == wanted, "a bad request has its errno", fields, result.errors)
        require(not result.accepted[1], "a bad request is not accepted", fields)
        require(set(result.errors[[0, 2]].tolist()) <= {0, errno.EAGAIN}, "others are not", result.errors)
        if result.handle is not None:
            done = work.wait(result.handle)
            require(len(done.status) == result.accepted.sum(), "a result for each accepted request")
            require(not done.status.any(), "good requests beside a bad one succeed", done.status)
    require(np.array_equal(work.read_back(), expected), "bad requests change nothing")


def read_only_targets_take_no_writes(subject: Subject) -> None:
    """A write to a target that was opened read-only is EACCES; reads are fine."""
    work = bench(subject)
    expected = work.write_all(8)
    subject.runtime.close(work.target)
    work.target = subject.runtime.open(work.made.uri, writable=False)
    result = subject.runtime.submit(work.rows(WRITE))
    require(result.handle is None, "no write is accepted")
    require((result.errors == errno.EACCES).all(), "the errno is EACCES", result.errors)
    require(np.array_equal(work.read_back(), expected), "reads go on")


def few_are_accepted_and_all_are_run(subject: Subject) -> None:
    """Many more requests than a window: none is lost, none is run twice."""
    work = bench(subject, pages=200)
    expected = work.fill(9)
    work.run(work.rows(WRITE), window=7)
    require(np.array_equal(work.read_back(), expected), "nothing is lost in a small window")


def counters_add_up(subject: Subject) -> None:
    """submitted = accepted + rejected; bytes are counted once."""
    work = bench(subject)
    require(not any(subject.runtime.stats().values()), "counters begin at 0")
    work.write_all(10)
    work.read_back()
    rows = work.rows(READ)[:4]
    rows["length"] = 1
    require(subject.runtime.submit(rows).handle is None, "misaligned requests are rejected")
    stats = subject.runtime.stats()
    require(stats["submitted"] == stats["accepted"] + stats["rejected"], "submitted is the sum", stats)
    require(stats["accepted"] == stats["completed"] == 2 * work.pages, "accepted and completed", stats)
    moved = (stats["bytes_read"], stats["bytes_written"])
    require(moved == (work.pages * PAGE, work.pages * PAGE), "bytes", stats)
    require(stats["failed"] == 0, "nothing failed", stats)
