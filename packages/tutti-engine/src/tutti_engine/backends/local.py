# SPDX-License-Identifier: Apache-2.0
"""Chunks in a few large files on local drives, moved by ``tutti_runtime``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tutti_engine.backend import SegmentBatch, StagingWindow
from tutti_engine.backends.local_files import check_store, file_uri, is_memory, prepare_files
from tutti_engine.backends.local_progress import Progress
from tutti_engine.backends.local_transfer import Requests, Segments, Transfer
from tutti_engine.errors import RootError
from tutti_engine.execution.settings import MAX_SECONDS
from tutti_engine.geometry import SEGMENT_ALIGNMENT
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.slot_order import slot_order

try:
    import numpy as np

    import tutti_runtime
except ImportError as error:
    raise ImportError(
        f"the local store needs tutti-runtime and numpy ({error}); pip install 'tutti-engine[local]'"
    ) from error

__all__ = ["LocalStoreBackend", "open_backend"]

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0

MAX_COPY_THREADS = 12
"""Threads that copy from and to a file system in memory. On 16 cores 16 of them read 35.2 GB/s and 12 read
34.4, but loads to a GPU moved 23.4 GB/s with 16 and 33.0 with 12 (docs/gpu.md of tutti-vllm)."""

THREAD_IO_BYTES = 2 << 20
"""Longest request where threads carry out requests one by one."""

Array = np.ndarray[Any, Any]

_unsafe: list[object] = []
"""Windows of backends whose I/O would not end: the kernel may still write there, so they are never freed."""


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

    spi_version = 2
    closed_error = tutti_runtime.RuntimeClosedError

    def __init__(
        self,
        layout: StoreLayout,
        rank: int,
        *,
        runtime: tutti_runtime.Runtime | None = None,
        io_timeout: float = 30.0,
    ) -> None:
        if not 0 < io_timeout <= MAX_SECONDS:
            raise ValueError(f"io_timeout must be above 0 and at most {MAX_SECONDS:.0f}, not {io_timeout}")
        check_store(layout)
        paths = prepare_files(layout, rank)
        self.layout = layout
        self.rank = rank
        self.io_timeout = io_timeout
        self._own_runtime = runtime is None
        self.runtime = make_runtime(layout) if runtime is None else runtime
        caps = self.runtime.caps()
        self.max_batch_requests: int = caps["max_batch_requests"]
        # A thread moves one request at a time: a batch must be enough of them for all threads.
        longest: int = THREAD_IO_BYTES if caps["data_path"] == "posix" else caps["max_single_io_bytes"]
        self._max_io_bytes = longest // SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT
        self._in_memory = all(map(is_memory, layout.directories))
        self._targets = np.zeros(max(paths) + 1, np.uint64)
        self._lock = threading.Lock()
        self._live: dict[int, Transfer] = {}
        self._window: StagingWindow | None = None
        self._memory = 0
        self._closed = False
        try:
            self._open(paths)
            self._progress = self._start_progress()
        except BaseException:
            self._close_runtime()
            raise

    def _open(self, paths: dict[int, str]) -> None:
        uris = [file_uri(path) for path in paths.values()]
        opened = self.runtime.open_batch(uris, writable=not self.layout.read_only)
        for number, result in zip(paths, opened):
            self._targets[number] = result.target or 0
        for path, result in zip(paths.values(), opened):
            if result.error is not None:
                code = getattr(result.error, "errno", None)
                raise RootError(
                    f"cannot open {path}: {result.error}", path=Path(path), errno=code
                ) from result.error

    def _start_progress(self) -> Progress:
        try:
            return Progress(self.runtime.completion_fd(), self._advance)
        except OSError as error:
            root = self.layout.directories[0]
            raise RootError(
                f"cannot wait for I/O below {root}: {error}", path=Path(root), errno=error.errno
            ) from error

    @property
    def data_path(self) -> str:
        """The runtime's data path of now: a device error may have moved it down since the start."""
        return str(self.runtime.caps()["data_path"])

    def chunk_ids(self, count: int) -> Sequence[int]:
        """Return the chunk slots 0 to ``count - 1``, in the order in which they should be filled."""
        if not 1 <= count <= self.layout.num_chunks:
            raise ValueError(
                f"{count} chunk ids were asked for; there is room for 1 to {self.layout.num_chunks}"
            )
        order = slot_order(self.layout)
        return range(count) if isinstance(order, range) else [slot for slot in order if slot < count]

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
        with self._lock:
            if self._closed:
                raise RuntimeError("the backend is shut down")
            if self._window is not None:
                raise RuntimeError("a staging window is bound already")
            self._memory = self.runtime.register_memory(window.address, window.nbytes, kind="host")
            self._window = window

    def write_segments(self, batch: SegmentBatch) -> Transfer:
        """Start to copy slots to files. Finished once written and flushed.

        Raises RuntimeError when the layout is read only.
        """
        if self.layout.read_only:
            raise RuntimeError(f"{self.layout.directories[0]} was opened to be read only")
        return self._start(batch, write=True)

    def read_segments(self, batch: SegmentBatch) -> Transfer:
        """Start to copy files to slots."""
        return self._start(batch, write=False)

    def check(self, batch: SegmentBatch) -> None:
        """Raise what ``write_segments`` would raise for a batch, and start nothing."""
        self._segments(batch)

    def wait_idle(self, deadline: float) -> bool:
        """Wait until everything in flight is finished; return False if the deadline passed first."""
        while True:
            with self._lock:
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
        with self._lock:
            if self._closed:
                return
            self._closed = True
        idle = self.wait_idle(time.monotonic() + SHUTDOWN_SECONDS)
        self._progress.stop()
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

    def _start(self, batch: SegmentBatch, *, write: bool) -> Transfer:
        segments = self._segments(batch)
        transfer = Transfer(self, segments, write=write)
        with self._lock:
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

    def requests(self, segments: Segments, alone: Sequence[int] | None = None, *, write: bool) -> Requests:
        """Return the requests that move all segments of a batch, or some of them each by its own request."""
        chosen = np.arange(len(segments)) if alone is None else np.asarray(alone)
        size, limit = self.layout.segment_bytes, self._max_io_bytes
        files, offsets = segments.files[chosen], segments.offsets[chosen]
        window_offsets = segments.window_offsets[chosen]
        if size > limit:
            pieces = np.arange(0, size, limit)
            skip = np.tile(pieces, len(chosen))
            files, offsets, window_offsets, chosen = (
                np.repeat(each, len(pieces)) for each in (files, offsets, window_offsets, chosen)
            )
            lengths = np.minimum(size - skip, limit)
            array = self._array(write, files, offsets + skip, window_offsets + skip, lengths)
            return self._ordered(Requests(array, chosen, np.ones(len(array), np.int64)), files, write=write)
        heads = np.arange(len(chosen))
        if alone is None:
            heads = run_heads(files, offsets, window_offsets, size, limit // size)
        count = np.diff(np.append(heads, len(chosen)))
        array = self._array(write, files[heads], offsets[heads], window_offsets[heads], count * size)
        return self._ordered(Requests(array, chosen[heads], count), files[heads], write=write)

    def _ordered(self, requests: Requests, files: Array, *, write: bool) -> Requests:
        """Return requests in the order in which threads should take them."""
        # Where one file takes one write at a time, threads that take neighbours would wait for each other.
        return requests.take(in_turn(files)) if write and self._in_memory else requests

    def flushes(self, files: Sequence[int]) -> Requests:
        """Return the requests that make earlier writes to files durable."""
        numbers = np.asarray(files)
        array = np.zeros(len(numbers), tutti_runtime.REQUEST_DTYPE)
        array["direction"] = tutti_runtime.FLUSH
        array["target"] = self._targets[numbers]
        return Requests(array, numbers, np.ones(len(numbers), np.int64))

    def _array(
        self, write: bool, files: Array, offsets: Array, window_offsets: Array, lengths: Array
    ) -> Array:
        array = np.zeros(len(files), tutti_runtime.REQUEST_DTYPE)
        array["direction"] = tutti_runtime.WRITE if write else tutti_runtime.READ
        array["memory"] = self._memory
        array["memory_offset"] = window_offsets
        array["target"] = self._targets[files]
        array["target_offset"] = offsets
        array["length"] = lengths
        return array

    def forget(self, transfer: Transfer) -> None:
        """Take a finished batch off the list."""
        with self._lock:
            self._live.pop(id(transfer), None)

    def wake(self) -> None:
        """Have all batches carried on soon."""
        self._progress.wake()

    def _advance(self) -> float | None:
        """Carry every batch on; return in how many seconds to do so again although nothing finishes."""
        with self._lock:
            live = list(self._live.values())
        for transfer in live:
            transfer.poll()
        moves = any(transfer.handles() for transfer in live)
        pauses = [transfer.next_try(others_move=moves) for transfer in live]
        return min((pause for pause in pauses if pause is not None), default=None)


def make_runtime(layout: StoreLayout) -> tutti_runtime.Runtime:
    """Make the runtime for a store's drives."""
    if all(map(is_memory, layout.directories)):
        # No device works for us there: every byte is copied by a processor, one of which io_uring would use.
        # Some are left to those who ask for it: threads that copy never sleep.
        threads = max(1, min(MAX_COPY_THREADS, len(os.sched_getaffinity(0)) * 3 // 4))
        return tutti_runtime.make_file_runtime(data_path="posix", direct="off", threads=threads)
    return tutti_runtime.make_file_runtime()


@contextmanager
def open_backend(layout: StoreLayout, data_path: str) -> Iterator[LocalStoreBackend]:
    """Open rank 0 of a store on one of the runtime's data paths; shut both down at the end.

    Raises RuntimeError, ValueError or RootError when that data path cannot be had here.
    """
    with tutti_runtime.make_file_runtime(data_path=data_path) as runtime:
        backend = LocalStoreBackend(layout, 0, runtime=runtime)
        try:
            yield backend
        finally:
            backend.shutdown()


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


def in_turn(files: Array) -> Array:
    """Return the order in which each file has its first request before any has its second, and so on."""
    by_file = np.argsort(files, kind="stable")
    starts = np.flatnonzero(np.diff(files[by_file], prepend=-1))
    turns = np.empty(len(files), np.int64)
    turns[by_file] = np.arange(len(files)) - np.repeat(starts, np.diff(np.append(starts, len(files))))
    return np.argsort(turns, kind="stable")


def run_heads(files: Array, offsets: Array, window_offsets: Array, size: int, longest: int) -> Array:
    """Return where runs of neighbours in file and window begin; none is longer than ``longest`` segments."""
    begins = np.ones(len(files), bool)
    begins[1:] = (np.diff(files) != 0) | (np.diff(offsets) != size) | (np.diff(window_offsets) != size)
    heads = np.flatnonzero(begins)
    place_in_run = np.arange(len(files)) - heads[np.cumsum(begins) - 1]
    return np.flatnonzero(place_in_run % longest == 0)
