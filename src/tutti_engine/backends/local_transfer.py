# SPDX-License-Identifier: Apache-2.0
"""One batch on its way through the runtime: offered, collected, tried again, flushed."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tutti_engine.backends.local import LocalStoreBackend

__all__ = ["Requests", "Segments", "Transfer"]

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05
"""Pauses before segments are offered again that found no room although nothing of the store is in flight:
only then no completion tells of room, because somebody else fills the runtime."""

Array = Any
"""A NumPy array. This module uses its methods only, so that it need not import NumPy."""


@dataclass(frozen=True)
class Requests:
    """Requests for the runtime, with what each is for.

    Attributes:
        array: requests of ``tutti_runtime.REQUEST_DTYPE``.
        first: for each the number of its first segment in the batch; of a flush the file's number.
        count: for each the number of neighbouring segments that it moves at once.
    """

    array: Array
    first: Array
    count: Array

    def __len__(self) -> int:
        return len(self.array)

    def take(self, chosen: Array) -> Requests:
        """Return some of the requests, chosen by mask or slice."""
        return Requests(self.array[chosen], self.first[chosen], self.count[chosen])


@dataclass(frozen=True)
class Segments:
    """A checked batch as columns: file number, offset in the file, offset in the window."""

    files: Array
    offsets: Array
    window_offsets: Array

    def __len__(self) -> int:
        return len(self.files)


class Transfer:
    """A batch in flight. The backend's progress thread carries it on; a poll does so as well."""

    def __init__(self, backend: LocalStoreBackend, segments: Segments, *, write: bool) -> None:
        self._backend = backend
        self._segments = segments
        self._write = write
        self._give_up = time.monotonic() + backend.io_timeout
        self._errors: dict[int, int] = {}
        self._todo: list[Requests] = [backend.requests(segments, write=write)]
        self._active: list[tuple[int, Requests]] = []
        self._flushing = False
        self._finished = threading.Event()
        self._pause = FIRST_PAUSE
        self._lock = threading.Lock()
        self._asked = False
        # Nothing of it is in flight and something is to do: no completion of its own will carry it on.
        self._starving = False
        if len(segments) == 0:
            self._finished.set()

    def poll(self) -> bool:
        """Make progress; return whether all segments are finished."""
        # Whoever finds the lock taken leaves word, and the holder looks again: I/O may have finished after
        # its look, and nobody is told twice.
        self._asked = True
        while self._asked and not self._finished.is_set() and self._lock.acquire(blocking=False):
            try:
                self._asked = False
                self._step()
            finally:
                self._lock.release()
        return self._finished.is_set()

    def wait(self, deadline: float) -> bool:
        """Wait until the batch is finished or ``time.monotonic()`` is ``deadline``; return ``poll()``."""
        return self.poll() or self._finished.wait(max(0.0, deadline - time.monotonic())) or self.poll()

    def next_try(self, *, others_move: bool) -> float | None:
        """Return in how many seconds to poll although nothing of this batch finishes; None for never.

        Where other batches move, the first of those to finish tells of room: only the deadline counts.
        """
        if not self._starving or self._finished.is_set():
            return None
        left = max(0.0, self._give_up - time.monotonic())
        if others_move:
            return left
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return min(pause, left)

    def status(self) -> Sequence[int]:
        """Return 0 or an ``errno`` for each segment. Raises RuntimeError before the batch is finished."""
        if not self._finished.is_set():
            raise RuntimeError("the batch is still in flight; its status is known once poll() returns True")
        statuses = [0] * len(self._segments)
        for segment, code in self._errors.items():
            statuses[segment] = code
        return statuses

    def cancel(self) -> None:
        """End the batch because the runtime has ended and touches its memory no more."""
        with self._lock:
            if not self._finished.is_set():
                self._give_up_all()

    def handles(self) -> list[int]:
        """Return the runtime's handles of what is in flight."""
        return [handle for handle, _ in self._active]

    def _step(self) -> None:
        """Collect what is finished, submit what waits."""
        if self._finished.is_set():
            return
        try:
            self._collect()
            self._submit()
            if not self._todo and not self._active:
                self._next_phase()
        except self._backend.closed_error:
            # Where something is in flight, shutdown is under way in another thread; it cancels this batch
            # once nothing moves any more.
            if not self._active:
                self._give_up_all()
        was_starving, self._starving = self._starving, bool(self._todo) and not self._active
        if self._starving and not was_starving:
            # After the flag is set: the thread that is woken looks at it at once.
            self._backend.wake()

    def _expired(self) -> bool:
        return time.monotonic() >= self._give_up

    def _submit(self) -> None:
        waiting, self._todo = self._todo, []
        expired = self._expired()
        limit = self._backend.max_batch_requests
        try:
            while waiting:
                if expired:
                    # Nothing was done for segments without room; written ones were done, but not made
                    # durable.
                    requests = waiting.pop(0)
                    code = errno.ETIMEDOUT if self._flushing else errno.EAGAIN
                    self._fail(requests, [code] * len(requests))
                    continue
                requests = waiting[0]
                self._submit_some(requests.take(slice(0, limit)))
                waiting[:1] = [requests.take(slice(limit, None))] if len(requests) > limit else []
        finally:
            # What a closed runtime did not take is still to do: without it the batch would look finished.
            self._todo = waiting + self._todo

    def _submit_some(self, requests: Requests) -> None:
        result = self._backend.runtime.submit(requests.array)
        if result.handle is not None:
            self._active.append((result.handle, requests.take(result.accepted)))
        if result.accepted.all():
            return
        no_room = ~result.accepted & (result.errors == errno.EAGAIN)
        if no_room.any():
            self._todo.append(requests.take(no_room))
        refused = ~result.accepted & ~no_room
        if refused.any():
            self._fail(requests.take(refused), result.errors[refused].tolist())

    def _collect(self) -> None:
        """Take the results of what is finished."""
        runtime = self._backend.runtime
        active, self._active = self._active, []
        try:
            while active:
                handle, requests = active[0]
                if not runtime.poll(handle):
                    self._active.append(active.pop(0))
                    continue
                completion = runtime.wait(handle, 0.0)
                active.pop(0)
                self._pause = FIRST_PAUSE
                failed = completion.status != 0
                if failed.any():
                    self._fail(requests.take(failed), completion.status[failed].tolist())
        finally:
            self._active += active

    def _fail(self, requests: Requests, codes: Sequence[int]) -> None:
        """Note the failure of requests. Segments that failed together are tried again one by one, in time."""
        again: list[int] = []
        files = self._segments.files
        for first, count, code in zip(requests.first.tolist(), requests.count.tolist(), codes):
            if self._flushing:
                self._note((files == first).nonzero()[0].tolist(), code)
            elif count == 1 or self._expired():
                self._note(range(first, first + count), code)
            else:
                again += range(first, first + count)
        if again:
            self._todo.append(self._backend.requests(self._segments, again, write=self._write))

    def _note(self, segments: Iterable[int], code: int) -> None:
        for segment in segments:
            self._errors.setdefault(segment, code)

    def _next_phase(self) -> None:
        if self._write and not self._flushing:
            # Written is not durable: a batch succeeds only when its files are flushed after its last write.
            self._flushing = True
            files = self._segments.files.tolist()
            touched = sorted({file for segment, file in enumerate(files) if segment not in self._errors})
            if touched:
                self._todo = [self._backend.flushes(touched)]
                self._submit()
                return
        self._end()

    def _give_up_all(self) -> None:
        """End a batch of which nothing moves any more.

        None of its segments counts as done: writes without a flush are not durable.
        """
        self._note(range(len(self._segments)), errno.ECANCELED)
        self._todo, self._active = [], []
        self._end()

    def _end(self) -> None:
        self._backend.forget(self)
        self._finished.set()
