# SPDX-License-Identifier: Apache-2.0
"""A thread that runs tasks one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Lane"]


logger = logging.getLogger(__name__)


class Lane:
    """Runs tasks in the order in which they came.

    One that raises is logged and costs no later one its turn.
    """

    def __init__(self, name: str) -> None:
        self._tasks: deque[Callable[[], None] | None] = deque()
        self._available = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], None]) -> None:
        """Add a task; never waits."""
        self._tasks.append(task)
        self._available.release()

    def stop(self, deadline: float) -> None:
        """End after the tasks that are queued.

        Wait for it until ``time.monotonic()`` reaches ``deadline``.
        """
        self._tasks.append(None)
        self._available.release()
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            self._available.acquire()
            task = self._tasks.popleft()
            if task is None:
                return
            try:
                task()
            except Exception:
                logger.exception("Tutti: a task of %s failed.", self._thread.name)
