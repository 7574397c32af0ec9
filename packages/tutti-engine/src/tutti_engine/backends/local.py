# SPDX-License-Identifier: Apache-2.0
"""Chunks in a few large files on local drives, moved by ``tutti_runtime``."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti_engine.backend import SegmentBatch, StagingWindow
from tutti_engine.backends.local_files import check_store, file_uri, prepare_files
from tutti_engine.errors import RootError
from tutti_engine.geometry import SEGMENT_ALIGNMENT
from tutti_engine.store_layout import StoreLayout

try:
    import numpy as np

    import tutti_runtime
except ImportError as error:
    raise ImportError(
        f"the local store needs tutti-runtime and numpy ({error}); pip install 'tutti-engine[local]'"
    ) from error

__all__ = ["LocalStoreBackend", "Transfer"]

log = logging.getLogger(__name__)

WAIT_SLICE = 0.1
"""Longest time in the runtime's wait: between two slices other threads and the clock get their turn."""

ROOM_PAUSE = 0.002
"""Pause of a waiting thread whose segments found no room while all room was taken by other batches."""

SHUTDOWN_SECONDS = 5.0

Array = np.ndarray[Any, Any]

_unsafe: list[object] = []
"""Windows of backends whose I/O would not end: the kernel may still write there, so they are never freed."""


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

    def take(self, chosen: Array | slice) -> Requests:
        """Return some of the requests, chosen by mask or range."""
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

    def __init__(self, backend: LocalStoreBackend, direction: int, segments: Segments) -> None:
        self._backend = backend
        self._direction = direction
        self._segments = segments
        self._give_up = time.monotonic() + backend.io_timeout
        self._status = np.zeros(len(segments), np.int32)
        self._todo = [backend.requests(direction, segments, np.arange(len(segments)), merge=True)]
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
        statuses: list[int] = self._status.tolist()
        return statuses

    def cancel(self) -> None:
        """End the batch because the runtime has ended and touches its memory no more."""
        with self._lock:
            if not self._done:
                self._status[self._status == 0] = errno.ECANCELED
                self._todo, self._active = [], []
                self._end()

    def handles(self) -> list[int]:
        """Return the runtime's handles of what is in flight."""
        return [handle for handle, _ in self._active]

    def _step(self, patience: float = 0.0) -> None:
        """Submit what waits, collect what is finished; wait up to ``patience`` seconds for one piece."""
        if self._done:
            return
        try:
            self._collect(0.0)
            self._submit()
            self._next_phase()
            if patience and not self._done:
                if self._active:
                    self._collect(patience)
                    self._submit()
                    self._next_phase()
                else:
                    self._backend.wait_for_room(min(patience, ROOM_PAUSE))
        except tutti_runtime.RuntimeClosedError:
            # Shutdown is under way in another thread; it cancels this batch once nothing moves any more.
            if patience:
                self._backend.wait_for_room(min(patience, ROOM_PAUSE))

    def _submit(self) -> None:
        waiting, self._todo = self._todo, []
        expired = time.monotonic() >= self._give_up
        for requests in waiting:
            if expired:
                code = errno.ETIMEDOUT if self._flushing else errno.EAGAIN
                self._settle(requests, np.full(len(requests), code, np.int32), final=True)
                continue
            limit = self._backend.max_batch_requests
            for start in range(0, len(requests), limit):
                self._submit_some(requests.take(slice(start, start + limit)))

    def _submit_some(self, requests: Requests) -> None:
        result = self._backend.runtime.submit(requests.array)
        accepted = np.asarray(result.accepted, bool)
        errors = np.asarray(result.errors, np.int32)
        if result.handle is not None:
            self._active.append((result.handle, requests.take(accepted)))
        no_room = ~accepted & (errors == errno.EAGAIN)
        if no_room.any():
            self._todo.append(requests.take(no_room))
        refused = ~accepted & ~no_room
        if refused.any():
            self._settle(requests.take(refused), errors[refused])

    def _collect(self, patience: float) -> None:
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
                self._settle(requests, np.asarray(completion.status, np.int32))
                self._backend.tell_room()
        finally:
            self._active += active

    def _settle(self, requests: Requests, status: Array, *, final: bool = False) -> None:
        """Note the outcome of requests. Segments that failed together are tried again one by one."""
        failed = status != 0
        if not failed.any():
            return
        requests, status = requests.take(failed), status[failed]
        if self._flushing:
            for file, code in zip(requests.first.tolist(), status.tolist()):
                self._status[(self._segments.files == file) & (self._status == 0)] = code
            return
        alone = (requests.count == 1) | final | (time.monotonic() >= self._give_up)
        np.maximum.at(
            self._status, spread(requests.take(alone)), np.repeat(status[alone], requests.count[alone])
        )
        if not alone.all():
            again = spread(requests.take(~alone))
            self._todo.append(self._backend.requests(self._direction, self._segments, again, merge=False))

    def _next_phase(self) -> None:
        if self._todo or self._active:
            return
        if self._direction == tutti_runtime.WRITE and not self._flushing:
            # Written is not durable: a batch succeeds only when its files are flushed after its last write.
            self._flushing = True
            touched = np.unique(self._segments.files[self._status == 0])
            if len(touched):
                self._todo = [self._backend.flushes(touched)]
                self._submit()
                return
        self._end()

    def _end(self) -> None:
        self._done = True
        self._backend.forget(self)


class LocalStoreBackend:
    """The execution side of a local store on one rank: a ``StorageBackend`` over ``tutti_runtime``.

    Files are made sparse at construction. Segments that are neighbours in the window and in a file travel as
    one request, large ones as several; the status is one number a segment all the same.

    Args:
        layout: from the planning side's ``LocalStore.layout``.
        rank: this worker's number, from 0.
        runtime: a file runtime to use instead of an own one; it is not shut down with the backend.
        io_timeout: seconds during which segments that found no room in the runtime are offered again.

    Raises:
        RootError: a directory is another store's, or files cannot be made or opened.
    """

    def __init__(
        self,
        layout: StoreLayout,
        rank: int,
        *,
        runtime: tutti_runtime.Runtime | None = None,
        io_timeout: float = 30.0,
    ) -> None:
        if io_timeout <= 0:
            raise ValueError(f"io_timeout must be above 0 seconds, not {io_timeout}")
        check_store(layout)
        paths = prepare_files(layout, rank)
        self.layout = layout
        self.rank = rank
        self.io_timeout = io_timeout
        self._own_runtime = runtime is None
        self.runtime = tutti_runtime.make_file_runtime() if runtime is None else runtime
        caps = self.runtime.caps()
        self.max_batch_requests: int = caps["max_batch_requests"]
        self._max_io_bytes: int = caps["max_single_io_bytes"] // SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT
        self._targets = np.zeros(max(paths) + 1, np.uint64)
        self._room = threading.Condition()
        self._live: dict[int, Transfer] = {}
        self._window: StagingWindow | None = None
        self._memory = 0
        self._closed = False
        try:
            self._open(paths)
        except BaseException:
            self._close_runtime()
            raise

    def _open(self, paths: dict[int, str]) -> None:
        opened = self.runtime.open_batch([file_uri(path) for path in paths.values()])
        for number, result in zip(paths, opened):
            self._targets[number] = result.target or 0
        for path, result in zip(paths.values(), opened):
            if result.error is not None:
                code = getattr(result.error, "errno", None)
                raise RootError(
                    f"cannot open {path}: {result.error}", path=Path(path), errno=code
                ) from result.error

    def chunk_ids(self, count: int) -> Sequence[int]:
        """Return the chunk slots 0 to ``count - 1``."""
        if not 1 <= count <= self.layout.num_chunks:
            raise ValueError(
                f"{count} chunk ids were asked for; there is room for 1 to {self.layout.num_chunks}"
            )
        return range(count)

    def bind_staging(self, window: StagingWindow) -> None:
        """Register the window's memory with the runtime.

        Raises RuntimeError the second time and after shutdown, ValueError for a window that does not fit.
        """
        if window.slot_bytes != self.layout.segment_bytes:
            raise ValueError(
                f"slots of {window.slot_bytes} bytes do not fit segments of {self.layout.segment_bytes}"
            )
        if window.nbytes < window.num_slots * window.slot_bytes:
            raise ValueError(f"{window.nbytes} bytes do not hold {window.num_slots} x {window.slot_bytes}")
        with self._room:
            if self._closed:
                raise RuntimeError("the backend is shut down")
            if self._window is not None:
                raise RuntimeError("a staging window is bound already")
            self._memory = self.runtime.register_memory(window.address, window.nbytes, kind="host")
            self._window = window

    def write_segments(self, batch: SegmentBatch) -> Transfer:
        """Start to copy slots to files. Finished once written and flushed."""
        return self._start(tutti_runtime.WRITE, batch)

    def read_segments(self, batch: SegmentBatch) -> Transfer:
        """Start to copy files to slots."""
        return self._start(tutti_runtime.READ, batch)

    def check(self, batch: SegmentBatch) -> None:
        """Raise what ``write_segments`` would raise for a batch, and start nothing."""
        self._segments(batch)

    def wait_idle(self, deadline: float) -> bool:
        """Drive everything in flight until it is finished; return False if the deadline passed first."""
        while True:
            with self._room:
                live = list(self._live.values())
            if not live:
                return True
            if not live[0].wait(deadline):
                return False

    def shutdown(self) -> None:
        """Finish what is in flight within some seconds and close the files. Later calls do nothing.

        A batch that cannot be finished ends as ``ECANCELED``, if the runtime could be stopped. Else it stays
        in flight for ever, and its window in memory.
        """
        with self._room:
            if self._closed:
                return
            self._closed = True
        idle = self.wait_idle(time.monotonic() + SHUTDOWN_SECONDS)
        if self._close_runtime():
            for transfer in list(self._live.values()):
                transfer.cancel()
        elif not idle:
            log.warning("%s: I/O did not end in time; its memory stays reserved", self.layout.directories[0])
            _unsafe.append(self._window)

    def _close_runtime(self) -> bool:
        """Give up targets, memory and an own runtime; return whether no I/O can touch the window any more."""
        if self._own_runtime:
            return self.runtime.shutdown(SHUTDOWN_SECONDS)
        if self._live:
            for transfer in list(self._live.values()):
                for handle in transfer.handles():
                    self.runtime.abandon(handle)
            return False
        self.runtime.close_batch([int(target) for target in self._targets if target])
        if self._window is not None:
            self.runtime.unregister_memory(self._memory)
        return True

    def _start(self, direction: int, batch: SegmentBatch) -> Transfer:
        segments = self._segments(batch)
        transfer = Transfer(self, direction, segments)
        with self._room:
            if self._closed:
                raise RuntimeError("the backend is shut down")
            if len(segments):
                self._live[id(transfer)] = transfer
        transfer.poll()
        return transfer

    def _segments(self, batch: SegmentBatch) -> Segments:
        """Check a batch and compute its places: ``StoreLayout.locate`` for all segments at once."""
        window, layout = self._window, self.layout
        if window is None:
            raise RuntimeError("no staging window is bound; call bind_staging first")
        chunks = column("chunk id", batch.chunk_ids, layout.num_chunks)
        layers = column("layer", batch.layers, layout.num_layers)
        slots = column("slot", batch.slots, window.num_slots)
        roots = len(layout.directories)
        rows = chunks // roots
        return Segments(
            files=rows // layout.chunks_per_file * roots + chunks % roots,
            offsets=rows % layout.chunks_per_file * layout.chunk_bytes + layers * layout.segment_bytes,
            window_offsets=slots * layout.segment_bytes,
        )

    def requests(self, direction: int, segments: Segments, chosen: Array, *, merge: bool) -> Requests:
        """Return the requests that move the ``chosen`` segments of a batch, numbers in ascending order."""
        size = self.layout.segment_bytes
        files, offsets = segments.files[chosen], segments.offsets[chosen]
        window_offsets = segments.window_offsets[chosen]
        if size > self._max_io_bytes:
            return self._split(direction, files, offsets, window_offsets, chosen)
        starts = np.ones(len(chosen), bool)
        if merge:
            starts[1:] = (
                (np.diff(files) != 0) | (np.diff(offsets) != size) | (np.diff(window_offsets) != size)
            )
            heads = np.flatnonzero(starts)
            run = np.cumsum(starts) - 1
            starts = (np.arange(len(chosen)) - heads[run]) % (self._max_io_bytes // size) == 0
        heads = np.flatnonzero(starts)
        count = np.diff(np.append(heads, len(chosen)))
        array = self._array(direction, files[heads], offsets[heads], window_offsets[heads], count * size)
        return Requests(array, chosen[heads], count)

    def _split(
        self, direction: int, files: Array, offsets: Array, window_offsets: Array, chosen: Array
    ) -> Requests:
        size = self.layout.segment_bytes
        within = np.arange(0, size, self._max_io_bytes)
        times, skip = len(within), np.tile(within, len(chosen))
        array = self._array(
            direction,
            np.repeat(files, times),
            np.repeat(offsets, times) + skip,
            np.repeat(window_offsets, times) + skip,
            np.minimum(size - skip, self._max_io_bytes),
        )
        return Requests(array, np.repeat(chosen, times), np.ones(len(array), np.int64))

    def flushes(self, files: Array) -> Requests:
        """Return the requests that make earlier writes to files durable."""
        array = np.zeros(len(files), tutti_runtime.REQUEST_DTYPE)
        array["direction"] = tutti_runtime.FLUSH
        array["target"] = self._targets[files]
        return Requests(array, files, np.ones(len(files), np.int64))

    def _array(
        self, direction: int, files: Array, offsets: Array, window_offsets: Array, lengths: Array
    ) -> Array:
        array = np.zeros(len(files), tutti_runtime.REQUEST_DTYPE)
        array["direction"] = direction
        array["memory"] = self._memory
        array["memory_offset"] = window_offsets
        array["target"] = self._targets[files]
        array["target_offset"] = offsets
        array["length"] = lengths
        return array

    def forget(self, transfer: Transfer) -> None:
        """Take a finished batch off the list."""
        with self._room:
            self._live.pop(id(transfer), None)
            self._room.notify_all()

    def tell_room(self) -> None:
        """Wake threads whose segments found no room."""
        with self._room:
            self._room.notify_all()

    def wait_for_room(self, seconds: float) -> None:
        """Wait until some I/O has finished, or a moment."""
        with self._room:
            self._room.wait(seconds)


def column(name: str, values: Sequence[Any], limit: int) -> Array:
    """Return whole numbers from 0 to ``limit - 1`` as an array. Raises ValueError for anything else."""
    if len(values) == 0:
        return np.zeros(0, np.int64)
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(f"{name}s must be whole numbers, not {list(values)[:4]!r}")
    wrong = (array < 0) | (array >= limit)
    if wrong.any():
        raise ValueError(f"{name} {array[wrong][0]} is not one of 0..{limit - 1}")
    whole: Array = array.astype(np.int64)
    return whole


def spread(requests: Requests) -> Array:
    """Return the numbers of all segments that requests are for."""
    before = np.repeat(np.cumsum(requests.count) - requests.count, requests.count)
    numbers: Array = np.repeat(requests.first, requests.count) + np.arange(len(before)) - before
    return numbers
