# SPDX-License-Identifier: Apache-2.0
"""Changes on their way to the catalogue: in order, counted, kept until they are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from tutti_engine.catalogue.batch import Batch, Removal
from tutti_engine.catalogue.file import MAX_COMMIT_OPERATIONS
from tutti_engine.catalogue.record import Record

__all__ = ["MAX_QUEUED_PUTS", "ChangeQueue"]

MAX_QUEUED_PUTS = 65_536
"""Records waiting for a disk that refuses them; beyond that new ones are dropped and counted."""

MAX_QUEUED_TOUCHES = 65_536


class ChangeQueue:
    """What is queued, and up to where it is durable. Not thread-safe: the catalogue calls it under its lock.

    Attributes:
        enqueued: number of the last change that was queued.
        committed: number of the last change of which it and all before are durable.
        dropped_puts: records given up because the queue was full.
    """

    def __init__(self) -> None:
        self.enqueued = self.committed = self.dropped_puts = 0
        self._changes: deque[Record | Removal] = deque()
        self._queued_puts = 0
        self._touched: dict[bytes, int] = {}
        self._added: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def is_durable(self) -> bool:
        """Whether nothing that was queued is left to do, but for touches."""
        return self.committed >= self.enqueued

    def put(self, record: Record) -> None:
        """Queue a record, or drop and count it when there are too many."""
        if self._queued_puts >= MAX_QUEUED_PUTS:
            self.drop()
            return
        self._queued_puts += 1
        self.append(record)

    def drop(self) -> None:
        """Count a record that is not queued."""
        self.dropped_puts += 1

    def append(self, change: Record | Removal) -> None:
        """Queue a change."""
        self._changes.append(change)
        self.enqueued += 1

    def touch(self, keys: Iterable[bytes], now: int) -> None:
        """Note uses, as far as there is room."""
        found = dict.fromkeys(keys, now)
        if len(self._touched) + len(found) <= MAX_QUEUED_TOUCHES:
            self._touched.update(found)
            return
        for key in found:
            if len(self._touched) < MAX_QUEUED_TOUCHES or key in self._touched:
                self._touched[key] = now

    def add(self, name: str, delta: int) -> None:
        """Queue a rise of a counter."""
        self._added[name] = self._added.get(name, 0) + delta
        self.enqueued += 1

    def take(self) -> Batch:
        """Copy what the next transaction holds. Changes leave the queue only once they are durable."""
        changes: list[Record | Removal] = []
        rows = 0
        for change in self._changes:
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
        last = len(changes) == len(self._changes)
        return Batch(changes, touched, added, self.enqueued if last else self.committed + len(changes))

    def discard(self, batch: Batch) -> None:
        """Take a batch's changes off: they are durable. Whoever waits for them is told by ``committed``."""
        for _ in batch.changes:
            self._changes.popleft()
        self._queued_puts -= sum(isinstance(change, Record) for change in batch.changes)

    def put_back(self, batch: Batch) -> None:
        """Keep what a failed transaction held beside its changes, which are queued still."""
        for name, delta in batch.added.items():
            self._added[name] = self._added.get(name, 0) + delta
        self._touched = {**batch.touched, **self._touched}
