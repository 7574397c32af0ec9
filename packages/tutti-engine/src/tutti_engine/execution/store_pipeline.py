# SPDX-License-Identifier: Apache-2.0
"""Stores on their way: pages are copied, one thread starts writes, another awaits them.

The caller's thread copies pages where its next step may write to them; pages on a device are copied by a
thread of their own, see ``DeferredCopies``.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tutti_engine.execution.deferred_copies import DeferredCopies, DeferredShare
from tutti_engine.execution.lane import Lane
from tutti_engine.execution.pipeline import Pipeline, Shared
from tutti_engine.execution.ring_window import SlotBank
from tutti_engine.execution.shares import Share
from tutti_engine.execution.transfer import StoreJob
from tutti_engine.execution.waves import Chosen, Wave
from tutti_engine.mover import PageCopy

__all__ = ["StorePipeline"]

logger = logging.getLogger(__name__)

_SHARES = 8
"""A wave takes at most this part of the bank, so that the first one is written while the next is copied."""


class StorePipeline(Pipeline):
    """Writes in the order in which pages were copied.

    Its bounds: the bank's slots, for which ``store`` waits ``stall`` seconds at most (a thread that copies
    waits as long as I/O may take), and ``depth`` waves that the backend has at a time.
    """

    def __init__(
        self,
        bank: SlotBank,
        shared: Shared,
        *,
        stall: float,
        depth: int,
        late: bool,
        on_wave_end: Callable[[StoreJob], None],
    ) -> None:
        """Start the threads.

        ``late``: whether pages on a device are copied after ``store`` has returned.
        """
        super().__init__(bank, shared)
        self._stall = stall
        self._on_wave_end = on_wave_end
        self._wants_checksums = bool(getattr(shared.backend, "wants_checksums", False))
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(depth)
        self._writer = Lane("tutti-write")
        self._finisher = Lane("tutti-store")
        self._deferred: DeferredCopies | None = None
        if self._background is not None and late:
            self._deferred = DeferredCopies(self._background, self._counters)
            self._copier = Lane("tutti-copy")

    def store(self, job: StoreJob, share: Share) -> None:
        """Copy pages to slots and start to write them, or have that done.

        Chunks that find no room in time are given up.
        """
        if self._deferred is None:
            self._store_now(job, share)
            return
        deferred = self._deferred.add(job, share)
        with self._lock:
            job.waves_left += 1
        self._copier.put(lambda: self._copy_all(deferred))

    def revoke(self, blocks: Iterable[int]) -> None:
        """Take blocks back, to which the server's next work may write."""
        if self._deferred is not None:
            self._deferred.revoke(blocks)

    def revoke_all(self) -> None:
        """Take all blocks back; nothing reads them any more once this returns."""
        if self._deferred is not None:
            self._deferred.revoke_all()

    def stop(self, deadline: float) -> None:
        """End after what was handed over; wait for that until ``time.monotonic()`` reaches ``deadline``."""
        if self._deferred is not None:
            self._copier.stop(deadline)
        self._writer.stop(deadline)
        self._finisher.stop(deadline)

    def _store_now(self, job: StoreJob, share: Share) -> None:
        width = len(share.layers)
        most = max(1, self._bank.count // (_SHARES * width))
        deadline = time.monotonic() + self._stall
        positions = share.positions
        todo = deque(p for p in positions if p not in job.errors) if job.errors else deque(positions)
        while todo:
            slots = self._keeper.acquire_free(self._bank, width, min(len(todo), most))
            if not slots:
                # Everything that is copied was handed over: only its completion makes room.
                self._counters.add("store_slot_waits")
                slot = self._keeper.acquire(self._bank, width, deadline)
                if slot is None:
                    self._counters.add("store_no_room_chunks")
                    job.fail((todo.popleft(),), errno.ENOBUFS)
                    continue
                slots = [slot, *self._keeper.acquire_free(self._bank, width, min(len(todo), most) - 1)]
            self._hand_over(job, [todo.popleft() for _ in slots], slots, share)

    def _hand_over(self, job: StoreJob, positions: list[int], slots: list[int], share: Share) -> None:
        layers = share.layers
        wave = Wave(job.plan, self._bank, positions, slots, layers, share.group)
        try:
            self._note(job, wave, self._gather(layers, wave.choose({})))
        except Exception as error:
            logger.warning("Tutti: pages could not be copied: %s", error)
            job.fail(positions, errno.EIO)
            wave.release()
            return
        self._put(job, wave)

    def _gather(self, layers: Sequence[int], chosen: Chosen) -> Sequence[int]:
        mover = self._background
        if mover is None:
            return self._mover.gather(layers, chosen.block_ids, chosen.slots)
        return mover.start_gather(mover.mark(), layers, chosen.block_ids, chosen.slots).wait()

    def _note(self, job: StoreJob, wave: Wave, sums: Sequence[int]) -> None:
        """Keep the checksums of a wave that was copied."""
        job.note(wave.layers, wave.positions, sums)
        if self._wants_checksums:
            wave.sums = array("Q", sums)

    def _put(self, job: StoreJob, wave: Wave) -> None:
        with self._lock:
            job.waves_left += 1
        self._writer.put(lambda: self._write(job, wave))

    # The copying thread.

    def _copy_all(self, deferred: DeferredShare) -> None:
        assert self._deferred is not None
        try:
            while deferred.todo and (slots := self._slots_for(deferred)):
                self._copy_some(deferred, slots)
        except Exception as error:
            logger.warning("Tutti: pages could not be copied: %s", error)
            deferred.job.fail(self._deferred.give_up(deferred), errno.EIO)
        finally:
            lost = [p for p in self._deferred.give_up(deferred) if p not in deferred.job.errors]
            if lost:
                self._counters.add("store_no_room_chunks", len(lost))
                deferred.job.fail(lost, errno.ENOBUFS)
            with self._lock:
                deferred.job.waves_left -= 1
            self._on_wave_end(deferred.job)

    def _slots_for(self, deferred: DeferredShare) -> list[int]:
        """Take slots for some chunks; none if there are none for so long that I/O must have hung."""
        width = len(deferred.share.layers)
        most = max(1, self._bank.count // (_SHARES * width))
        slots = self._keeper.acquire_free(self._bank, width, min(max(1, len(deferred.todo)), most))
        # Those that wait behind a hang do not wait for another one each.
        if not slots and deferred.asked > self._hung_at:
            self._counters.add("store_slot_waits")
            slot = self._keeper.acquire(self._bank, width, time.monotonic() + self._io_timeout)
            if slot is None:
                self._hung_at = time.monotonic()
                return []
            # A wave gives back all that it had: one as large as that follows it, not many small ones.
            more = min(len(deferred.todo), most) - 1
            slots = [slot, *self._keeper.acquire_free(self._bank, width, max(0, more))]
        return slots

    def _copy_some(self, deferred: DeferredShare, slots: list[int]) -> None:
        """Copy as many chunks as there are slots, and hand them over to be written."""
        assert self._background is not None and self._deferred is not None
        job, share, mover = deferred.job, deferred.share, self._background
        waves: list[Wave] = []

        def launch(positions: list[int]) -> PageCopy:
            wave = Wave(job.plan, self._bank, positions, slots[: len(positions)], share.layers, share.group)
            chosen = wave.choose({})
            waves.append(wave)
            return mover.start_gather(deferred.mark, share.layers, chosen.block_ids, chosen.slots)

        copied = 0
        positions: list[int] = []
        try:
            positions, copy = self._deferred.start(deferred, len(slots), launch)
            if copy is not None:
                self._note(job, waves[0], copy.wait())
                copied = len(positions)
        finally:
            self._deferred.end(deferred, positions)
            self._bank.release_all(slots[copied:], len(share.layers))
            if copied:
                self._put(job, waves[0])
            else:
                job.fail(positions, errno.EIO)

    # The writing thread.

    def _write(self, job: StoreJob, wave: Wave) -> None:
        if not self._room.acquire(blocking=False):
            self._counters.add("store_depth_waits")
            # Always freed again: the oldest wave ends at its deadline at the latest.
            self._room.acquire()
        if wave.started <= self._hung_at:
            self._end(job, wave, dict.fromkeys(wave.positions, errno.ECANCELED))
            return
        submitted = time.monotonic()
        try:
            wave.submit(self._backend.write_segments)
        except Exception as error:
            logger.warning("Tutti: a store ended early: %s", error)
            self._end(job, wave, dict.fromkeys(wave.positions, errno.EIO))
            return
        self._counters.add("store_waves")
        self._finisher.put(lambda: self._finish(job, wave, submitted))

    # The finishing thread.

    def _finish(self, job: StoreJob, wave: Wave, submitted: float) -> None:
        behind = submitted <= self._hung_at
        deadline = 0.0 if behind else submitted + self._io_timeout
        try:
            errors = wave.finish(self._backend.write_segments, self._wait_for_room, deadline)
        except Exception as error:
            logger.warning("Tutti: a store ended early: %s", error)
            errors = dict.fromkeys(wave.positions, errno.EIO)
        if errors is None:
            if not behind:
                self._counters.add("write_hangs")
                self._hung_at = time.monotonic()
            errors = dict.fromkeys(wave.positions, errno.ECANCELED if behind else errno.ETIMEDOUT)
        self._end(job, wave, errors)

    # Both.

    def _end(self, job: StoreJob, wave: Wave, errors: dict[int, int]) -> None:
        job.fail_each(errors)
        if not self._keeper.dismiss(wave):
            self._counters.add("overdue_waves")
        done = len(wave.positions) - len(errors)
        with self._lock:
            job.bytes_written += done * len(wave.layers) * self._segment_bytes
            job.waves_left -= 1
        self._room.release()
        self._on_wave_end(job)
