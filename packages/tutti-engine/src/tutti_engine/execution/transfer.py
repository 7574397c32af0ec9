# SPDX-License-Identifier: Apache-2.0
"""Book-keeping of plans under way, used by the executor."""

from __future__ import annotations

import errno
import threading
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tutti_engine.columns import pack_words
from tutti_engine.plan import LoadPlan, LoadResult, StorePlan, StoreResult
from tutti_engine.severity import worse

__all__ = ["LoadJob", "StoreJob", "Transfer"]


class Transfer:
    """A load under way, for callers that wait for single layers."""

    def __init__(self, parts: int = 1) -> None:
        """``parts`` times ``finish`` is called: one for each group of layers that has something to load."""
        self._lock = threading.Lock()
        self._parts = parts
        self._done = threading.Event()
        self._ok = True

    def finish(self, *, ok: bool) -> None:
        """Mark a part as ended."""
        with self._lock:
            self._ok = self._ok and ok
            self._parts -= 1
            if self._parts <= 0:
                self._done.set()

    def poll(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def wait(self, deadline: float) -> bool:
        """Wait for the end until ``time.monotonic()`` reaches ``deadline``; return ``poll()``."""
        return self._done.wait(max(0.0, deadline - time.monotonic()))

    @property
    def ok(self) -> bool:
        """Whether every chunk arrived and verified; False before the end."""
        return self._ok and self._done.is_set()


class _Job:
    """What is common to a plan's load and a plan's store."""

    def __init__(self, layers_left: int) -> None:
        self.layers_left = layers_left
        self.errors: dict[int, int] = {}
        self._worst_error = 0
        self._lock = threading.Lock()

    def fail(self, positions: Iterable[int], code: int) -> None:
        """Note why chunks failed; the first reason of each stays."""
        with self._lock:
            self._fail(positions, code)

    def fail_each(self, errors: Mapping[int, int]) -> None:
        """Note chunks that failed, each with its reason."""
        for position, code in errors.items():
            self.fail((position,), code)

    def _fail(self, positions: Iterable[int], code: int) -> None:
        for position in positions:
            self._worst_error = worse(self._worst_error, code)
            self.errors.setdefault(position, code)


class LoadJob(_Job):
    """A load plan under way."""

    def __init__(self, plan: LoadPlan, layers_left: int, mark: Any = None) -> None:
        """Make a job; ``mark`` is the end of the work of a device that may still use the pages."""
        super().__init__(layers_left)
        self.plan = plan
        self.mark = mark
        self.bytes_read = 0
        self._seconds = 0.0
        self._busy_until = float("-inf")
        self._untried: set[int] = set()
        self._corrupt: set[int] = set()
        # Copies that are writing to the pages.
        self._pages = threading.Condition()
        self._copies = 0
        self._given_up = False

    def give_up(self) -> None:
        """End the load early: once this returns, nothing writes to its pages any more.

        Waits for a copy that is under way, never for a drive. Chunks whose last layer has not been copied are
        reported as not tried.
        """
        with self._pages:
            self._given_up = True
            self._pages.wait_for(lambda: not self._copies)
        self.skip(range(len(self.plan.transfers)), errno.ECANCELED)

    def enter_pages(self) -> bool:
        """Take the right to write to the pages; False once the load was given up, then nothing was taken."""
        with self._pages:
            self._copies += not self._given_up
            return not self._given_up

    def leave_pages(self) -> None:
        """Give back what ``enter_pages`` took."""
        with self._pages:
            self._copies -= 1
            self._pages.notify_all()

    def skip(self, positions: Iterable[int], code: int) -> None:
        """Note that chunks were not read to their end, for which they are not to blame."""
        with self._lock:
            fresh = [position for position in positions if position not in self.errors]
            self._untried.update(fresh)
            self._fail(fresh, code)

    def distrust(self, positions: Iterable[int]) -> None:
        """Note chunks that were read and are not what was stored."""
        with self._lock:
            self._corrupt.update(positions)
            self._fail(self._corrupt, errno.EBADMSG)

    def note_time(self, begin: float, end: float) -> None:
        """Add a stretch of time in which this load was worked on; stretches may overlap, by their ends."""
        self._seconds += max(0.0, end - max(begin, self._busy_until))
        self._busy_until = max(end, self._busy_until)

    def result(self) -> LoadResult:
        """Return what the planning side is told."""
        return LoadResult(
            self.plan.plan_id,
            tuple(sorted(self.errors)),
            self._worst_error,
            self.bytes_read,
            self._seconds,
            tuple(sorted(self._untried)),
            tuple(sorted(self._corrupt)),
        )


class StoreJob(_Job):
    """A store plan under way."""

    def __init__(self, plan: StorePlan, num_layers: int, layers_left: int | None = None) -> None:
        """Make a job.

        Args:
            plan: the plan.
            num_layers: segments of a chunk; the checksums of those that this rank does not store stay zero.
            layers_left: layers that this rank has, if fewer.
        """
        super().__init__(num_layers if layers_left is None else layers_left)
        self.plan = plan
        self.waves_left = 0
        self.bytes_written = 0
        self._num_layers = num_layers
        # Row after row, one a chunk.
        self._sums = array("Q", bytes(8 * num_layers * len(plan.transfers)))

    def note(self, layers: Sequence[int], positions: Sequence[int], sums: Sequence[int]) -> None:
        """Keep checksums, given layer by layer."""
        words = sums if isinstance(sums, array) and sums.typecode == "Q" else array("Q", sums)
        count = len(positions)
        if len(words) != count * len(layers):
            raise ValueError(f"the mover gave {len(words)} checksums for {count} x {len(layers)} segments")
        width = self._num_layers
        if positions[-1] - positions[0] == count - 1 and len(layers) < count:
            start, stop = positions[0] * width, (positions[-1] + 1) * width
            for place, layer in enumerate(layers):
                self._sums[start + layer : stop : width] = words[place * count : (place + 1) * count]
            return
        for index, position in enumerate(positions):
            for layer, word in zip(layers, words[index::count], strict=True):
                self._sums[position * width + layer] = word

    def result(self, unsettled: Iterable[int] = ()) -> StoreResult:
        """Return what the planning side is told; writes of ``unsettled`` positions are still in flight."""
        checksums = tuple(
            None if position in self.errors else self._row(position)
            for position in range(len(self.plan.transfers))
        )
        return StoreResult(
            self.plan.plan_id,
            checksums,
            tuple(sorted(unsettled)),
            self._worst_error,
            self.bytes_written,
        )

    def _row(self, position: int) -> bytes:
        start = position * self._num_layers
        return pack_words(self._sums[start : start + self._num_layers])
