# SPDX-License-Identifier: Apache-2.0
"""The list of chunks that are safely on disk, in SQLite, off the way of every request.

A row is written only after its chunk's data is durable, and a slot is given back only after its row's removal
is durable: what the catalogue says after a crash may be too little, never too much.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tutti_engine import catalogue_file as file
from tutti_engine.catalogue_ahead import Ahead
from tutti_engine.catalogue_batch import Batch, OnDurable, Removal, apply
from tutti_engine.catalogue_connection import Connection, DamagedError
from tutti_engine.catalogue_file import CATALOGUE_NAME, MAX_COMMIT_OPERATIONS
from tutti_engine.catalogue_link import Link
from tutti_engine.catalogue_lists import retired_slots
from tutti_engine.catalogue_reading import read_counters, read_records, resident_chunks
from tutti_engine.catalogue_record import Record, checked
from tutti_engine.catalogue_residents import Residents
from tutti_engine.checksum_table import StoredChecksums
from tutti_engine.errors import CatalogueError

__all__ = ["CATALOGUE_NAME", "Catalogue", "Record", "read_counters", "resident_chunks"]

log = logging.getLogger(__name__)

MAX_QUEUED_PUTS = 65_536
"""Records waiting for a disk that refuses them; beyond that new ones are dropped and counted."""

MAX_QUEUED_TOUCHES = 65_536

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


class Catalogue:
    """The one writer of a store's catalogue.

    Any thread may call any method; only those that say so wait for the disk. Changes are queued in order and
    committed together by a thread of this object. A commit that fails is kept, retried with growing pauses
    and shown in ``last_error``; no caller sees an exception.

    Before each commit, and every few seconds without one, the thread looks whether the database at its path
    is still the one that it writes. If it was deleted or replaced, a new one is begun, with one warning: what
    is put from then on survives a restart, earlier rows and counters do not. If the whole store was deleted
    or replaced (``owned`` says so), commits fail until it is back: other files than those at the path now
    hold the data, and the path may be another owner's.
    """

    def __init__(
        self, path: Path, connection: Connection, meta: dict[str, Any], owned: Callable[[], bool]
    ) -> None:
        self._path = path
        self._meta = meta
        self._link = Link(path, connection, meta, owned)
        self._ahead = Ahead(path)
        self._changed = threading.Condition()
        self._queue: deque[Record | Removal] = deque()
        self._touched: dict[bytes, int] = {}
        self._added: dict[str, int] = {}
        self._calls: list[Callable[[], None]] = []
        self._queued_puts = self._enqueued = self._committed = self._wanted = 0
        self._failures = 0
        self._retry_pause = 0.0
        self._give_up: float | None = None
        self._stopped = False
        self._at_end: list[Callable[[], None]] = []
        self._last_error: str | None = None
        self._dropped_puts = 0
        self._thread = threading.Thread(target=self._run, name="tutti-catalogue", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        layout_facts: Mapping[str, Any],
        owned: Callable[[], bool] = lambda: True,
    ) -> Catalogue:
        """Open or create the database ``path``.

        A file that is damaged, of another schema or no catalogue at all is renamed to ``<path>.damaged-<n>``
        and an empty one takes its place; earlier ones of that name are removed. Other ``layout_facts`` (JSON
        values) than last time drop every row and all of ``meta``: the data lies elsewhere now. Each says so
        in one log line.

        ``owned`` tells whether the path is still the caller's; it is asked from the writer thread.

        Raises CatalogueError when no database can be had there: no room, no permission.
        """
        path = Path(path)
        try:
            connection, meta = file.open_or_replace(path, layout_facts)
        except (sqlite3.Error, OSError, DamagedError) as error:
            raise CatalogueError(
                f"cannot open the catalogue {path}: {error}; check space and permissions of {path.parent}"
            ) from error
        return cls(path, connection, meta, owned)

    # Reading and settings, for the store's start.

    def records(self) -> list[Record]:
        """Return all rows, waiting for the writer thread. Raises CatalogueError when they cannot be read."""
        return self._call(lambda: read_records(self._link.get()))

    def residents(
        self, num_slots: int, ranks: int, part_bytes: int, *, before_reading: Callable[[], None] | None = None
    ) -> Residents:
        """Return all rows as columns, from the slot table beside the database where that can be believed.

        From now on the table is kept in step. ``before_reading`` is called, in this thread, when every row
        has to come from the database: the moment to drop those that are no good.

        Args:
            num_slots: places of the store; rows have slots below it.
            ranks: parts of a row's checksums.
            part_bytes: bytes of one part.

        Raises CatalogueError when the rows cannot be read.
        """
        sums = StoredChecksums(num_slots, ranks, part_bytes)
        found = self._call(lambda: self._ahead.load(self._link.get(), sums))
        if found is None:
            if before_reading is not None:
                before_reading()
            found = self._call(lambda: self._ahead.read(self._link.get(), sums))
        return found

    @property
    def meta(self) -> dict[str, Any]:
        """A copy of the values stored by ``set_meta``, and the layout facts."""
        return dict(self._meta)

    def set_meta(self, **values: Any) -> None:
        """Store JSON values durably, waiting for it. Raises CatalogueError when that fails."""
        self._call(lambda: file.write_meta(self._link.get(), values))
        self._meta.update(values)

    def drop_rows(self, condition: str, values: Sequence[Any] = ()) -> int:
        """Delete the rows that match an SQL condition, durably, waiting for it; return how many they were.

        Raises CatalogueError when that fails.
        """
        return self._call(lambda: file.delete_where(self._link.get(), condition, values))

    def retired_slots(self, limit: int) -> list[int]:
        """Return the slots that are not used any more, waiting for the writer thread.

        More than ``limit`` are no sign of a bad place but of lost files: then all of them are forgiven.
        """
        return self._call(lambda: retired_slots(self._link.get(), limit))

    def shrink(self) -> None:
        """Give the space of deleted rows back to the file system, waiting for it. Raises CatalogueError."""
        self._call(lambda: file.shrink(self._link.get()))

    # Changes.

    def put(self, record: Record) -> None:
        """Queue one record, replacing those with its key or slot. Dropped and counted when the queue is full.

        A ``last_used`` out of range is clamped. Raises ValueError for a record that no table could hold.
        """
        record = checked(record)
        with self._changed:
            if self._give_up is not None or self._queued_puts >= MAX_QUEUED_PUTS:
                self._dropped_puts += 1
                return
            self._queued_puts += 1
            self._enqueue(record)

    def remove(self, slots: Sequence[int], on_durable: OnDurable, *, suspect: bool = False) -> None:
        """Queue the removal of the rows of ``slots``; never dropped.

        ``suspect`` slots held what did not verify. It may have been their drive: such a slot is filled once
        more, and after ``MAX_FAILURES`` of them it is left out of the call and never used again (see
        ``retired_slots``).

        ``on_durable`` is called from the writer thread once no crash can bring the rows back, and not before.
        It gets the slots, those without a row too; many slots come in several calls. It must be quick and
        must not wait for this catalogue.
        """
        with self._changed:
            for start in range(0, len(slots), MAX_COMMIT_OPERATIONS):
                some = tuple(slots[start : start + MAX_COMMIT_OPERATIONS])
                self._enqueue(Removal(some, on_durable, suspect))

    def clear(self, on_durable: OnDurable) -> None:
        """Queue the removal of every row; never dropped.

        ``on_durable`` is called once, with the slots that had a row: those whose records were dropped or lost
        are not among them. ``flush`` tells whether it was in time.
        """
        with self._changed:
            self._enqueue(Removal(None, on_durable))

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that chunks were used now. May be lost."""
        now = max(0, int(time.time()))
        with self._changed:
            for key in keys:
                if len(self._touched) < MAX_QUEUED_TOUCHES or key in self._touched:
                    self._touched[key] = now

    def add(self, name: str, delta: int) -> None:
        """Raise a lifetime counter.

        Raises ValueError for a negative ``delta``: counters never go backwards.
        """
        if delta < 0:
            raise ValueError(f"counter {name!r} cannot be raised by {delta}")
        if delta:
            with self._changed:
                self._added[name] = self._added.get(name, 0) + delta
                self._note()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was queued before is durable and its callbacks were called.

        That covers ``put``, ``remove``, ``clear`` and ``add`` of any thread, not ``touch`` and not records
        that were dropped. Returns False if any of it is not durable after ``timeout`` seconds; it stays
        queued. An attempt is made at once, even in the pause after a failure.
        """
        with self._changed:
            self._note()
            target = self._wanted = self._enqueued
            self._retry_pause = 0.0
            self._changed.wait_for(lambda: self._committed >= target or self._stopped, timeout)
            return self._committed >= target

    def close(self, timeout: float = 5.0) -> bool:
        """Commit what is queued, and stop; all of it within ``timeout`` seconds.

        Returns whether all of it is durable. The thread may live on for a while when the disk does not
        answer: see ``when_stopped``. A second call waits for the first one's deadline at most.
        """
        with self._changed:
            first = self._give_up is None
            if self._give_up is None:
                self._give_up = time.monotonic() + timeout
                self._retry_pause = 0.0
                self._note()
        self._thread.join(max(0.0, self._give_up - time.monotonic()))
        with self._changed:
            if not self._stopped:
                self._link.interrupt()
        done = not self._queue and self._committed >= self._enqueued
        if first and not done:
            reason = self._last_error or "the disk does not answer"
            log.warning("%s: the last changes are lost: %s", self._path, reason)
        return done

    def when_stopped(self, function: Callable[[], None]) -> None:
        """Call ``function`` once nothing of this catalogue touches its files any more, now if it is so.

        Until then whoever else opens the store could lose to a late write. After ``close``; the call comes
        from any thread.
        """
        with self._changed:
            if not self._stopped:
                self._at_end.append(function)
                return
        function()

    @property
    def table_complete(self) -> bool:
        """Whether the next start can be a fast one: nothing is left to verify or to copy."""
        return not self._ahead.has_work

    @property
    def last_error(self) -> str | None:
        """Why the last commit failed; None after one that succeeded."""
        return self._last_error

    @property
    def dropped_puts(self) -> int:
        """Records given up because the queue was full."""
        return self._dropped_puts

    def _enqueue(self, change: Record | Removal) -> None:
        self._queue.append(change)
        self._note()

    def _note(self) -> None:
        self._enqueued += 1
        self._changed.notify_all()

    # The writer thread. It alone uses the connection.

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
                    batch = self._take()
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
            done = not self._failures and self._committed >= self._enqueued and not self._calls
            return done or time.monotonic() >= self._give_up

    def _has_work(self) -> bool:
        return bool(self._calls or self._give_up is not None or self._enqueued > self._committed)

    def _is_urgent(self) -> bool:
        if self._calls:
            return True
        wanted = self._wanted > self._committed or len(self._queue) >= MAX_COMMIT_OPERATIONS
        return (wanted or self._give_up is not None) and not self._retry_pause

    def _pause(self) -> float:
        if self._give_up is not None:
            return max(0.0, min(self._retry_pause, CLOSING_RETRY, self._give_up - time.monotonic()))
        if self._retry_pause:
            return self._retry_pause
        return COMMIT_INTERVAL if self._enqueued > self._committed else 0.0

    def _patience(self) -> float:
        """Return how long this attempt may wait for locks of other processes."""
        if self._give_up is None:
            return COMMIT_PATIENCE
        return max(0.001, min(COMMIT_PATIENCE, self._give_up - time.monotonic()))

    def _take(self) -> Batch:
        """Copy what the next transaction holds. Changes leave the queue only once they are durable."""
        changes: list[Record | Removal] = []
        rows = 0
        for change in self._queue:
            rows += 1 if isinstance(change, Record) else len(change.slots or ())
            if changes and rows > MAX_COMMIT_OPERATIONS:
                break
            changes.append(change)
        added, self._added = self._added, {}
        touched = dict(islice(self._touched.items(), MAX_COMMIT_OPERATIONS))
        for key in touched:
            del self._touched[key]
        # Counters have numbers too but no place in the queue: until it is empty, the count stays on the safe
        # side.
        last = len(changes) == len(self._queue)
        return Batch(changes, touched, added, self._enqueued if last else self._committed + len(changes))

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
            for _ in batch.changes:
                self._queue.popleft()
            self._queued_puts -= sum(isinstance(change, Record) for change in batch.changes)
            healed, self._failures, self._last_error = self._failures, 0, None
            self._retry_pause = 0.0
        if healed:
            log.info("%s can be written again", self._path)
        for position, change in enumerate(batch.changes):
            if isinstance(change, Removal):
                self._tell(change.on_durable, cleared.get(position, change.slots or ()))
        with self._changed:
            self._committed = batch.upto
            self._changed.notify_all()

    def _keep(self, batch: Batch, error: Exception) -> None:
        """Put back what a failed transaction held and close the database after some failures."""
        with self._changed:
            for name, delta in batch.added.items():
                self._added[name] = self._added.get(name, 0) + delta
            self._touched = {**batch.touched, **self._touched}
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
