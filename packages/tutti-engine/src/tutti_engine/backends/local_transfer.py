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

WAIT_SLICE = 0.1
"""Longest time in the runtime's wait: between two slices other threads and the clock get their turn."""

ROOM_PAUSE = 0.002
"""Pause of a waiting thread whose segments found no room while all room was taken by other batches."""

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
    """A batch in flight. Whoever polls or waits drives it; there is no thread for it."""

    def __init__(self, backend: LocalStoreBackend, segments: Segments, *, write: bool) -> None:
        self._backend = backend
        self._segments = segments
        self._write = write
        self._give_up = time.monotonic() + backend.io_timeout
        self._errors: dict[int, int] = {}
        self._todo: list[Requests] = [backend.requests(segments, write=write)]
        self._active: list[tuple[int, Requests]] = []
        self._flushing = False
        self._done = len(segments) == 0
        self._lock = threading.Lock()

    def poll(self) -> bool:
        """Make progress; return whether all segments are finished."""
        if not self._done and self._lock.acquire(blocking=False):
            try:
                self._step()
            finally:
                self._lock.release()
        return self._done

    def wait(self, deadline: float) -> bool:
        """Drive the batch until it is finished or ``time.monotonic()`` reaches ``deadline``;

        Return ``poll()``.
        """
        while not self._done:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return self.poll()
            if self._lock.acquire(timeout=remaining):
                try:
                    self._step(min(remaining, WAIT_SLICE))
                finally:
                    self._lock.release()
        return True

    def status(self) -> Sequence[int]:
        """Return 0 or an ``errno`` for each segment. Raises RuntimeError before the batch is finished."""
        if not self._done:
            raise RuntimeError("the batch is still in flight; its status is known once poll() returns True")
        return [self._errors.get(segment, 0) for segment in range(len(self._segments))]

    def cancel(self) -> None:
        """End the batch because the runtime has ended and touches its memory no more."""
        with self._lock:
            if not self._done:
                self._give_up_all()

    def handles(self) -> list[int]:
        """Return the runtime's handles of what is in flight."""
        return [handle for handle, _ in self._active]

    def _step(self, patience: float = 0.0) -> None:
        """Submit what waits, collect what is finished; wait up to ``patience`` seconds for one piece."""
        if self._done:
            return
        try:
            self._advance(0.0)
            if patience and not self._done:
                if self._active:
                    self._advance(patience)
                else:
                    self._backend.wait_for_room(min(patience, ROOM_PAUSE))
        except self._backend.closed_error:
            if not self._active:
                # Nothing of this batch is in flight, and no more of it will be.
                self._give_up_all()
            elif patience:
                # Shutdown is under way in another thread; it cancels this batch once nothing moves any more.
                self._backend.wait_for_room(min(patience, ROOM_PAUSE))

    def _advance(self, patience: float) -> None:
        self._collect(patience)
        self._submit()
        if not self._todo and not self._active:
            self._next_phase()

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

    def _collect(self, patience: float) -> None:
        """Take results of what is finished, waiting up to ``patience`` seconds for the first batch."""
        runtime = self._backend.runtime
        active, self._active = self._active, []
        try:
            while active:
                handle, requests = active[0]
                if not patience and not runtime.poll(handle):
                    self._active.append(active.pop(0))
                    continue
                try:
                    completion = runtime.wait(handle, patience)
                except TimeoutError:
                    return
                finally:
                    patience = 0.0
                active.pop(0)
                failed = completion.status != 0
                if failed.any():
                    self._fail(requests.take(failed), completion.status[failed].tolist())
                self._backend.tell_room()
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
        self._done = True
        self._backend.forget(self)
