# SPDX-License-Identifier: Apache-2.0
"""A shared store that may not be there yet: connected to in the background, again and again."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from tutti_engine.backend import StagingWindow
from tutti_engine.shared.blocking_store import BatchHandle
from tutti_engine.shared.store import ObjectBatch, ObjectHandle, SharedStore

__all__ = ["ConnectingStore"]

logger = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0

LONGEST_WAIT = 2.0
"""Seconds that a read waits for the first try, fewer than reads have as a rule: a try that hangs must
neither keep their memory nor pass for a store that does."""

SHUTDOWN_SECONDS = 10.0


class PendingRead:
    """A batch that is read once the store is there; without one it has failed after ``LONGEST_WAIT``."""

    def __init__(self, batch: ObjectBatch) -> None:
        self._batch = batch
        self._end = time.monotonic() + LONGEST_WAIT
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._inner: ObjectHandle | None = None

    def begin(self, read: Callable[[ObjectBatch], ObjectHandle]) -> None:
        """Go on as what ``read`` returns; the first call counts."""
        with self._lock:
            if self._inner is None:
                self._inner = read(self._batch)
                self._begun.set()

    def poll(self) -> bool:
        """Return whether the batch is finished."""
        if self._inner is None and time.monotonic() >= self._end:
            self.begin(_refused)
        return self._inner is not None and self._inner.poll()

    def wait(self, deadline: float) -> bool:
        """Wait until it is, or ``time.monotonic()`` reaches ``deadline``; return ``poll()``."""
        self._begun.wait(max(0.0, min(deadline, self._end) - time.monotonic()))
        return self.poll() or (self._inner is not None and self._inner.wait(deadline))

    def status(self) -> Sequence[int]:
        """Return the statuses. Raises RuntimeError before the batch is finished."""
        if self._inner is None:
            raise RuntimeError("the batch waits for its store; its status is known once poll() returns True")
        return self._inner.status()


class ConnectingStore:
    """A ``SharedStore`` that never waits for the one behind it; until that is there all is ``ENOTCONN``.

    Only reads that come during the first try are kept until that has ended: a server has just started, and
    what it was promised is computed if this takes too long.

    Args:
        connect: makes the client. It may block, for ever at worst, and raise: OSError is tried again after
            pauses of 1 to 15 seconds, anything else is final and told once in the log.
        first_pause: seconds before the second try.
    """

    def __init__(self, connect: Callable[[], SharedStore], *, first_pause: float = FIRST_PAUSE) -> None:
        self._connect = connect
        self._pause = first_pause
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._settled = threading.Event()
        self._store: SharedStore | None = None
        self._windows: tuple[StagingWindow, StagingWindow] | None = None
        self._why = "not connected yet"
        # None once the first try has ended.
        self._pending: list[PendingRead] | None = []
        self._final = False
        self._thread = threading.Thread(target=self._run, name="tutti-connect", daemon=True)
        self._thread.start()

    @property
    def data_path(self) -> str:
        """What moves the bytes."""
        store = self._store
        return "connecting" if store is None else str(getattr(store, "data_path", type(store).__name__))

    @property
    def why_not(self) -> str | None:
        """Why there is no connection, None if there is one."""
        return None if self._store is not None else self._why

    @property
    def is_hopeless(self) -> bool:
        """Whether no connection will come, because the settings or the installation are wrong."""
        return self._final

    def wait_settled(self, timeout: float) -> bool:
        """Wait until there is a connection, or none will come; return whether that is so."""
        return self._settled.wait(timeout)

    def bind_staging(self, window: StagingWindow, headers: StagingWindow) -> None:
        """Take the windows, for the store once it is there. Raises RuntimeError the second time."""
        with self._lock:
            if self._windows is not None:
                raise RuntimeError("a staging window is bound already")
            self._windows = window, headers
            store = self._store
        if store is not None:
            store.bind_staging(window, headers)

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        """Ask the store. Raises OSError with ``ENOTCONN`` where there is none."""
        return self._connected().exists(names)

    def write_objects(self, batch: ObjectBatch) -> ObjectHandle:
        """Write through the store."""
        store = self._store
        return _refused(batch) if store is None else store.write_objects(batch)

    def read_objects(self, batch: ObjectBatch) -> ObjectHandle:
        """Read from the store."""
        store = self._store
        if store is None:
            read = PendingRead(batch)
            with self._lock:
                store = self._store
                if store is None and self._pending is not None:
                    # Of a try that hangs for good nobody else clears them away.
                    self._pending = [*(each for each in self._pending if not each.poll()), read]
                    return read
        return _refused(batch) if store is None else store.read_objects(batch)

    def remove(self, names: Sequence[str]) -> None:
        """Have the store forget objects. Raises OSError with ``ENOTCONN`` where there is none."""
        self._connected().remove(names)

    def wait_idle(self, deadline: float) -> bool:
        """Wait until the store is idle; without one it is."""
        if not all(read.wait(deadline) for read in list(self._pending or ())):
            return False
        store = self._store
        return store is None or store.wait_idle(deadline)

    def shutdown(self) -> None:
        """Let the store go; one that is still being connected to is let go when it answers."""
        self._closing.set()
        self._end_first_try(None)
        store = self._store
        if store is not None:
            # A client that hangs may never come back from this.
            closer = threading.Thread(target=store.shutdown, name="tutti-shared-close", daemon=True)
            closer.start()
            closer.join(SHUTDOWN_SECONDS)

    def _connected(self) -> SharedStore:
        store = self._store
        if store is None:
            raise OSError(errno.ENOTCONN, f"the shared store is not there: {self._why}")
        return store

    def _run(self) -> None:
        told = False
        while not self._closing.is_set():
            try:
                self._take(self._connect())
                if told:
                    logger.info("Tutti: the shared store answers.")
                return
            except OSError as error:
                self._why = str(error) or os.strerror(error.errno or errno.EIO)
                if not told:
                    logger.warning("Tutti: the shared store cannot be reached, it is tried again: %s", error)
                told = True
                self._end_first_try(None)
            except Exception as error:
                self._why, self._final = str(error) or repr(error), True
                self._settled.set()
                self._end_first_try(None)
                logger.warning("Tutti: the server runs without the shared store: %s", error)
                return
            self._closing.wait(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _take(self, store: SharedStore) -> None:
        taken = bound = False
        try:
            while not (taken or self._closing.is_set()):
                with self._lock:
                    windows = self._windows
                    if (windows is None or bound) and not self._closing.is_set():
                        self._store = store
                        self._settled.set()
                        taken = True
                if not (taken or bound) and windows is not None:
                    # May take long, and reads and the end wait for the lock.
                    store.bind_staging(*windows)
                    bound = True
        finally:
            if not taken:
                store.shutdown()
        self._end_first_try(store if taken else None)

    def _end_first_try(self, store: SharedStore | None) -> None:
        """Go on with what waits for it: read it, or refuse it where there is no store."""
        with self._lock:
            pending, self._pending = self._pending, None
        for read in pending or ():
            try:
                read.begin(_refused if store is None else store.read_objects)
            except Exception as error:
                logger.warning("Tutti: a read that waited for the shared store fails: %s", error)
                read.begin(_refused)


def _refused(batch: ObjectBatch) -> BatchHandle:
    handle = BatchHandle(len(batch))
    handle.end(0, [errno.ENOTCONN] * len(batch))
    return handle
