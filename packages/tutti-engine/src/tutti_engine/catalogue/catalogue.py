# SPDX-License-Identifier: Apache-2.0
"""The list of chunks that are safely on disk, in SQLite, off the way of every request.

A row is written only after its chunk's data is durable, and a slot is given back only after its row's removal
is durable: what the catalogue says after a crash may be too little, never too much.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutti_engine.catalogue import file
from tutti_engine.catalogue.batch import OnDurable, Removal
from tutti_engine.catalogue.checksum_table import StoredChecksums
from tutti_engine.catalogue.connection import DamagedError
from tutti_engine.catalogue.file import CATALOGUE_NAME, MAX_COMMIT_OPERATIONS
from tutti_engine.catalogue.lists import retired_slots
from tutti_engine.catalogue.reading import read_counters, read_records, resident_chunks
from tutti_engine.catalogue.record import Record, checked
from tutti_engine.catalogue.residents import Residents
from tutti_engine.catalogue.writer import CatalogueWriter
from tutti_engine.errors import CatalogueError

__all__ = ["CATALOGUE_NAME", "Catalogue", "Record", "read_counters", "resident_chunks"]

log = logging.getLogger(__name__)


class Catalogue(CatalogueWriter):
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
            if self._give_up is not None:
                self._queue.drop()
                return
            self._queue.put(record)
            self._changed.notify_all()

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
                self._queue.append(Removal(some, on_durable, suspect))
            self._changed.notify_all()

    def clear(self, on_durable: OnDurable) -> None:
        """Queue the removal of every row; never dropped.

        ``on_durable`` is called once, with the slots that had a row: those whose records were dropped or lost
        are not among them. ``flush`` tells whether it was in time.
        """
        with self._changed:
            self._queue.append(Removal(None, on_durable))
            self._changed.notify_all()

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that chunks were used now. May be lost."""
        now = max(0, int(time.time()))
        with self._changed:
            self._queue.touch(keys, now)

    def add(self, name: str, delta: int) -> None:
        """Raise a lifetime counter.

        Raises ValueError for a negative ``delta``: counters never go backwards.
        """
        if delta < 0:
            raise ValueError(f"counter {name!r} cannot be raised by {delta}")
        if delta:
            with self._changed:
                self._queue.add(name, delta)
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was queued before is durable and its callbacks were called.

        That covers ``put``, ``remove``, ``clear`` and ``add`` of any thread, not ``touch`` and not records
        that were dropped. Returns False if any of it is not durable after ``timeout`` seconds; it stays
        queued. An attempt is made at once, even in the pause after a failure.
        """
        with self._changed:
            # Asking counts as a change: an attempt is made even if there is nothing else.
            self._queue.enqueued += 1
            target = self._wanted = self._queue.enqueued
            self._retry_pause = 0.0
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue.committed >= target or self._stopped, timeout)
            return self._queue.committed >= target

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
                self._queue.enqueued += 1
                self._changed.notify_all()
        self._thread.join(max(0.0, self._give_up - time.monotonic()))
        with self._changed:
            if not self._stopped:
                self._link.interrupt()
        done = not self._queue and self._queue.is_durable
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
        return self._queue.dropped_puts
