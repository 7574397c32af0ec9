# SPDX-License-Identifier: Apache-2.0
"""Batches of good and bad requests, and what their results mean for the model."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.requests import FLUSH, READ, REQUEST_DTYPE, WRITE, Completion
from tutti_runtime.testing.fuzz.model import (
    PAGE,
    MemoryModel,
    Pages,
    TargetModel,
    expect,
    free_runs,
    one_of,
    rows_of,
)

__all__ = ["BAD", "Flight", "Segment", "bad_rows", "make_segment", "segment_rows"]

_FAR = (1 << 64) - PAGE
BAD: list[tuple[dict[str, int], int]] = [
    ({"target_offset": 1}, errno.EINVAL),
    ({"target_offset": 512}, errno.EINVAL),
    ({"memory_offset": 2048}, errno.EINVAL),
    ({"length": PAGE + 1}, errno.EINVAL),
    ({"length": 0}, errno.EINVAL),
    ({"length": (1 << 30) + PAGE}, errno.EINVAL),
    ({"length": _FAR}, errno.EINVAL),
    ({"memory_offset": _FAR, "length": 2 * PAGE}, errno.EINVAL),
    ({"target_offset": _FAR, "length": 2 * PAGE}, errno.EINVAL),
    ({"memory_offset": 1 << 40}, errno.EINVAL),
    ({"target_offset": 1 << 40}, errno.EINVAL),
    ({"direction": 3}, errno.EINVAL),
    ({"direction": FLUSH}, errno.EINVAL),
    ({"reserved": 1}, errno.EINVAL),
    ({"memory": 0}, errno.EBADF),
    ({"target": 0}, errno.EBADF),
    ({"memory": (1 << 64) - 1}, errno.EBADF),
    ({"target": (1 << 64) - 1}, errno.EBADF),
]
"""What makes a good request bad, and the errno that it must be rejected with."""


@dataclass
class Segment:
    """Requests of a batch that have direction, target, memory and length in common.

    ``items`` are their numbers among the accepted ones of the batch; ``memory_pages`` and ``target_pages``
    have a row for each. Of a flush there are no pages.
    """

    direction: int
    target: TargetModel
    memory: MemoryModel | None
    items: Pages
    memory_pages: Pages
    target_pages: Pages

    @property
    def length(self) -> int:
        """Bytes of a request."""
        return int(self.memory_pages.shape[1]) * PAGE

    def lock(self, *, free: bool) -> None:
        """Take the pages, or give them back."""
        self.target.free[self.target_pages.ravel()] = free
        if self.memory is not None:
            self.memory.free[self.memory_pages.ravel()] = free

    def part(self, chosen: NDArray[np.bool_], items: Pages) -> Segment:
        """Some of the requests, with new numbers."""
        return Segment(
            self.direction,
            self.target,
            self.memory,
            items,
            self.memory_pages[chosen],
            self.target_pages[chosen],
        )


def make_segment(
    random: np.random.Generator, target: TargetModel, memory: MemoryModel, length: int, most: int
) -> Segment | None:
    """Up to ``most`` requests of ``length`` pages on pages that no other batch uses; locks them."""
    starts = []
    for free in (memory.free, target.free):
        found = free_runs(free, length, int(random.integers(length)))
        random.shuffle(found)
        starts.append(found)
    count = min(most, *(len(found) for found in starts))
    if count == 0:
        return None
    direction = WRITE if target.writable and random.random() < 0.5 else READ
    pages = [rows_of(found[:count], length) for found in starts]
    segment = Segment(direction, target, memory, np.arange(count), *pages)
    segment.lock(free=False)
    return segment


def segment_rows(segment: Segment) -> NDArray[np.void]:
    """The requests, in the order of the segment."""
    rows = np.zeros(len(segment.items), REQUEST_DTYPE)
    rows["direction"] = segment.direction
    rows["target"] = segment.target.handle
    if segment.memory is not None:
        rows["memory"] = segment.memory.handle
        rows["memory_offset"] = segment.memory_pages[:, 0] * PAGE
        rows["target_offset"] = segment.target_pages[:, 0] * PAGE
        rows["length"] = segment.length
    return rows


def bad_rows(
    random: np.random.Generator, count: int, target: TargetModel, memory: MemoryModel, stale: list[int]
) -> tuple[NDArray[np.void], NDArray[np.int32]]:
    """Requests that must be rejected, and with what."""
    rows = np.zeros(count, REQUEST_DTYPE)
    rows["target"], rows["memory"], rows["length"] = target.handle, memory.handle, PAGE
    kinds = random.integers(len(BAD), size=count)
    errors = np.array([error for _, error in BAD], np.int32)[kinds]
    for kind in np.unique(kinds):
        for name, value in BAD[kind][0].items():
            rows[name][kinds == kind] = value
    if stale and count:
        rows[0] = (READ, 0, memory.handle, 0, stale[int(random.integers(len(stale)))], 0, PAGE)
        errors[0] = errno.EBADF
    if not target.writable and count > 1:
        rows[1] = (WRITE, 0, memory.handle, 0, target.handle, 0, PAGE)
        errors[1] = errno.EACCES
    return rows, errors


@dataclass
class Flight:
    """A batch that was accepted, in whole or in part, and whose results are not known yet.

    ``may_fail``: a fault plan could have touched it. ``whole_items``: see ``Subject``.
    """

    handle: int
    count: int
    segments: list[Segment]
    whole_items: bool
    may_fail: bool = False
    deadline: bool = False
    canceled: bool = False
    late: bool = False
    gate: tuple[int, NDArray[np.int32]] | None = None  #: number of its words, and the answers of submit
    held: int | None = None  #: number of the word that it waits for

    def settle(self, done: Completion) -> Flight | None:
        """Compare results with the model, and bring it up to date. Returns the late items as a flight."""
        expect(len(done.status) == self.count, "a batch has as many results as accepted requests")
        self._check_status(done)
        late_numbers = np.cumsum(done.late) - 1
        left: list[Segment] = []
        for whole in self.segments:
            late = done.late[whole.items]
            ended = whole.part(~late, whole.items[~late])
            self._settle_segment(ended, done.status[ended.items], done.bytes[ended.items])
            ended.lock(free=True)
            if late.any():
                left.append(whole.part(late, late_numbers[whole.items[late]]))
        expect((done.late_handle is not None) == bool(left), "a late handle is there when items are late")
        if done.late_handle is None:
            return None
        # Of an item in parts, those that no device had begun at the deadline, or when it was canceled, never
        # happen.
        return Flight(
            done.late_handle,
            int(done.late.sum()),
            left,
            self.whole_items,
            may_fail=self.may_fail,
            deadline=not self.whole_items,
            canceled=self.canceled and not self.whole_items,
            late=True,
        )

    def settle_unseen(self) -> None:
        """The batch has ended and nobody knows how: each request may have happened."""
        for segment in self.segments:
            for row in range(len(segment.items)):
                self._settle_failed(segment, row, 0, certain=False)
            segment.lock(free=True)

    def _check_status(self, done: Completion) -> None:
        allowed = {0}
        if self.may_fail:
            allowed |= {errno.EIO, errno.ENOSPC}
        if self.deadline:
            allowed.add(errno.ETIMEDOUT)
        if self.canceled:
            allowed.add(errno.ECANCELED)
        expect(set(np.unique(done.status).tolist()) <= allowed, "statuses", np.unique(done.status), allowed)
        expect(not (done.late & (done.status != errno.ETIMEDOUT)).any(), "late items have timed out")

    def _settle_segment(self, segment: Segment, status: NDArray[np.int32], moved: NDArray[np.uint64]) -> None:
        good = status == 0
        expect((moved[good] == segment.length).all(), "bytes of requests that succeeded", moved[good])
        if segment.memory is None:
            return
        memory_pages, target_pages = segment.memory_pages[good].ravel(), segment.target_pages[good].ravel()
        if segment.direction == READ:
            found = segment.memory.live[memory_pages]
            segment.target.see(target_pages, found, "a read")
            segment.memory.data[memory_pages] = found
        else:
            segment.target.put(target_pages, segment.memory.data[memory_pages])
        for row in np.flatnonzero(~good):
            expect(moved[row] < segment.length, "a request that failed has not moved everything", moved[row])
            expect(moved[row] % PAGE == 0, "bytes of a failed request are whole pages", moved[row])
            certain = self.whole_items and status[row] != errno.ETIMEDOUT
            self._settle_failed(segment, int(row), int(moved[row]) // PAGE, certain=certain)

    def _settle_failed(self, segment: Segment, row: int, moved: int, *, certain: bool) -> None:
        """``moved`` pages were; the others were not (``certain``), or may have been."""
        if segment.memory is None:
            return
        target, memory = segment.target, segment.memory
        pages = zip(segment.memory_pages[row].tolist(), segment.target_pages[row].tolist(), strict=True)
        for number, (in_memory, in_target) in enumerate(pages):
            if segment.direction == WRITE:
                if number < moved:
                    target.put(np.array([in_target]), memory.data[in_memory])
                elif not certain:
                    target.maybe_put(in_target, memory.data[in_memory])
                continue
            found = memory.live[in_memory]
            allowed = target.may_hold(in_target) if number < moved or not certain else []
            if number >= moved:
                allowed = [*allowed, memory.data[in_memory]]
            one_of(found, allowed, f"a failed read of {target.made.uri}", in_target)
            memory.data[in_memory] = found
