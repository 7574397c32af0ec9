# SPDX-License-Identifier: Apache-2.0
"""A worker's side: carries out the scheduler's orders on one rank and reports how they ended."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

from tutti_engine import (
    SKIP_BLOCK,
    ExecutionSettings,
    LoadPlan,
    LoadResult,
    Mover,
    StorePlan,
    StoreResult,
    TuttiEngine,
)
from tutti_engine.execution.executor import Result
from tutti_engine.shared.tier import is_shared_plan
from tutti_engine.store.layout import StoreLayout
from tutti_vllm.messages import RequestLoad, StepOrders, StepReport
from tutti_vllm.metrics.meters import WorkerMeter
from tutti_vllm.payload import Payload, merge
from tutti_vllm.worker_side.layer_loads import LayerLoads
from tutti_vllm.worker_side.shared_worker import SharedWorker

__all__ = ["WorkerSide", "leave_pages_here"]

logger = logging.getLogger(__name__)

SHARED_SHUTDOWN_SECONDS = 5.0
"""What is on its way to a shared store at the end is worth no more."""

REST_SECONDS = 0.002
"""The longest rest in a step that computes nothing: as long a new request may have to wait for its step."""

_here: weakref.WeakSet[WorkerSide] = weakref.WeakSet()
"""The sides of this process that have pages."""


class WorkerSide:
    """One rank's execution side behind vLLM's worker callbacks.

    The store is opened with the first orders that need it: only the scheduler knows whether it may be used.

    Attributes:
        quiet: whether the step has nothing to start, to wait for or to tell: its other calls may be left out
            but for ``wait_for_layer``, which learns the layers' names.
    """

    def __init__(
        self,
        rank: int,
        open_engine: Callable[[StoreLayout], TuttiEngine],
        *,
        stores: bool = True,
        by_request: bool = False,
        shared: SharedWorker | None = None,
    ) -> None:
        """Make a worker's side.

        Args:
            rank: this worker's number in the engine.
            open_engine: makes an engine on this rank's part of a store, ready to be bound.
            stores: whether this rank stores; else another one stores the same bytes.
            by_request: whether a load that failed is reported by its request instead of its blocks.
            shared: this rank's transfers from and to a shared store, if there is one.
        """
        self.shared = shared
        self._rank = rank
        self._meter = WorkerMeter(rank)
        self._open_engine = open_engine
        self._stores = stores
        self._by_request = by_request
        self._failed: set[str] = set()
        self._mover: Mover | None = None
        self._settings: ExecutionSettings | None = None
        self._engine: TuttiEngine | None = None
        self._unusable: str | None = None
        self._asleep = False
        self._orders = StepOrders()
        self._idle = False
        # Whether the last step had news: vLLM may look at them only after the next one.
        self._told = False
        # Whether the last statistics were no news.
        self._still = False
        self.quiet = False
        self._layers = LayerLoads(())
        # Whether the step has computed with pages that were not right.
        self._tainted = False
        self._waiting: dict[int, RequestLoad] = {}
        self._refused: list[Result] = []
        self._results: list[Result] = []
        self._received: set[str] = set()
        self._bad_blocks: set[int] = set()

    def register(
        self, mover: Mover, layer_names: Sequence[str] = (), settings: ExecutionSettings | None = None
    ) -> None:
        """Take the way to reach this rank's pages, and vLLM's names of its layers in the mover's order.

        ``settings`` bound what is staged; by default as ``ExecutionSettings`` says.
        """
        self._mover = mover
        self._settings = settings
        self._layers = LayerLoads(layer_names)
        _here.add(self)

    def sleep(self) -> None:
        """Leave the pages alone until ``wake``: their memory is about to go. May be called again."""
        self._asleep = True
        for load in self._waiting.values():
            if load.plan is not None:
                self._end_early(load.plan)
        self.leave_pages()

    def wake(self) -> None:
        """Use the pages again, which lie where they were. May be called again."""
        self._asleep = False

    def leave_pages(self) -> None:
        """Give up stores whose pages were not copied; nothing reads pages for one once this returns."""
        if self._engine is not None:
            self._engine.leave_pages()
        if self.shared is not None:
            self.shared.leave_pages()

    def refuse(self, reason: str) -> None:
        """Note that this rank's KV cache cannot be used; the scheduler is told with the next report."""
        self._unusable = reason

    def give_back(self, blocks: Sequence[int] | None) -> None:
        """Leave blocks alone that the next step may write to, None for all. May be called again."""
        try:
            if blocks is None:
                self.leave_pages()
            elif blocks:
                if self._engine is not None:
                    self._engine.reuse_blocks(blocks)
                if self.shared is not None:
                    self.shared.reuse_blocks(blocks)
        except Exception:
            # Nothing is stored of these blocks, and the step has other orders.
            logger.exception("Tutti: the device did not take the order to wait for stores.")

    def begin_step(self, orders: StepOrders) -> None:
        """Take the step's orders. Loads start in ``start_loads``, stores in ``finish_step``."""
        self.quiet = self._is_quiet(orders)
        if self.quiet:
            return
        self._orders = orders
        self._idle = orders.idle
        self.give_back(orders.rewritten)
        self._settle_layers()
        self._layers.begin_step()
        self._tainted = False
        for plan_id in orders.unwanted:
            self._give_up(plan_id)
        if orders.layout is not None:
            # A plan that needs the store and does not get it says why.
            with contextlib.suppress(Exception):
                self._opened(orders.layout)
            self._open_shared(orders)

    def _is_quiet(self, orders: StepOrders) -> bool:
        if orders.layout is not None or orders.loads or orders.stores or orders.unwanted:
            return False
        if orders.rewritten is None or orders.rewritten:
            return False
        if self._waiting or not self._still or self.shared is not None or self._unusable is not None:
            return False
        if self._refused or self._results or self._received or self._bad_blocks or self._failed:
            return False
        return self._engine is None or self._engine.executor.is_idle

    def start_loads(self) -> None:
        """Start the step's loads; called before or after the layers ran, or in a step without any."""
        loads, self._orders = self._orders.loads, StepOrders(self._orders.layout, (), self._orders.stores)
        if not loads:
            return
        try:
            self._start(loads)
        except Exception:
            logger.exception("Tutti: loads were not started; their tokens are computed again.")
            for load in loads:
                # Requests wait for every one of them, or the step has begun to go by what they bring.
                if load.plan is None or load.plan.plan_id not in self._waiting:
                    self._fail(load)
                    if load.plan is not None:
                        # The scheduler's side holds its chunks until it hears of it.
                        self._refuse(load.plan, errno.EIO)

    def wait_for_layer(self, name: str) -> None:
        """Return once a layer's pages may be read."""
        self._layers.wait(name)

    def finish_step(self) -> None:
        """Copy the pages of the step's stores; vLLM may reuse them as soon as this returns."""
        self._settle_layers()
        stores, self._orders = self._orders.stores, StepOrders(self._orders.layout)
        for plan in stores if self._stores else ():
            if self._tainted:
                # Some of what the step computed went on from pages that are not right.
                self._refuse(plan, errno.ECANCELED)
            else:
                self._execute(plan)

    def collect(self) -> None:
        """Take up what has ended since the last call, and all loads that the step waited for."""
        self._settle_layers()
        self._rest()
        results, self._refused = self._refused, []
        if self._engine is not None:
            results += self._engine.take_results()
        for result in results:
            if self.shared is not None and is_shared_plan(result.plan_id):
                self.shared.meter.end(result)
            else:
                self._meter.end(result)
        if self.shared is not None:
            results += self.shared.take_results()
        for result in results:
            if isinstance(result, LoadResult):
                self._end_load(result)
        self._results += results
        self._told = bool(self._received or self._results)

    def _rest(self) -> None:
        """Wait a little for loads, in a step without anything to compute.

        vLLM makes such steps one after the other as long as a request waits for its load. Each holds the
        interpreter's lock, which the loading threads need, too. It may plan a step before it looks at what
        the last one told (asynchronous scheduling), so after news there is no rest: a request that is ready
        would wait for others' loads.
        """
        idle, self._idle = self._idle, False
        news = self._told or self._refused or self._received or self._results
        if idle and self._waiting and not news and self._engine is not None:
            self._engine.wait_for_results(time.monotonic() + REST_SECONDS)

    def take_received(self) -> set[str]:
        """Return the requests whose loads ended, well or badly, since the last call."""
        received, self._received = self._received, set()
        return received

    def take_failed(self) -> set[str]:
        """Return those of the received requests whose loads ended badly, where blocks cannot tell."""
        failed, self._failed = self._failed, set()
        return failed

    def take_bad_blocks(self) -> set[int]:
        """Return the blocks that were promised and do not hold their KV, since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_report(self) -> StepReport | None:
        """Return what to tell the scheduler, None if nothing happened."""
        report = StepReport()
        if self._results:
            report.results[self._rank] = tuple(self._results)
            self._results = []
        if self._unusable is not None:
            report.unusable[self._rank] = self._unusable
            self._unusable = None
        return report if report.results or report.unusable else None

    def in_use(self) -> dict[str, int]:
        """Return what is held for requests and transfers, by name; all 0 when idle."""
        own = {
            "orders": len(self._orders.loads) + len(self._orders.stores),
            "waiting_loads": len(self._waiting),
            "untold_results": len(self._refused) + len(self._results),
            "untold_requests": len(self._received),
            "untold_bad_blocks": len(self._bad_blocks) + len(self._failed),
        }
        own |= {} if self._engine is None else self._engine.executor.in_use()
        return own if self.shared is None else own | self.shared.in_use()

    def take_stats(self) -> Payload | None:
        """Return what happened on this rank since the last call, None if nothing did."""
        own = self._meter.take(None if self._engine is None else self._engine.executor)
        shared = None if self.shared is None else self.shared.take_stats()
        if own is not None and shared is not None:
            merge(own, shared)
        self._still = own is None and shared is None
        return own or shared

    def shutdown(self, timeout: float) -> None:
        """Finish what is under way for up to ``timeout`` seconds and close the store."""
        engine, self._engine = self._engine, None
        if engine is not None and not engine.shutdown(timeout):
            logger.warning("Tutti: transfers were still under way after %.0f s; they are given up.", timeout)
        if self.shared is not None:
            self.shared.shutdown(min(timeout, SHARED_SHUTDOWN_SECONDS))

    def _start(self, loads: Sequence[RequestLoad]) -> None:
        # A step waits for its layer-wise loads, so they go first.
        self._start_by_layers([load for load in loads if load.layerwise and load.plan is not None])
        for load in loads:
            if load.plan is None:
                self._fail(load)
            elif not load.layerwise:
                if not is_shared_plan(load.plan.plan_id):
                    self._meter.begin_load(load.plan.plan_id)
                self._waiting[load.plan.plan_id] = load
        # A request is told once all of its loads have ended, so that all of them are known first.
        for load in loads:
            if load.plan is not None and not load.layerwise:
                self._execute(load.plan, load.patience)

    def _start_by_layers(self, loads: Sequence[RequestLoad]) -> None:
        if not loads:
            return
        plans = [load.plan for load in loads if load.plan is not None]
        for plan in plans:
            self._meter.begin_load(plan.plan_id)
        self._waiting.update((plan.plan_id, load) for plan, load in zip(plans, loads, strict=True))
        try:
            self._layers.start(self._opened(self._orders.layout), plans)
        except Exception as error:
            logger.warning("Tutti: rank %d cannot use the store: %s", self._rank, error)
            self._tainted = True
            for plan in plans:
                self._refuse(plan, getattr(error, "errno", None) or errno.EIO)

    def _give_up(self, plan_id: int) -> None:
        """Give a parked request's blocks back at once, whatever its load waits for."""
        load = self._waiting.get(plan_id)
        if load is None or load.plan is None or load.layerwise:
            return
        self._end_early(load.plan)
        del self._waiting[plan_id]
        self._receive(load)

    def _end_early(self, plan: LoadPlan) -> None:
        """Have nothing write to a load's pages any more."""
        if is_shared_plan(plan.plan_id):
            if self.shared is not None:
                self.shared.give_up(plan)
        elif self._engine is not None:
            self._engine.give_up_load(plan)

    def _receive(self, load: RequestLoad) -> None:
        """Report a request whose load has ended, unless another one of it has not."""
        if all(other.request_id != load.request_id for other in self._waiting.values()):
            self._received.add(load.request_id)

    def _settle_layers(self) -> None:
        lost, tainted = self._layers.settle()
        self._tainted |= tainted
        for plan_id in lost:
            load = self._waiting.pop(plan_id, None)
            if load is not None:
                self._fail(load)

    def _fail(self, load: RequestLoad) -> None:
        """Report all blocks of a load; vLLM must hear of a request only if it waits outside of the steps."""
        self._lose(load.request_id, load.block_ids)
        if load.layerwise:
            self._tainted = True
        else:
            self._receive(load)

    def _refuse(self, plan: LoadPlan | StorePlan, code: int) -> None:
        """Report a plan as ended although it was not tried."""
        count = len(plan.transfers)
        self._refused.append(
            LoadResult(plan.plan_id, tuple(range(count)), code, untried=tuple(range(count)))
            if isinstance(plan, LoadPlan)
            else StoreResult(plan.plan_id, (None,) * count, errno=code)
        )

    def _open_shared(self, orders: StepOrders) -> None:
        if self.shared is None or not orders.shared or orders.layout is None or self._asleep:
            return
        try:
            self.shared.open(orders.layout, orders.shared)
        except Exception as error:
            # The next orders try again.
            logger.warning("Tutti: rank %d cannot use the shared store: %s", self._rank, error)

    def _execute_shared(self, plan: LoadPlan | StorePlan, patience: float) -> None:
        if self.shared is None or self._asleep:
            self._refuse(plan, errno.ECANCELED)
            return
        try:
            if isinstance(plan, LoadPlan):
                self.shared.load(plan, patience)
            else:
                self.shared.store(plan)
        except Exception as error:
            logger.debug("Tutti: rank %d cannot use the shared store: %s", self._rank, error)
            self._refuse(plan, getattr(error, "errno", None) or errno.EIO)

    def _execute(self, plan: LoadPlan | StorePlan, patience: float = 0.0) -> None:
        """Start a plan; one that cannot be started has ended, badly."""
        if is_shared_plan(plan.plan_id):
            self._execute_shared(plan, patience)
            return
        try:
            engine = self._opened(self._orders.layout)
            if isinstance(plan, LoadPlan):
                engine.load(plan)
            else:
                engine.store(plan)
        except Exception as error:
            logger.warning("Tutti: rank %d cannot use the store: %s", self._rank, error)
            self._refuse(plan, getattr(error, "errno", None) or errno.EIO)

    def _opened(self, layout: StoreLayout | None) -> TuttiEngine:
        if self._asleep:
            raise OSError(errno.ECANCELED, "the server's KV cache is asleep")
        if self._engine is None:
            if self._mover is None or layout is None:
                raise RuntimeError("the KV cache of this rank is not registered")
            engine = self._open_engine(layout)
            try:
                engine.bind(self._mover, self._settings)
            except BaseException:
                # The next orders try again: each time with files and threads of its own.
                engine.shutdown(0.0)
                raise
            self._engine = engine
        return self._engine

    def _end_load(self, result: LoadResult) -> None:
        load = self._waiting.pop(result.plan_id, None)
        if load is None:
            # It was given up, and its blocks may belong to somebody else by now.
            return
        if not load.layerwise:
            self._receive(load)
        assert load.plan is not None
        for position in result.failed:
            for rows in load.plan.columns.groups:
                self._lose(load.request_id, (block for block in rows[position] if block != SKIP_BLOCK))

    def _lose(self, request_id: str, block_ids: Iterable[int]) -> None:
        if self._by_request:
            self._failed.add(request_id)
        else:
            self._bad_blocks.update(block_ids)


def leave_pages_here() -> None:
    """Have all sides of this process leave their pages alone, as far as stores go.

    An engine in its caller's process may go to sleep right after the reset that it begins with, without a
    step in between, and vLLM 0.32 tells no worker that the memory of its pages goes.
    """
    for side in list(_here):
        side.leave_pages()
