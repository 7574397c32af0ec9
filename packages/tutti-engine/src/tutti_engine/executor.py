# SPDX-License-Identifier: Apache-2.0
"""The execution side: moves segments between storage, staging slots and pages on one rank."""

from __future__ import annotations

import errno
import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from tutti_engine.backend import StorageBackend
from tutti_engine.geometry import Geometry
from tutti_engine.lane import Lane
from tutti_engine.mover import Mover
from tutti_engine.plan import LoadPlan, LoadResult, StorePlan, StoreResult, StoreSettled
from tutti_engine.ring_window import RingWindow
from tutti_engine.transfer import LoadJob, StoreJob, Transfer
from tutti_engine.waves import Run, Wave, WaveKeeper

__all__ = ["LOAD_BANK_BYTES", "STORE_BANK_BYTES", "Executor", "Result"]

Result: TypeAlias = LoadResult | StoreResult | StoreSettled

logger = logging.getLogger(__name__)

LOAD_BANK_BYTES = 64 * 1024 * 1024
"""Staging memory for loads, unless two chunks need more: keeps drives busy while pages are copied."""

STORE_BANK_BYTES = 256 * 1024 * 1024
"""Staging memory for stores: takes what one step computes, so that the step need not wait for the drives."""


class Executor:
    """Runs plans for one rank, loads on one thread and writes on another.

    Loads are asynchronous as a whole. A store copies the pages in the caller's thread, because the server may
    reuse them in its next step, and writes in the background. Every plan given to ``load`` or ``store`` ends
    as exactly one result of ``take_results``, whatever happens.
    """

    def __init__(
        self,
        geometry: Geometry,
        backend: StorageBackend,
        mover: Mover,
        *,
        rank: int = 0,
        load_bank_bytes: int = LOAD_BANK_BYTES,
        store_bank_bytes: int = STORE_BANK_BYTES,
        io_timeout: float = 30.0,
        store_stall: float = 0.1,
    ) -> None:
        """Allocate the window and start the threads.

        Args:
            geometry: shape of this rank's chunks.
            backend: where segments live; its staging is bound here.
            mover: how pages are reached; bound here as well.
            rank: position of this rank's checksums in a load plan.
            load_bank_bytes: staging memory for loads.
            store_bank_bytes: staging memory for stores.
            io_timeout: seconds after which I/O counts as failed, and with it everything that was queued
                behind it.
            store_stall: longest time that ``store`` may hold up its caller for want of staging room.
        """
        self._geometry = geometry
        self._backend = backend
        self._mover = mover
        self._rank = rank
        self._io_timeout = io_timeout
        self._store_stall = store_stall
        # Two runs at least, so that one wave can be read while the other one is copied.
        least = 2 * geometry.num_layers
        self.window = RingWindow(
            geometry.segment_bytes,
            max(load_bank_bytes // geometry.segment_bytes, least),
            max(store_bank_bytes // geometry.segment_bytes, least),
        )
        backend.bind_staging(self.window)
        mover.bind(self.window)
        self._results: deque[Result] = deque()
        self._load_jobs: dict[int, LoadJob] = {}
        self._store_jobs: dict[int, StoreJob] = {}
        self._keeper = WaveKeeper(self._late_end)
        self._idle = threading.Condition()
        self._unfinished = 0
        self._load_lane = Lane("tutti-load")
        self._store_lane = Lane("tutti-store")
        # When reads and writes last ran into their timeout. What was asked for before then is not tried.
        self._reads_hung_at = self._writes_hung_at = float("-inf")

    def load(self, plan: LoadPlan, layers: Sequence[int] | None = None) -> Transfer:
        """Start to load all layers of a plan, or only some of them.

        The plan's result comes with its last layer.
        """
        layers = range(self._geometry.num_layers) if layers is None else layers
        transfer = Transfer()
        with self._idle:
            job = self._load_jobs.get(plan.plan_id)
            if job is None:
                job = self._load_jobs[plan.plan_id] = LoadJob(plan, self._geometry.num_layers)
            self._unfinished += 1
        asked = time.monotonic()
        self._load_lane.put(lambda: self._run_load(job, layers, transfer, asked))
        return transfer

    def store(self, plan: StorePlan, layers: Sequence[int] | None = None) -> None:
        """Copy the pages of a plan, or of some layers of it, to staging slots and start to write them.

        Chunks that find no room within ``store_stall`` seconds are given up.
        """
        layers = range(self._geometry.num_layers) if layers is None else layers
        with self._idle:
            job = self._store_jobs.get(plan.plan_id)
            if job is None:
                job = self._store_jobs[plan.plan_id] = StoreJob(plan, self._geometry.num_layers)
                self._unfinished += 1
        deadline = time.monotonic() + self._store_stall
        bank = self.window.stores
        runs: list[Run] = []
        for position in range(len(plan.transfers)):
            if position in job.errors:
                continue
            slot = self._keeper.acquire(bank, len(layers), 0.0)
            if slot is None:
                # Hand over what is copied already: only its completion makes room.
                self._hand_over(job, runs, layers)
                runs = []
                slot = self._keeper.acquire(bank, len(layers), deadline)
            if slot is None:
                job.fail(position, errno.ENOBUFS)
            elif position in job.errors:
                # An earlier layer of it failed while this one waited for room.
                bank.release(slot, len(layers))
            else:
                runs.append(Run(position, slot))
        self._hand_over(job, runs, layers)
        with self._idle:
            job.layers_left -= len(layers)
        self._finish_store(job)

    def take_results(self) -> list[Result]:
        """Return the plans that ended since the last call, and writes that ended after their plan."""
        self._keeper.reclaim()
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def wait_idle(self, deadline: float) -> bool:
        """Wait until every plan has its result.

        Return False if ``time.monotonic()`` reached ``deadline`` first.
        """
        with self._idle:
            return self._idle.wait_for(lambda: not self._unfinished, max(0.0, deadline - time.monotonic()))

    def shutdown(self, deadline: float) -> bool:
        """Finish what is under way until ``deadline``, then stop the threads and the backend."""
        finished = self.wait_idle(deadline)
        self._load_lane.stop(deadline)
        self._store_lane.stop(deadline)
        self._backend.shutdown()
        return finished

    # Loads: the load thread alone runs what follows.

    def _run_load(self, job: LoadJob, layers: Sequence[int], transfer: Transfer, asked: float) -> None:
        started = time.monotonic()
        try:
            if asked <= self._reads_hung_at:
                for position in job.positions:
                    job.skip(position, errno.ECANCELED)
            else:
                self._load_waves(job, layers)
        except Exception as error:
            logger.warning("Tutti: a load ended early: %s", error)
            for position in job.positions:
                job.fail(position, errno.EIO)
        job.seconds += time.monotonic() - started
        with self._idle:
            self._unfinished -= 1
            job.layers_left -= len(layers)
            if job.layers_left <= 0:
                del self._load_jobs[job.plan.plan_id]
                self._results.append(job.result())
            self._idle.notify_all()
        transfer.finish(ok=not job.errors)

    def _load_waves(self, job: LoadJob, layers: Sequence[int]) -> None:
        for position in job.positions:
            if job.plan.transfers[position].chunk_id is None:
                job.fail(position, errno.ENOENT)
        todo = deque(position for position in job.positions if position not in job.errors)
        waves: deque[Wave] = deque()
        try:
            while todo or waves:
                while todo and len(waves) < 2:
                    wave = self._start_reads(job, todo, layers, patient=not waves)
                    if wave is None:
                        break
                    waves.append(wave)
                if not waves:
                    # Only reads that hang can hold the whole bank for so long.
                    self._reads_hung_at = time.monotonic()
                    self._skip(job, todo, errno.ETIMEDOUT)
                elif not self._finish_reads(job, waves.popleft()):
                    self._skip(job, todo, errno.ECANCELED)
        finally:
            for wave in waves:
                self._keeper.dismiss(wave)

    @staticmethod
    def _skip(job: LoadJob, todo: deque[int], code: int) -> None:
        while todo:
            job.skip(todo.popleft(), code)

    def _start_reads(
        self, job: LoadJob, todo: deque[int], layers: Sequence[int], *, patient: bool
    ) -> Wave | None:
        bank = self.window.loads
        most = max(1, bank.count // (2 * len(layers)))
        deadline = time.monotonic() + self._io_timeout if patient else 0.0
        runs: list[Run] = []
        while todo and len(runs) < most:
            slot = self._keeper.acquire(bank, len(layers), deadline if not runs else 0.0)
            if slot is None:
                break
            runs.append(Run(todo.popleft(), slot))
        if not runs:
            return None
        wave = Wave(job.plan, bank, runs, layers)
        try:
            wave.submit(self._backend.read_segments)
        except Exception:
            wave.release()
            raise
        return wave

    def _finish_reads(self, job: LoadJob, wave: Wave) -> bool:
        """Wait for a wave and copy what arrived; return False if it did not end in time."""
        try:
            errors = wave.finish(self._backend.read_segments, wave.started + self._io_timeout)
            for position, code in errors.items():
                job.fail(position, code)
            runs = [run for run in wave.runs if run.position not in errors]
            job.bytes_read += len(runs) * len(wave.layers) * self._geometry.segment_bytes
            self._scatter(job, wave, runs)
        finally:
            quiet = self._keeper.dismiss(wave)
        if not quiet:
            self._reads_hung_at = time.monotonic()
        return quiet

    def _scatter(self, job: LoadJob, wave: Wave, runs: list[Run]) -> None:
        words = f"<{self._geometry.num_layers}Q"
        expected = {
            run.position: struct.unpack(words, job.plan.transfers[run.position].checksums[self._rank])
            for run in runs
        }
        for index, layer in enumerate(wave.layers):
            if not runs:
                return
            matched = self._mover.scatter(
                layer,
                [run.slot + index for run in runs],
                [job.plan.transfers[run.position].block_ids[0] for run in runs],
                [expected[run.position][layer] for run in runs],
            )
            for run, ok in zip(runs, matched, strict=True):
                if not ok:
                    job.fail(run.position, errno.EBADMSG)
            runs = [run for run, ok in zip(runs, matched, strict=True) if ok]

    # Stores: pages are copied by the caller's thread, written by the store thread.

    def _hand_over(self, job: StoreJob, runs: list[Run], layers: Sequence[int]) -> None:
        if not runs:
            return
        wave = Wave(job.plan, self.window.stores, runs, layers)
        try:
            for index, layer in enumerate(layers):
                sums = self._mover.gather(
                    layer,
                    [job.plan.transfers[run.position].block_ids[0] for run in runs],
                    [run.slot + index for run in runs],
                )
                job.note(layer, [run.position for run in runs], sums)
        except Exception as error:
            logger.warning("Tutti: pages could not be copied: %s", error)
            for run in runs:
                job.fail(run.position, errno.EIO)
            wave.release()
            return
        with self._idle:
            job.waves_left += 1
        self._store_lane.put(lambda: self._write(job, wave))

    def _write(self, job: StoreJob, wave: Wave) -> None:
        if wave.started <= self._writes_hung_at:
            errors = dict.fromkeys(wave.positions, errno.ECANCELED)
        else:
            errors = self._try_write(wave)
        for position, code in errors.items():
            job.fail(position, code)
        if not self._keeper.dismiss(wave):
            self._writes_hung_at = time.monotonic()
            job.unsettled.update(wave.positions)
        job.bytes_written += (len(wave.runs) - len(errors)) * len(wave.layers) * self._geometry.segment_bytes
        with self._idle:
            job.waves_left -= 1
        self._finish_store(job)

    def _try_write(self, wave: Wave) -> dict[int, int]:
        try:
            wave.submit(self._backend.write_segments)
            return wave.finish(self._backend.write_segments, time.monotonic() + self._io_timeout)
        except Exception as error:
            logger.warning("Tutti: a store ended early: %s", error)
            return dict.fromkeys(wave.positions, errno.EIO)

    def _finish_store(self, job: StoreJob) -> None:
        with self._idle:
            if job.layers_left > 0 or job.waves_left or job.plan.plan_id not in self._store_jobs:
                return
            del self._store_jobs[job.plan.plan_id]
            self._results.append(job.result())
            self._unfinished -= 1
            self._idle.notify_all()

    def _late_end(self, plan: LoadPlan | StorePlan, positions: list[int]) -> None:
        if isinstance(plan, StorePlan):
            self._results.append(StoreSettled(plan.plan_id, tuple(positions)))
