# SPDX-License-Identifier: Apache-2.0
"""Loads on their way: one thread starts reads as far ahead as there are slots, another copies pages.

Where a device copies, a third one waits for it: the next copy is asked for before the last one is done.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence

from tutti_engine.columns import unpack_words
from tutti_engine.execution.lane import Lane
from tutti_engine.execution.pipeline import Pipeline, Shared
from tutti_engine.execution.ring_window import SlotBank
from tutti_engine.execution.shares import Share
from tutti_engine.execution.transfer import LoadJob, Transfer
from tutti_engine.execution.verification import Verification
from tutti_engine.execution.waves import Chosen, Wave
from tutti_engine.mover import SlotCopy

__all__ = ["LoadPipeline"]

logger = logging.getLogger(__name__)

_WAVES = 4
"""Waves that share the bank: while one is copied the others keep the drives busy."""

_DEVICE_WAVES = 6
"""The same where a device copies: two are on its queue."""


class _Part:
    """Some layers of a load, all of one group. It ends with the last of its waves, all of them started."""

    def __init__(self, job: LoadJob, share: Share, transfer: Transfer, *, ahead: bool) -> None:
        self.job = job
        self.layers = share.layers
        self.group = share.group
        self.positions = share.positions
        self.transfer = transfer
        self.ahead = ahead
        self.asked = time.monotonic()
        self.begun = self.asked
        # Waves that have not ended, and the reading thread's own hold until it has started the last one.
        self.holds = 1


class LoadPipeline(Pipeline):
    """Reads and copies in the order in which loads were asked for.

    Its bounds: ``max_queued`` parts of loads that wait for their turn, the bank's slots in flight, and of a
    load that is asked for layer by layer ``lookahead`` layers beyond the one that is being copied.
    """

    def __init__(
        self,
        bank: SlotBank,
        shared: Shared,
        *,
        num_layers: int,
        rank: int,
        lookahead: int,
        max_queued: int,
        verification: Verification,
        on_end: Callable[[LoadJob, int], None],
    ) -> None:
        """Start the threads.

        ``num_layers`` are a chunk's checksums; ``on_end`` is told of each part's job and number of layers.
        """
        super().__init__(bank, shared)
        self._num_layers = num_layers
        self._rank = rank
        self._lookahead = lookahead
        self._max_queued = max_queued
        self._verification = verification
        self._on_end = on_end
        usual = _WAVES if self._background is None else _DEVICE_WAVES
        self._waves: int = getattr(shared.backend, "load_waves", usual)
        if self._waves < 2:
            raise ValueError(
                f"{type(shared.backend).__name__}.load_waves is {self._waves}: at least 2 batches of reads"
                " share the staging memory, so that one is read while another is copied"
            )
        self._changed = threading.Condition()
        self._queued = 0
        # Parts whose reads have begun and whose copies have not ended.
        self._open = 0
        self._reader = Lane("tutti-read")
        self._copier = Lane("tutti-load")
        self._judge: Lane | None = None if self._background is None else Lane("tutti-loaded")

    @property
    def queued(self) -> int:
        """Parts that wait for their turn."""
        return self._queued

    def start(self, job: LoadJob, share: Share, transfer: Transfer, *, ahead: bool) -> None:
        """Queue a share of a load; never waits.

        ``ahead``: the load is asked for layer by layer, so this keeps its distance from what is copied.
        """
        part = _Part(job, share, transfer, ahead=ahead)
        with self._changed:
            full = self._queued >= self._max_queued
            self._queued += not full
            self._open += full
        if full:
            self._counters.add("loads_refused")
            job.skip(share.positions, errno.ENOBUFS)
            self._let_go(part)
        else:
            self._reader.put(lambda: self._read(part))

    def stop(self, deadline: float) -> None:
        """End after what is queued; wait for that until ``time.monotonic()`` reaches ``deadline``."""
        self._reader.stop(deadline)
        self._copier.stop(deadline)
        if self._judge is not None:
            self._judge.stop(deadline)

    # The reading thread.

    def _read(self, part: _Part) -> None:
        in_time = self._wait_for_turn(part)
        part.begun = time.monotonic()
        lost = part.job.plan.columns.lost()
        if lost:
            part.job.fail(sorted({*lost} & {*part.positions}), errno.ENOENT)
        todo = [position for position in part.positions if position not in part.job.errors]
        try:
            while todo and (slot := self._first_slot(part, in_time)) is not None:
                wave = self._start_wave(part, todo, slot)
                self._copier.put(lambda wave=wave: self._copy(part, wave))  # type: ignore[misc]
        except Exception as error:
            logger.warning("Tutti: a load ended early: %s", error)
            part.job.fail(todo, errno.EIO)
            todo = []
        # Where slots did not come in time, a read that hung is the reason, here or before.
        part.job.skip(todo, errno.ECANCELED if self._is_behind(part) else errno.ETIMEDOUT)
        if todo and not self._is_behind(part):
            self._note_hang()
        self._let_go(part)

    def _wait_for_turn(self, part: _Part) -> bool:
        """Keep the distance between reads and copies; return False when that lasts too long."""
        with self._changed:
            self._queued -= 1
            turn = True
            if part.ahead and self._open > self._lookahead:
                self._counters.add("load_lookahead_waits")
                turn = self._changed.wait_for(
                    lambda: self._open <= self._lookahead or self._is_behind(part), self._io_timeout
                )
            self._open += 1
            return turn

    def _first_slot(self, part: _Part, in_time: bool) -> int | None:
        """Take the first slots of a wave; None if the part has to give up."""
        width = len(part.layers)
        if self._is_behind(part) or not in_time:
            return None
        slot = self._keeper.acquire(self._bank, width, 0.0)
        if slot is None:
            self._counters.add("load_slot_waits")
            slot = self._keeper.acquire(self._bank, width, time.monotonic() + self._io_timeout)
        if slot is not None and self._is_behind(part):
            self._bank.release(slot, width)
            return None
        return slot

    def _start_wave(self, part: _Part, todo: list[int], slot: int) -> Wave:
        """Start to read the first of ``todo``, and take them off."""
        width = len(part.layers)
        shares = self._lookahead + 1 if part.ahead else self._waves
        most = min(len(todo), max(1, self._bank.count // (shares * width)))
        slots = [slot, *self._bank.acquire_free(width, most - 1)]
        wave = Wave(part.job.plan, self._bank, todo[: len(slots)], slots, part.layers, part.group)
        try:
            wave.submit(self._backend.read_segments)
        except BaseException:
            wave.release()
            raise
        del todo[: len(slots)]
        self._counters.add("load_waves")
        with self._changed:
            part.holds += 1
        return wave

    def _is_behind(self, part: _Part) -> bool:
        """Whether a read has hung since the part was asked for."""
        return part.asked <= self._hung_at

    # The copying thread.

    def _copy(self, part: _Part, wave: Wave) -> None:
        job = part.job
        copying = False
        try:
            chosen = self._take(job, wave)
            if chosen is not None and job.enter_pages():
                try:
                    copying = self._scatter(part, wave, chosen)
                finally:
                    if not copying:
                        job.leave_pages()
        except Exception as error:
            self._fail(job, wave, error)
        if not copying:
            self._dismiss(part, wave)

    def _take(self, job: LoadJob, wave: Wave) -> Chosen | None:
        """Wait for a wave's reads; return what is to be copied."""
        behind = wave.started <= self._hung_at
        deadline = 0.0 if behind else wave.started + self._io_timeout
        errors = wave.finish(self._backend.read_segments, self._wait_for_room, deadline)
        if errors is None:
            if behind:
                job.skip(wave.positions, errno.ECANCELED)
            else:
                self._note_hang()
                job.fail(wave.positions, errno.ETIMEDOUT)
            return None
        job.fail_each(errors)
        chosen = wave.choose(errors)
        return chosen if chosen.positions else None

    def _scatter(self, part: _Part, wave: Wave, chosen: Chosen) -> bool:
        """Copy slots to pages; return whether that goes on after this call."""
        job, layers = part.job, wave.layers
        job.bytes_read += len(chosen.slots) * self._segment_bytes
        sums = self._expected(job, wave, chosen.positions) if self._verification.next() else None
        if self._background is None or self._judge is None:
            self._check(job, chosen, self._mover.scatter(layers, chosen.slots, chosen.block_ids, sums))
            return False
        copy = self._background.start_scatter(job.mark, layers, chosen.slots, chosen.block_ids, sums)
        self._judge.put(lambda: self._await(part, wave, chosen, copy))
        return True

    # The judging thread.

    def _await(self, part: _Part, wave: Wave, chosen: Chosen, copy: SlotCopy) -> None:
        try:
            self._check(part.job, chosen, copy.wait())
        except Exception as error:
            self._fail(part.job, wave, error)
        finally:
            part.job.leave_pages()
            self._dismiss(part, wave)

    # Both.

    def _check(self, job: LoadJob, chosen: Chosen, matched: Sequence[bool]) -> None:
        if len(matched) != len(chosen.slots):
            raise RuntimeError(f"the mover judged {len(matched)} segments of {len(chosen.slots)}")
        if not all(matched):
            count = len(chosen.positions)
            bad = {chosen.positions[number % count] for number, ok in enumerate(matched) if not ok}
            self._counters.add("corrupt_chunks", len(bad))
            job.distrust(bad)

    def _fail(self, job: LoadJob, wave: Wave, error: Exception) -> None:
        logger.warning("Tutti: a load ended early: %s", error)
        job.fail(wave.positions, errno.EIO)

    def _dismiss(self, part: _Part, wave: Wave) -> None:
        if not self._keeper.dismiss(wave):
            self._counters.add("overdue_waves")
        self._let_go(part)

    def _expected(self, job: LoadJob, wave: Wave, positions: Sequence[int]) -> array[int]:
        found = wave.read_sums(positions)
        if found is not None:
            return found
        layers, width = wave.layers, self._num_layers
        words = unpack_words(job.plan.columns.sums(positions, self._rank))
        expected = array("Q")
        for layer in layers:
            expected.extend(words[layer::width])
        return expected

    # All.

    def _note_hang(self) -> None:
        self._counters.add("read_hangs")
        with self._changed:
            self._hung_at = time.monotonic()
            self._changed.notify_all()

    def _let_go(self, part: _Part) -> None:
        with self._changed:
            part.holds -= 1
            if part.holds:
                return
            self._open -= 1
            self._changed.notify_all()
        part.job.note_time(part.begun, time.monotonic())
        self._on_end(part.job, len(part.layers))
        part.transfer.finish(ok=not part.job.errors)
