# SPDX-License-Identifier: Apache-2.0
"""The thread that commits what is queued for the catalogue, again and again until the disk takes it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tutti_engine.catalogue import file
from tutti_engine.catalogue.ahead import Ahead
from tutti_engine.catalogue.batch import Batch, OnDurable, Removal, apply
from tutti_engine.catalogue.connection import Connection
from tutti_engine.catalogue.file import MAX_COMMIT_OPERATIONS
from tutti_engine.catalogue.link import Link
from tutti_engine.catalogue.queue import ChangeQueue
from tutti_engine.errors import CatalogueError

__all__ = ["CLOSING_RETRY", "CatalogueWriter"]

log = logging.getLogger(__name__)

COMMIT_INTERVAL = 0.05
"""Seconds in which changes are collected for one commit: one flush of the drive's cache for all of them."""

TOUCH_INTERVAL = 5.0
"""Seconds that touches wait for a commit that happens anyway before they get one of their own."""

AHEAD_PAUSE = 0.01
"""Seconds between pieces of work that nobody waits for."""

FIRST_RETRY, LAST_RETRY = 0.1, 5.0
"""Seconds between attempts of a failing commit, doubled from the first to the last."""

COMMIT_PATIENCE = 0.5
"""Seconds that one attempt waits for locks of other processes; a failed one is repeated anyway."""

CLOSING_RETRY = 0.1
"""Longest pause between attempts of a closing catalogue."""

REOPEN_AFTER = 3
"""Failed attempts after which the database is opened anew: its file may be another one after a remount."""

T = TypeVar("T")


class CatalogueWriter:
    """The part of ``Catalogue`` that writes: its thread alone uses the connection."""

    def __init__(
        self, path: Path, connection: Connection, meta: dict[str, Any], owned: Callable[[], bool]
    ) -> None:
        self._path = path
        self._meta = meta
        self._link = Link(path, connection, meta, owned)
        self._ahead = Ahead(path)
        self._changed = threading.Condition()
        self._queue = ChangeQueue()
        self._calls: list[Callable[[], None]] = []
        self._wanted = self._failures = 0
        self._retry_pause = 0.0
        self._give_up: float | None = None
        self._stopped = False
        self._at_end: list[Callable[[], None]] = []
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="tutti-catalogue", daemon=True)
        self._thread.start()

    def _call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the writer thread and return what it returns.

        A database that turns out damaged is replaced, and the new one asked.
        """
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                if self._stopped:
                    raise CatalogueError("it is closed")
                results.append(self._on_sound(function))
            except BaseException as error:
                errors.append(error)
            done.set()

        with self._changed:
            if self._give_up is not None:
                raise CatalogueError(f"the catalogue {self._path} is closed")
            self._calls.append(run)
            self._changed.notify_all()
        done.wait()
        if errors:
            raise CatalogueError(f"cannot use the catalogue {self._path}: {errors[0]}") from errors[0]
        return results[0]

    def _on_sound(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except Exception as error:
            if not self._replaced(error):
                raise
        return function()

    def _run(self) -> None:
        try:
            while not self._is_over():
                with self._changed:
                    ahead = self._ahead.has_work and not self._failures
                    self._changed.wait_for(self._has_work, AHEAD_PAUSE if ahead else TOUCH_INTERVAL)
                    self._changed.wait_for(self._is_urgent, self._pause())
                    calls, self._calls = self._calls, []
                    batch = self._queue.take()
                for call in calls:
                    call()
                self._commit(batch)
                self._work_ahead()
            self._finish_table()
        finally:
            self._link.drop()
            self._ahead.close()
            with self._changed:
                self._stopped = True
                calls = self._calls
                self._changed.notify_all()
            for function in calls + self._at_end:
                function()

    def _work_ahead(self) -> None:
        """Do a piece of what is done beside the work: verify rows, make the slot table."""
        if self._failures or not self._is_idle():
            return
        try:
            if self._ahead.has_work:
                self._ahead.step(self._link.get())
        except Exception as error:
            self._ahead.stop_verifying()
            try:
                if not self._replaced(error):
                    log.info("%s: work ahead of need failed: %s", self._path, error)
            except Exception as refusal:
                # The thread must live on: commits see the damage as well, and try again.
                log.warning("%s is damaged (%s) and cannot be replaced now: %s", self._path, error, refusal)

    def _is_idle(self) -> bool:
        with self._changed:
            return not self._calls and self._give_up is None and len(self._queue) < MAX_COMMIT_OPERATIONS

    def _finish_table(self) -> None:
        """Spare the next start the list of changes, when there is time left."""
        if not self._failures:
            with contextlib.suppress(Exception):
                self._ahead.finish(self._link.get(CLOSING_RETRY))

    def _replaced(self, error: Exception) -> bool:
        """Begin a new database if the error means that this one is damaged."""
        if not file.is_damage(error):
            return False
        self._link.replace_damaged(str(error))
        return True

    def _is_over(self) -> bool:
        with self._changed:
            if self._give_up is None:
                return False
            done = not self._failures and self._queue.is_durable and not self._calls
            return done or time.monotonic() >= self._give_up

    def _has_work(self) -> bool:
        return bool(self._calls or self._give_up is not None or not self._queue.is_durable)

    def _is_urgent(self) -> bool:
        if self._calls:
            return True
        wanted = self._wanted > self._queue.committed or len(self._queue) >= MAX_COMMIT_OPERATIONS
        return (wanted or self._give_up is not None) and not self._retry_pause

    def _pause(self) -> float:
        if self._give_up is not None:
            return max(0.0, min(self._retry_pause, CLOSING_RETRY, self._give_up - time.monotonic()))
        if self._retry_pause:
            return self._retry_pause
        return 0.0 if self._queue.is_durable else COMMIT_INTERVAL

    def _patience(self) -> float:
        """Return how long this attempt may wait for locks of other processes."""
        if self._give_up is None:
            return COMMIT_PATIENCE
        return max(0.001, min(COMMIT_PATIENCE, self._give_up - time.monotonic()))

    def _commit(self, batch: Batch) -> None:
        cleared: dict[int, list[int]] = {}
        try:
            connection = self._link.get(self._patience())
            if not batch.empty:
                file.bound_log(connection, self._path)
                with file.transaction(connection):
                    self._ahead.before(connection, batch)
                    cleared = apply(connection, batch)
                    self._ahead.after(connection, batch)
                self._ahead.committed(connection)
        except Exception as error:  # whatever it was, later changes need the thread
            self._keep(batch, error)
            return
        with self._changed:
            self._queue.discard(batch)
            healed, self._failures, self._last_error = self._failures, 0, None
            self._retry_pause = 0.0
        if healed:
            log.info("%s can be written again", self._path)
        for position, change in enumerate(batch.changes):
            if isinstance(change, Removal):
                self._tell(change.on_durable, cleared.get(position, change.slots or ()))
        with self._changed:
            self._queue.committed = batch.upto
            self._changed.notify_all()

    def _keep(self, batch: Batch, error: Exception) -> None:
        """Put back what a failed transaction held and close the database after some failures."""
        with self._changed:
            self._queue.put_back(batch)
            self._failures += 1
            self._retry_pause = min(LAST_RETRY, max(FIRST_RETRY, 2 * self._retry_pause))
            self._last_error = str(error)
        if file.is_damage(error):
            with contextlib.suppress(Exception):
                self._replaced(error)
                return
        if self._failures == 1:
            log.warning("%s cannot be written (%s): new chunks are not kept until it can", self._path, error)
        if self._failures % REOPEN_AFTER == 0:
            self._link.drop()

    def _tell(self, on_durable: OnDurable, slots: Sequence[int]) -> None:
        try:
            on_durable(slots)
        except Exception:
            log.exception("%s: a callback failed; its %d slots may stay unused", self._path, len(slots))
