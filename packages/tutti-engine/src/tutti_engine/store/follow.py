# SPDX-License-Identifier: Apache-2.0
"""Shows a reader's planner what the store's owner has stored and evicted since."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from array import array
from itertools import compress
from operator import ne
from pathlib import Path

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME
from tutti_engine.catalogue.connection import identify
from tutti_engine.catalogue.file import read_meta
from tutti_engine.catalogue.lists import row_of_slot
from tutti_engine.catalogue.reading import reading
from tutti_engine.catalogue.record import Record, as_records
from tutti_engine.errors import CatalogueError
from tutti_engine.planning.planner import Planner
from tutti_engine.store.view import LocalStoreView, fits

__all__ = ["ViewFollower"]

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0

PIECE_SLOTS = 8192
"""Slots whose generations are compared at once: some milliseconds, in which the log cannot be emptied."""

PIECE_PAUSE_SECONDS = 0.05

SETTLE_SECONDS = 30.0
"""How long after a change of the files every look counts: a commit is seen only after they have changed."""

EMPTY = -1


class ViewFollower:
    """Compares the catalogue's generations with those that the planner knows, until ``close``.

    At most every ``interval`` seconds, only if the files have changed of late, in pieces with pauses: a tenth
    of a core at most, and a few seconds for a million chunks.

    Args:
        view: the store; its ``records`` are what the planner has taken over.
        planner: a ``read_only`` one.
        interval: seconds between two looks.
    """

    def __init__(self, view: LocalStoreView, planner: Planner, *, interval: float = INTERVAL_SECONDS) -> None:
        self._view = view
        self._planner = planner
        self._interval = interval
        self._path = Path(view.directory) / CATALOGUE_NAME
        self._known = array("q", (EMPTY,)) * view.layout.num_chunks
        for slot, generation in zip(view.records.slots, view.records.generations):
            self._known[slot] = generation
        self._seen: object = None
        self._look_until = 0.0
        self._told = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tutti-follow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. Later calls do nothing."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                state = self._files()
                if state != self._seen:
                    self._seen, self._look_until = state, time.monotonic() + SETTLE_SECONDS
                if time.monotonic() < self._look_until:
                    if not self._look():
                        self._seen = None
                    self._told = False
            except Exception as error:
                self._seen = None
                if not self._told:
                    log.warning("%s: what is stored now cannot be seen: %s", self._path, error)
                self._told = True

    def _files(self) -> object:
        """Return what changes whenever the catalogue does."""
        found = []
        for tail in ("", "-wal"):
            path = Path(f"{self._path}{tail}")
            try:
                state = path.stat()
                found.append((identify(path), state.st_size, state.st_mtime_ns))
            except FileNotFoundError:
                found.append((None, 0, 0))
        return found

    def _look(self) -> bool:
        """Compare all slots; return whether the planner knows everything now."""
        done = True
        with reading(self._view.directory) as connection:
            if read_meta(connection).get("store_id") != self._view.layout.store_id:
                raise CatalogueError("the store was made anew; restart the server")
            for first in range(0, len(self._known), PIECE_SLOTS):
                done &= self._compare(connection, first)
                if self._stopped.wait(PIECE_PAUSE_SECONDS if first + PIECE_SLOTS < len(self._known) else 0):
                    return False
        return done

    def _compare(self, connection: sqlite3.Connection, first: int) -> bool:
        stop = min(first + PIECE_SLOTS, len(self._known))
        found = array("q", (EMPTY,)) * (stop - first)
        rows = connection.execute(
            "SELECT slot, generation FROM chunks WHERE slot BETWEEN ? AND ?", (first, stop - 1)
        ).fetchall()
        for slot, generation in rows:
            found[slot - first] = generation
        known = self._known[first:stop]
        changed = list(compress(range(first, stop), map(ne, found, known)))
        changes: list[tuple[int, Record | None]] = []
        for slot in changed:
            # Read once more: it may have been filled anew in between.
            row = row_of_slot(connection, slot)
            record = None
            if row is not None and fits(row, self._view.layout, self._view.ranks):
                record = next(iter(as_records([row])))
            changes.append((slot, record))
            self._known[slot] = EMPTY if record is None else record.generation
        later = self._planner.adopt(changes)
        for slot in later:
            self._known[slot] = EMPTY
        return not later
