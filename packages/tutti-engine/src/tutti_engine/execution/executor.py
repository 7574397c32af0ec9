# SPDX-License-Identifier: Apache-2.0
"""The execution side: moves segments between storage, staging slots and pages on one rank."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias

from tutti_engine.backend import SPI_VERSION, StorageBackend, check_spi_version
from tutti_engine.counters import Counters
from tutti_engine.execution.busy_time import BusyTime
from tutti_engine.execution.load_pipeline import LoadPipeline
from tutti_engine.execution.pipeline import Shared
from tutti_engine.execution.ring_window import RingWindow
from tutti_engine.execution.settings import ExecutionSettings
from tutti_engine.execution.shares import Shares
from tutti_engine.execution.store_pipeline import StorePipeline
from tutti_engine.execution.transfer import LoadJob, StoreJob, Transfer
from tutti_engine.execution.verification import Verification
from tutti_engine.execution.wave_keeper import WaveKeeper
from tutti_engine.execution.waves import Plan
from tutti_engine.geometry import Geometry
from tutti_engine.mover import BackgroundMover, Mover
from tutti_engine.plan import LoadPlan, LoadResult, StorePlan, StoreResult, StoreSettled

__all__ = ["Executor", "Result"]

logger = logging.getLogger(__name__)

Result: TypeAlias = LoadResult | StoreResult | StoreSettled


class Executor:
    """Runs plans for one rank, on two threads for loads and two for stores.

    Loads are asynchronous as a whole. A store copies the pages in the caller's thread, because the server may
    reuse them in its next step, and writes in the background. With a ``BackgroundMover`` a thread copies them
    when there is room, and ``reuse_blocks`` says which of them the server wants back, unless
    ``late_copies`` forbids it. Every plan given to
    ``load`` or ``store`` ends as exactly one result of ``take_results``, whatever happens.

    Its ``counters``: ``load_waves``, ``store_waves`` (batches); ``load_slot_waits``, ``store_slot_waits`` (a
    bank was full), ``store_depth_waits`` (as many batches as may be were being written),
    ``store_no_room_chunks`` (given up after ``store_stall``), ``load_lookahead_waits``,
    ``loads_refused`` (the queue was full), ``room_waits`` (the backend was full); ``read_hangs``,
    ``write_hangs`` (timeouts), ``overdue_waves`` (in flight beyond their deadline), ``corrupt_chunks``,
    ``store_revoked_chunks`` (given up because the server wanted their blocks back), ``store_copy_waits`` (the
    server's next work waits for a copy of a block that it wants back).
    ``load_time`` and ``store_time`` tell how long plans of either kind were under way.
    """

    def __init__(
        self,
        geometry: Geometry,
        backend: StorageBackend,
        mover: Mover,
        settings: ExecutionSettings | None = None,
        *,
        rank: int = 0,
    ) -> None:
        """Allocate the window and start the threads.

        Args:
            geometry: shape of this rank's chunks.
            backend: where segments live; its staging is bound here.
            mover: how pages are reached; bound here as well.
            settings: bounds, deadlines and verification.
            rank: position of this rank's checksums in a load plan.

        Raises:
            BackendError: a backend for an SPI that this engine does not speak.
            ValueError: a mover that cannot do without the verification that ``settings.verify`` gives up.
        """
        settings = ExecutionSettings() if settings is None else settings
        check_spi_version(type(backend).__name__, getattr(backend, "spi_version", SPI_VERSION))
        verification = Verification(settings.verify)
        if not verification.is_complete and not getattr(mover, "can_skip_verification", False):
            raise ValueError(
                f"verify={settings.verify!r}: {type(mover).__name__} always verifies; "
                "only 'always' works with it"
            )
        self.counters = Counters()
        self.load_time = BusyTime()
        self.store_time = BusyTime()
        self._geometry = geometry
        self._shares = Shares(geometry)
        self._backend = backend
        # Two runs at least, so that one wave can be read while the other one is copied.
        least = 2 * geometry.num_layers
        self.window = RingWindow(
            geometry.segment_bytes,
            max(settings.load_bank_bytes // geometry.segment_bytes, least),
            max(settings.store_bank_bytes // geometry.segment_bytes, least),
        )
        backend.bind_staging(self.window)
        mover.bind(self.window)
        self._mover = mover
        self._background = mover if isinstance(mover, BackgroundMover) else None
        self._results: deque[Result] = deque()
        self._load_jobs: dict[int, LoadJob] = {}
        self._store_jobs: dict[int, StoreJob] = {}
        self._keeper = WaveKeeper(self._late_end)
        self._idle = threading.Condition()
        self._unfinished = 0
        try:
            self._start(settings, rank, verification)
        except BaseException:
            if self._background is not None:
                self._background.unbind()
            raise

    def _start(self, settings: ExecutionSettings, rank: int, verification: Verification) -> None:
        """Start the threads."""
        shared = Shared(
            self._keeper,
            self._backend,
            self._mover,
            self.counters,
            self._wait_for_room,
            self._geometry.segment_bytes,
            settings.io_timeout,
        )
        self._loads = LoadPipeline(
            self.window.loads,
            shared,
            num_layers=self._geometry.num_layers,
            rank=rank,
            lookahead=settings.lookahead,
            max_queued=settings.max_queued_loads * len(self._geometry.groups),
            verification=verification,
            on_end=self._end_of_load,
        )
        try:
            self._stores = StorePipeline(
                self.window.stores,
                shared,
                stall=settings.store_stall,
                depth=settings.write_depth,
                late=settings.late_copies,
                on_wave_end=self._end_of_store,
            )
        except BaseException:
            self._loads.stop(0.0)
            raise

    @property
    def data_path(self) -> str:
        """What moves the bytes: the backend's ``data_path`` if it names one, else its class."""
        return str(getattr(self._backend, "data_path", type(self._backend).__name__))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and ``take_results`` has nothing."""
        return not (self._unfinished or self._results or self._keeper.overdue)

    @property
    def queued_loads(self) -> int:
        """Loads, or layers of them, that wait for their turn."""
        return self._loads.queued

    def reuse_blocks(self, blocks: Iterable[int]) -> None:
        """Give blocks back that the server is about to write to.

        Only pages on a device need it, where stores are copied behind the server's back: what was not copied
        is given up, and what is being copied holds up the device's next work, not the caller.
        """
        self._stores.revoke(blocks)

    def leave_pages(self) -> None:
        """Give up what has not been copied from the pages; nothing reads them once this returns."""
        self._stores.revoke_all()

    def load(self, plan: LoadPlan, layers: Sequence[int] | None = None) -> Transfer:
        """Start to load all layers of a plan, or only some of them.

        The plan's result comes with its last layer.
        """
        shares, idle_layers = self._shares.of(plan, layers)
        transfer = Transfer(max(1, len(shares)))
        with self._idle:
            job = self._load_jobs.get(plan.plan_id)
            if job is None:
                # Whoever had the blocks may still be using them on the device.
                mark = None if self._background is None else self._background.mark()
                job = LoadJob(plan, self._shares.num_layers, mark)
                self._load_jobs[plan.plan_id] = job
                self.load_time.begin()
            self._unfinished += len(shares)
        if idle_layers:
            self._skip_layers(job, idle_layers, transfer if not shares else None)
        ahead = layers is not None and len(layers) < self._shares.num_layers
        for share in shares:
            self._loads.start(job, share, transfer, ahead=ahead)
        return transfer

    def _skip_layers(self, job: LoadJob, layers: int, transfer: Transfer | None) -> None:
        """End layers of a load that have nothing to do with its chunks."""
        with self._idle:
            self._unfinished += 1
        self._end_of_load(job, layers)
        if transfer is not None:
            transfer.finish(ok=not job.errors)

    def give_up(self, plan: LoadPlan) -> None:
        """End a load early; once this returns nothing writes to its pages any more.

        Its result still comes, once its reads have ended. A plan that has ended is left alone.
        """
        with self._idle:
            job = self._load_jobs.get(plan.plan_id)
        if job is not None:
            job.give_up()

    def store(self, plan: StorePlan, layers: Sequence[int] | None = None) -> None:
        """Copy the pages of a plan, or of some layers of it, to staging slots and start to write them.

        Chunks that find no room within ``store_stall`` seconds are given up.
        """
        shares, _ = self._shares.of(plan, layers)
        with self._idle:
            job = self._store_jobs.get(plan.plan_id)
            if job is None:
                job = StoreJob(plan, self._geometry.num_layers, self._shares.num_layers)
                self._store_jobs[plan.plan_id] = job
                self.store_time.begin()
                self._unfinished += 1
        try:
            for share in shares:
                self._stores.store(job, share)
        except Exception as error:
            # What was handed over before goes on: only its end is the plan's.
            logger.warning("Tutti: pages could not be copied: %s", error)
            job.fail(range(len(plan.transfers)), errno.EIO)
        with self._idle:
            job.layers_left -= self._shares.num_layers if layers is None else len(layers)
        self._end_of_store(job)

    def take_results(self) -> list[Result]:
        """Return the plans that ended since the last call, and writes that ended after their plan."""
        self._keeper.reclaim()
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def wait_for_results(self, deadline: float) -> bool:
        """Wait until ``take_results`` has something or ``time.monotonic()`` reaches ``deadline``.

        Return whether it has.
        """
        with self._idle:
            return self._idle.wait_for(lambda: bool(self._results), max(0.0, deadline - time.monotonic()))

    def in_use(self) -> dict[str, int]:
        """Return what plans hold, by name; all 0 when idle."""
        self._keeper.reclaim()
        return {
            "unfinished_plans": self._unfinished,
            "load_slots": self.window.loads.busy,
            "store_slots": self.window.stores.busy,
            "overdue_waves": self._keeper.overdue,
        }

    def wait_idle(self, deadline: float) -> bool:
        """Wait until every plan has its result.

        Return False if ``time.monotonic()`` reached ``deadline`` first.
        """
        with self._idle:
            return self._idle.wait_for(lambda: not self._unfinished, max(0.0, deadline - time.monotonic()))

    def shutdown(self, deadline: float) -> bool:
        """Finish what is under way until ``deadline``, then stop the threads and the backend."""
        finished = self.wait_idle(deadline)
        self._loads.stop(deadline)
        self._stores.stop(deadline)
        self._backend.shutdown()
        if finished:  # else a copy may still be under way, which must not meet zeros
            if self._background is not None:
                self._background.unbind()
            self.window.give_back()
        return finished

    def _wait_for_room(self, deadline: float) -> None:
        self.counters.add("room_waits")
        wait = getattr(self._backend, "wait_for_room", None)
        if wait is not None:
            wait(deadline)
        else:
            time.sleep(max(0.0, deadline - time.monotonic()))

    def _end_of_load(self, job: LoadJob, layers: int) -> None:
        with self._idle:
            self._unfinished -= 1
            job.layers_left -= layers
            if job.layers_left <= 0:
                del self._load_jobs[job.plan.plan_id]
                self.load_time.end()
                self._results.append(job.result())
            self._idle.notify_all()

    def _end_of_store(self, job: StoreJob) -> None:
        # What is overdue is looked at together with the result: a write that ends before is no news, one that
        # ends after it is.
        self._keeper.look_at(job.plan.plan_id, partial(self._report_store, job))

    def _report_store(self, job: StoreJob, overdue: set[int]) -> None:
        with self._idle:
            if job.layers_left > 0 or job.waves_left or job.plan.plan_id not in self._store_jobs:
                return
            del self._store_jobs[job.plan.plan_id]
            self.store_time.end()
            self._results.append(job.result(overdue))
            self._unfinished -= 1
            self._idle.notify_all()

    def _late_end(self, plan: Plan, positions: Sequence[int]) -> None:
        if not isinstance(plan, StorePlan):
            return
        with self._idle:
            if plan.plan_id not in self._store_jobs:
                self._results.append(StoreSettled(plan.plan_id, tuple(positions)))
                self._idle.notify_all()
