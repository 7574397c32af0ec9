# SPDX-License-Identifier: Apache-2.0
"""A planner's work beside the requests, also while there are none."""

from __future__ import annotations

import logging
import threading
import time

from tutti_engine.planning.planner import Planner

__all__ = ["Upkeep"]

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.25

PIECE_PAUSE_SECONDS = 0.001
"""Time between two pieces, in which requests are planned."""


class Upkeep:
    """Calls ``Planner.keep_up`` a few times a second, and at once when room gets low, until ``close``."""

    def __init__(self, planner: Planner, interval: float = INTERVAL_SECONDS) -> None:
        self._planner = planner
        self._interval = interval
        self._wanted = threading.Event()
        self._stopped = False
        planner.leave_room_to(self._wanted.set)
        self._thread = threading.Thread(target=self._run, name="tutti-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; plans make room themselves then. Later calls do nothing."""
        self._planner.leave_room_to(None)
        self._stopped = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._interval)
            self._wanted.clear()
            if self._stopped:
                return
            try:
                while self._planner.keep_up():
                    time.sleep(PIECE_PAUSE_SECONDS)
            except Exception:
                log.exception("Tutti: room is not made ahead of need any more; plans make it themselves.")
                self._planner.leave_room_to(None)
                return
