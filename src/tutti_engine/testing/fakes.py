# SPDX-License-Identifier: Apache-2.0
"""Backends that are late, out of order, full, failing, short or hanging. Each wraps any other backend.

They raise for bad batches as the wrapped backend does, if that one has a ``check(batch)`` method that only
looks; otherwise those that start late also raise late.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tutti_engine.backend import SegmentBatch, SegmentHandle, StagingWindow, StorageBackend
from tutti_engine.plan import ChunkId
from tutti_engine.testing.window import POISON

__all__ = [
    "DelayedBackend",
    "FailingBackend",
    "HangingBackend",
    "PartialBackend",
    "PoisoningBackend",
    "Predicate",
    "ReorderingBackend",
    "ShortBackend",
    "WrappedBackend",
]

Predicate = Callable[[str, ChunkId, int, int], bool]
"""Says of ("read" or "write", chunk id, layer, slot) whether it is affected."""

FOREVER = 60.0


def always(direction: str, chunk_id: ChunkId, layer: int, slot: int) -> bool:
    """Affect every segment."""
    return True


def pick(batch: SegmentBatch, positions: Sequence[int]) -> SegmentBatch:
    """Return some segments of a batch."""
    return SegmentBatch(
        [batch.chunk_ids[i] for i in positions],
        [batch.layers[i] for i in positions],
        [batch.slots[i] for i in positions],
    )


class WrappedBackend:
    """Passes every call on."""

    def __init__(self, inner: StorageBackend) -> None:
        self.inner = inner
        self.window: StagingWindow | None = None

    def chunk_ids(self, count: int) -> Sequence[ChunkId]:
        return self.inner.chunk_ids(count)

    def bind_staging(self, window: StagingWindow) -> None:
        self.inner.bind_staging(window)
        self.window = window

    def check(self, batch: SegmentBatch) -> None:
        check: Any = getattr(self.inner, "check", None)
        if check is not None:
            check(batch)

    def write_segments(self, batch: SegmentBatch) -> SegmentHandle:
        return self._start("write", batch)

    def read_segments(self, batch: SegmentBatch) -> SegmentHandle:
        return self._start("read", batch)

    def wait_idle(self, deadline: float) -> bool:
        return self.inner.wait_idle(deadline)

    def shutdown(self) -> None:
        self.inner.shutdown()

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        return self._start_inner(direction, batch)

    def _start_inner(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        start = self.inner.write_segments if direction == "write" else self.inner.read_segments
        return start(batch)

    def _slot(self, number: int) -> memoryview:
        assert self.window is not None
        size = self.window.slot_bytes
        return self.window.memory[number * size : (number + 1) * size]

    def _poison(self, number: int) -> None:
        slot = self._slot(number)
        slot[:] = bytes([POISON]) * len(slot)


class DelayedHandle:
    """A batch that is started late, by the backend's thread."""

    def __init__(self, backend: DelayedBackend, direction: str, batch: SegmentBatch) -> None:
        self.direction = direction
        self.batch = batch
        self.finished = threading.Event()
        self.statuses: Sequence[int] = ()
        self._backend = backend
        self._polls = 0

    def poll(self) -> bool:
        """Count the question; the last one that the backend asks for lets the batch go."""
        self._polls += 1
        if self._backend.polls is not None and self._polls >= self._backend.polls:
            self._backend.release()
        return self.finished.is_set()

    def wait(self, deadline: float) -> bool:
        """Ask again and again until the deadline."""
        while not self.poll():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            # A released batch needs its thread's turn, another one somebody's release.
            self.finished.wait(min(remaining, 0.005))
        return True

    def status(self) -> Sequence[int]:
        """Return what the wrapped backend said."""
        if not self.finished.is_set():
            raise RuntimeError("the batch is still in flight")
        return self.statuses


class DelayedBackend(WrappedBackend):
    """Leaves batches waiting until ``release`` or until one of them was polled ``polls`` times.

    Nothing is read or written before; then a thread runs them one after the other, oldest first.
    """

    def __init__(self, inner: StorageBackend, *, polls: int | None = None) -> None:
        super().__init__(inner)
        self.polls = polls
        self.finished_order: list[DelayedHandle] = []
        self._changed = threading.Condition()
        self._waiting: list[DelayedHandle] = []
        self._released: list[DelayedHandle] = []
        self._running = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="delayed-backend", daemon=True)
        self._thread.start()

    def release(self, count: int | None = None) -> None:
        """Let the next ``count`` waiting batches go, all by default."""
        with self._changed:
            for handle in self._in_order(self._waiting)[:count]:
                self._waiting.remove(handle)
                self._released.append(handle)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Number of batches that wait for ``release``."""
        with self._changed:
            return len(self._waiting)

    def wait_idle(self, deadline: float) -> bool:
        if self.polls is not None:
            self.release()
        with self._changed:
            idle = self._changed.wait_for(
                lambda: not (self._waiting or self._released or self._running),
                max(0.0, deadline - time.monotonic()),
            )
        return idle and self.inner.wait_idle(deadline)

    def shutdown(self) -> None:
        self.release()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(FOREVER)
        self.inner.shutdown()

    def _in_order(self, waiting: list[DelayedHandle]) -> list[DelayedHandle]:
        return list(waiting)

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        self.check(batch)
        handle = DelayedHandle(self, direction, batch)
        with self._changed:
            if self._stopping:
                raise RuntimeError("the backend is shut down")
            self._waiting.append(handle)
        return handle

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._released or self._stopping)
                if not self._released:
                    return
                handle = self._released.pop(0)
                self._running += 1
            self._finish(handle)
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _finish(self, handle: DelayedHandle) -> None:
        try:
            inner = self._start_inner(handle.direction, handle.batch)
            done = inner.wait(time.monotonic() + FOREVER)
            handle.statuses = inner.status() if done else [errno.ETIMEDOUT] * len(handle.batch)
        except Exception:
            handle.statuses = [errno.EIO] * len(handle.batch)
        self.finished_order.append(handle)
        handle.finished.set()


class ReorderingBackend(DelayedBackend):
    """Collects batches and runs the youngest first once one of them was polled ``polls`` times."""

    def __init__(self, inner: StorageBackend, *, polls: int = 3) -> None:
        super().__init__(inner, polls=polls)

    def _in_order(self, waiting: list[DelayedHandle]) -> list[DelayedHandle]:
        return list(reversed(waiting))


class HangingBackend(DelayedBackend):
    """Never finishes anything while ``hanging`` is true, not even at shutdown, which abandons it."""

    def __init__(self, inner: StorageBackend) -> None:
        super().__init__(inner)
        self.hanging = True

    def heal(self) -> None:
        """Finish what hangs and behave from now on."""
        self.hanging = False
        self.release()

    def shutdown(self) -> None:
        with self._changed:
            if self.hanging:
                self._waiting.clear()
        super().shutdown()

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        return super()._start(direction, batch) if self.hanging else self._start_inner(direction, batch)


class FixedHandle:
    """Some segments of a batch are the wrapped backend's, the others have their status already."""

    def __init__(self, inner: SegmentHandle | None, passed: Sequence[int], statuses: Sequence[int]) -> None:
        self._inner = inner
        self._passed = passed
        self._statuses = list(statuses)

    def poll(self) -> bool:
        """Ask the wrapped backend."""
        return self._inner is None or self._inner.poll()

    def wait(self, deadline: float) -> bool:
        """Wait for the wrapped backend."""
        return self._inner is None or self._inner.wait(deadline)

    def status(self) -> Sequence[int]:
        """Return the status of all segments."""
        statuses = list(self._statuses)
        if self._inner is not None:
            for position, status in zip(self._passed, self._inner.status()):
                statuses[position] = status
        return statuses


class FailingBackend(WrappedBackend):
    """Fails some segments with a given ``errno`` while ``failing`` is true; a failed read leaves rubbish."""

    def __init__(self, inner: StorageBackend, number: int = errno.EIO, when: Predicate = always) -> None:
        super().__init__(inner)
        self.number = number
        self.when = when
        self.failing = True
        self.failed = 0

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        self.check(batch)
        affected = [
            self.failing and self.when(direction, chunk, layer, slot)
            for chunk, layer, slot in zip(batch.chunk_ids, batch.layers, batch.slots)
        ]
        passed = [position for position, bad in enumerate(affected) if not bad]
        self.failed += sum(affected)
        inner = self._start_inner(direction, pick(batch, passed))
        for slot, bad in zip(batch.slots, affected):
            if bad and direction == "read":
                self._poison(slot)
        return FixedHandle(inner, passed, [self.number if bad else 0 for bad in affected])


class PartialBackend(WrappedBackend):
    """Accepts the first ``accept`` segments of each batch; there is no room for the others."""

    def __init__(self, inner: StorageBackend, accept: int) -> None:
        super().__init__(inner)
        self.accept = accept

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        self.check(batch)
        passed = range(min(self.accept, len(batch)))
        inner = self._start_inner(direction, pick(batch, passed)) if passed or not len(batch) else None
        return FixedHandle(inner, passed, [errno.EAGAIN] * len(batch))


class ShortBackend(WrappedBackend):
    """Moves only the first half of some segments and says ``EIO``."""

    def __init__(self, inner: StorageBackend, when: Predicate = always) -> None:
        super().__init__(inner)
        self.when = when

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        self.check(batch)
        columns = zip(batch.chunk_ids, batch.layers, batch.slots)
        short = [position for position, segment in enumerate(columns) if self.when(direction, *segment)]
        slots = [self._slot(batch.slots[position]) for position in short]
        half = len(slots[0]) // 2 if slots else 0
        rubbish = bytes([POISON]) * half
        kept = [bytes(slot) for slot in slots]
        if direction == "write":
            for slot in slots:
                slot[-half:] = rubbish
        inner = self._start_inner(direction, batch)
        inner.wait(time.monotonic() + FOREVER)
        for slot, old in zip(slots, kept):
            if direction == "write":
                slot[:] = old
            else:
                slot[-half:] = rubbish
        statuses = list(inner.status())
        for position in short:
            statuses[position] = statuses[position] or errno.EIO
        return FixedHandle(None, (), statuses)


class PoisoningHandle:
    """A batch whose result is shown only to those who asked whether it is finished."""

    def __init__(
        self, backend: PoisoningBackend, direction: str, batch: SegmentBatch, inner: SegmentHandle
    ) -> None:
        self._backend = backend
        self._direction = direction
        self._batch = batch
        self._inner = inner
        self._shown = False
        self._lock = threading.Lock()
        self._hidden = backend.hide(batch) if direction == "read" and inner.poll() else None

    def poll(self) -> bool:
        """Ask the wrapped backend; at the first True the slots get their contents."""
        return self._show() if self._inner.poll() else False

    def wait(self, deadline: float) -> bool:
        """Wait for the wrapped backend."""
        return self._show() if self._inner.wait(deadline) else False

    def status(self) -> Sequence[int]:
        """Return what the wrapped backend said."""
        return self._inner.status()

    def _show(self) -> bool:
        with self._lock:
            if not self._shown:
                self._shown = True
                statuses = self._inner.status()
                self._backend.reveal(self._direction, self._batch, self._hidden, statuses)
        return True


class PoisoningBackend(WrappedBackend):
    """Fills slots with ``POISON`` whenever their bytes mean nothing.

    A read's slots are poisoned until its handle was seen finished, those of failed reads remain so; a write's
    slots are poisoned once they are safely written. Who reads a slot early or late finds poison.
    """

    def hide(self, batch: SegmentBatch) -> list[bytes]:
        """Take the contents out of a batch's slots."""
        contents = [bytes(self._slot(slot)) for slot in batch.slots]
        for slot in batch.slots:
            self._poison(slot)
        return contents

    def reveal(
        self, direction: str, batch: SegmentBatch, hidden: list[bytes] | None, statuses: Sequence[int]
    ) -> None:
        """Put contents back that were hidden, and poison what means nothing any more."""
        for position, (slot, status) in enumerate(zip(batch.slots, statuses)):
            if direction == "read" and status == 0 and hidden is not None:
                self._slot(slot)[:] = hidden[position]
            # The slots of writes that failed stay as they are: their owner may try again.
            elif (direction == "read") == (status != 0):
                self._poison(slot)

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        self.check(batch)
        if direction == "read":
            for slot in batch.slots:
                self._poison(slot)
        return PoisoningHandle(self, direction, batch, self._start_inner(direction, batch))
