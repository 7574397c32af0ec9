# SPDX-License-Identifier: Apache-2.0
"""The thread that carries batches on when the runtime says that I/O has finished."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

__all__ = ["Progress"]

log = logging.getLogger(__name__)


class Progress:
    """Sleeps until the runtime's completion descriptor or ``wake`` says that there is something to do.

    The descriptor is watched for edges and never read: its count stays for whoever shares the runtime.
    """

    def __init__(self, completion_fd: int, advance: Callable[[], float | None]) -> None:
        """Start the thread.

        Args:
            completion_fd: the runtime's eventfd; a duplicate is kept, so that it may be closed at any time.
            advance: carries everything on, without blocking; returns after how many seconds to call it again
                if nothing finishes before, None for never.

        Raises OSError where there is no descriptor to be had; nothing stays open then.
        """
        self._advance = advance
        with contextlib.ExitStack() as undo:
            self._completion = os.dup(completion_fd)
            undo.callback(os.close, self._completion)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._wake)
            self._epoll = select.epoll()
            undo.callback(self._epoll.close)
            for descriptor in (self._completion, self._wake):
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            self._stopping = False
            self._lock = threading.Lock()
            self._thread = threading.Thread(target=self._run, name="tutti-progress", daemon=True)
            self._thread.start()
            undo.pop_all()

    def wake(self) -> None:
        """Have ``advance`` called soon; does nothing once stopped."""
        with self._lock:
            if not self._stopping:
                os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread and close the descriptors. Call it once."""
        with self._lock:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._wake)
        os.close(self._completion)

    def _run(self) -> None:
        pause: float | None = None
        while not self._stopping:
            self._epoll.poll(pause)
            try:
                pause = self._advance()
            except Exception:
                # One batch's defect must not stop the others.
                log.exception("a batch of the local store could not be carried on")
