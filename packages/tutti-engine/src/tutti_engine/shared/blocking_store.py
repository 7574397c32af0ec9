# SPDX-License-Identifier: Apache-2.0
"""A shared store over calls that block: threads make them, so that nobody who must not wait does.

Reads and writes have threads of their own, so that neither waits behind the other. Python cannot end a call
that never returns. Its thread and its slots stay taken, what waits behind it goes to the other threads of its
direction, and once all of those hang every batch of it waits: the caller's deadline ends it there, and its
breaker stops asking.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeAlias

from tutti_engine.backend import StagingWindow
from tutti_engine.shared.store import ObjectBatch

__all__ = ["BatchHandle", "BlockingStore"]

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0

_Tasks: TypeAlias = "SimpleQueue[Callable[[], None] | None]"


class BatchHandle:
    """A batch that threads work on; finished once each of its objects has its status."""

    def __init__(self, count: int) -> None:
        self._statuses = [0] * count
        self._left = count
        self._lock = threading.Lock()
        self._finished = threading.Event()
        if not count:
            self._finished.set()

    def end(self, first: int, statuses: Sequence[int]) -> None:
        """Take the statuses of some neighbouring objects, each once."""
        with self._lock:
            self._statuses[first : first + len(statuses)] = statuses
            self._left -= len(statuses)
            if self._left <= 0:
                self._finished.set()

    def poll(self) -> bool:
        """Return whether all are finished."""
        return self._finished.is_set()

    def wait(self, deadline: float) -> bool:
        """Wait until all are finished or ``time.monotonic()`` reaches ``deadline``; return ``poll()``."""
        return self._finished.wait(max(0.0, deadline - time.monotonic()))

    def status(self) -> Sequence[int]:
        """Return the statuses. Raises RuntimeError before the batch is finished."""
        if not self._finished.is_set():
            raise RuntimeError("the batch is still in flight; its status is known once poll() returns True")
        return list(self._statuses)


class BlockingStore(ABC):
    """The part of a ``SharedStore`` that turns calls that block into batches.

    A subclass moves a few objects at a time in ``put`` and ``get``, which any of the threads calls.
    """

    data_path = "shared"

    def __init__(self, *, threads: int = 4, objects_per_call: int = 8, niceness: int = 0) -> None:
        """Start the threads.

        Args:
            threads: calls of each direction that are made at a time, at least 1.
            objects_per_call: objects that one call moves at most, at least 1.
            niceness: by how much the threads give way to others, as ``nice`` counts it. For calls that ask
                again and again until others have done the work.
        """
        if threads < 1 or objects_per_call < 1:
            raise ValueError(
                f"threads and objects_per_call are at least 1, not {threads} and {objects_per_call}"
            )
        self._objects_per_call = objects_per_call
        self._niceness = niceness
        self._window: StagingWindow | None = None
        self._headers: StagingWindow | None = None
        self._reads: _Tasks = SimpleQueue()
        self._writes: _Tasks = SimpleQueue()
        self._changed = threading.Condition()
        self._under_way = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(tasks,), name=f"tutti-shared-{name}-{n}", daemon=True)
            for name, tasks in (("get", self._reads), ("put", self._writes))
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @abstractmethod
    def put(self, names: Sequence[str], pieces: Sequence[tuple[memoryview, memoryview]]) -> Sequence[int]:
        """Write objects, each a header and a body; return a status each. May raise: all have failed then."""

    @abstractmethod
    def get(self, names: Sequence[str], pieces: Sequence[tuple[memoryview, memoryview]]) -> Sequence[int]:
        """Read objects into headers and bodies; as ``put``."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Let go of what the store holds; called once, after the threads have ended or were given up."""

    def bind_staging(self, window: StagingWindow, headers: StagingWindow) -> None:
        """Take the windows. Raises RuntimeError the second time, ValueError for fewer headers than slots."""
        if headers.num_slots < window.num_slots:
            raise ValueError(f"{headers.num_slots} headers do not go with {window.num_slots} slots")
        with self._changed:
            if self._window is not None:
                raise RuntimeError("a staging window is bound already")
            self._window, self._headers = window, headers

    def write_objects(self, batch: ObjectBatch) -> BatchHandle:
        """Have the threads write a batch."""
        return self._start(batch, self._writes, self.put)

    def read_objects(self, batch: ObjectBatch) -> BatchHandle:
        """Have the threads read a batch."""
        return self._start(batch, self._reads, self.get)

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no call is under way; return False if ``time.monotonic()`` came to ``deadline``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, max(0.0, deadline - time.monotonic()))

    def shutdown(self) -> None:
        """End the threads; those that hang are left behind."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for number in range(len(self._threads)):
            (self._reads, self._writes)[number % 2].put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.close()

    def _start(
        self,
        batch: ObjectBatch,
        tasks: _Tasks,
        call: Callable[[Sequence[str], Sequence[tuple[memoryview, memoryview]]], Sequence[int]],
    ) -> BatchHandle:
        pieces = self._pieces(batch)
        handle = BatchHandle(len(batch))
        starts = range(0, len(batch), self._objects_per_call)
        with self._changed:
            if self._closed:
                raise RuntimeError("the shared store is shut down")
            self._under_way += len(starts)
        for first in starts:
            some = slice(first, first + self._objects_per_call)
            tasks.put(self._task(handle, first, batch.names[some], pieces[some], call))
        return handle

    def _task(
        self,
        handle: BatchHandle,
        first: int,
        names: Sequence[str],
        pieces: Sequence[tuple[memoryview, memoryview]],
        call: Callable[[Sequence[str], Sequence[tuple[memoryview, memoryview]]], Sequence[int]],
    ) -> Callable[[], None]:
        def run() -> None:
            statuses: Sequence[int] = [errno.EIO] * len(names)
            try:
                found = call(names, pieces)
                if len(found) == len(names):
                    statuses = found
            except OSError as error:
                statuses = [error.errno or errno.EIO] * len(names)
            except Exception:
                logger.exception("Tutti: a call of the shared store failed.")
            finally:
                handle.end(first, statuses)

        return run

    def _pieces(self, batch: ObjectBatch) -> list[tuple[memoryview, memoryview]]:
        """Return each object's memory, after the whole batch was checked."""
        if self._window is None or self._headers is None:
            raise RuntimeError("no staging window is bound; call bind_staging first")
        size, head = self._window.slot_bytes, self._headers.slot_bytes
        last = self._window.num_slots - batch.segments
        found = []
        for slot in batch.first_slots:
            if not 0 <= slot <= last:
                raise ValueError(f"{batch.segments} slots from {slot} on are not in the window")
            header = self._headers.memory[slot * head : (slot + 1) * head]
            found.append((header, self._window.memory[slot * size : (slot + batch.segments) * size]))
        return found

    def _run(self, tasks: _Tasks) -> None:
        if self._niceness:
            give_way(self._niceness)
        while (task := tasks.get()) is not None:
            task()
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()


def give_way(niceness: int) -> None:
    """Lower the calling thread's priority, where threads have one of their own: on Linux."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(19, now + niceness))
