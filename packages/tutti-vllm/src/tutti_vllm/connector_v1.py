# SPDX-License-Identifier: Apache-2.0
"""The connector: both roles, forwards only.

vLLM ends the whole server when a connector's callback raises, so none of them does: a failure is logged, and
the callback answers what a cache with nothing in it would answer.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tutti_vllm.compat import check_vllm, join_vllm_log, optional

check_vllm()

from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from tutti_vllm.messages import StepOrders, StepReport  # noqa: E402
from tutti_vllm.metrics.prom_metrics import TuttiPromMetrics  # noqa: E402
from tutti_vllm.metrics.stats import TuttiStats  # noqa: E402
from tutti_vllm.payload import make_payload  # noqa: E402
from tutti_vllm.start import opening  # noqa: E402
from tutti_vllm.worker_side.worker import leave_pages_here  # noqa: E402

if TYPE_CHECKING:
    from tutti_vllm.scheduler_side.scheduler import SchedulerSide
    from tutti_vllm.worker_side.worker import WorkerSide

__all__ = ["TuttiConnectorV1", "TuttiMetadata", "TuttiWorkerMetadata"]

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 10.0

Method = TypeVar("Method", bound=Callable[..., Any])


def contained(answer: Callable[[], Any], *, in_step: bool = False) -> Callable[[Method], Method]:
    """Make a callback log an exception and return ``answer()`` instead of letting it out.

    A worker's callback ``in_step`` also answers so in a quiet step.
    """

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def unless_quiet(self: TuttiConnectorV1, *args: Any, **kwargs: Any) -> Any:
            return answer() if self._quiet else guarded(self, *args, **kwargs)

        @functools.wraps(method)
        def guarded(self: TuttiConnectorV1, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                logger.exception("Tutti: %s failed; the server goes on.", method.__name__)
                return answer()

        return unless_quiet if in_step else guarded  # type: ignore[return-value]

    return wrap


class TuttiMetadata(KVConnectorMetadata):
    """Carries the scheduler's orders to the workers."""

    def __init__(self, orders: StepOrders) -> None:
        self.orders = orders


class TuttiWorkerMetadata(KVConnectorWorkerMetadata):
    """Carries the workers' reports to the scheduler."""

    def __init__(self, report: StepReport) -> None:
        self.report = report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> TuttiWorkerMetadata:
        """Join two ranks' reports."""
        assert isinstance(other, TuttiWorkerMetadata)
        return TuttiWorkerMetadata(self.report.merge(other.report))


class TuttiConnectorV1(KVConnectorBase_V1, SupportsHMA):
    """Keeps vLLM's KV cache on disk and gives it back, also after a restart.

    It takes part in vLLM's hybrid memory: models run with as many KV cache groups as without it.
    """

    # Newer than the oldest supported version, which does not look for it.
    _cache_hit_source = getattr(optional("vllm.v1.metrics.cache_hit_source", "CacheHitSource"), "DISK", None)
    _open_worker = staticmethod(opening.open_worker)
    # Whether this side is a worker's and its step has nothing to do.
    _quiet = False
    # Whether block hashes stand for an image's content.
    _media_have_names = True

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        join_vllm_log()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._told_absence = False
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = opening.open_scheduler(vllm_config, kv_cache_config)
            self._media_have_names = opening.names_media(vllm_config)
        else:
            self._worker = self._open_worker(vllm_config, kv_cache_config)
            opening.add_ranges(self._worker, vllm_config)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Return whether vLLM must call the layers' hooks: only where the user asks for layer-wise loads.

        ``auto`` takes the graphs as they are: where they are full ones it loads whole requests.
        """
        return extra_config.get("load_mode") == "layerwise"

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: a store that is lost costs a later hit, nothing else."""
        return False

    def counters(self) -> dict[str, int]:
        """Return this process's totals (see ``SchedulerSide.counters``); empty on a worker's side.

        The planner's, summed over the store's life, are in its catalogue:
        ``tutti_engine.catalogue.catalogue.read_counters``.
        """
        return {} if self._scheduler is None else self._scheduler.counters()

    def degraded(self) -> dict[str, str]:
        """Return what the server does without at present, and why; see ``SchedulerSide.degraded``."""
        return {} if self._scheduler is None else self._scheduler.degraded()

    def in_use(self) -> dict[str, int]:
        """Return what is held for requests and transfers on this side, by name; empty when idle."""
        sides = [side.in_use() for side in (self._scheduler, self._worker) if side is not None]
        return {name: count for side in sides for name, count in side.items() if count}

    # Both.

    @contained(lambda: None, in_step=True)
    def get_kv_connector_stats(self) -> TuttiStats | None:
        """Return what happened since the last call, for vLLM's log and ``/metrics``; None if nothing did."""
        side = self._scheduler or self._worker
        if side is not None:
            payload = side.take_stats()
        elif self._told_absence:
            payload = None
        else:
            self._told_absence = True
            payload = make_payload(gauges={"degraded": 1.0})
        return None if payload is None else TuttiStats(payload)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TuttiStats:
        """Return statistics from what crossed the processes."""
        return TuttiStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TuttiPromMetrics:
        """Register the connector's metrics beside vLLM's own."""
        return TuttiPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Scheduler.

    @contained(lambda: None)
    def on_new_request(self, request: Any) -> None:
        """Start to look after a request whose KV is the same for everybody who sends the same tokens."""
        if self._scheduler is None or request.pooling_params is not None:
            return
        # What vLLM's block hashes say of an embedding was not looked at.
        plain = getattr(request, "prompt_embeds", None) is None
        adapter = None
        if request.lora_request is not None:
            # They have an adapter's name, under which it may change.
            adapter = self._scheduler.adapters.find(request.lora_request)
            plain = plain and adapter is not None
        if not self._media_have_names:
            # One that goes on with new input may bring an image later.
            plain = plain and not getattr(request, "mm_features", None) and not request.resumable
        if plain:
            self._scheduler.add_request(request, adapter)

    @contained(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens will be loaded beyond the local hit, and whether asynchronously.

        None makes vLLM ask again in its next step.
        """
        if self._scheduler is None or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        return self._scheduler.promise(request, num_computed_tokens)

    @contained(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load of tokens that vLLM now counts as computed."""
        if self._scheduler is not None and num_external_tokens > 0:
            self._scheduler.plan_load(request, blocks.get_block_ids(), num_external_tokens)

    @contained(lambda: TuttiMetadata(StepOrders(rewritten=None)))
    def build_connector_meta(self, scheduler_output: Any) -> TuttiMetadata:
        """Return the step's orders to the workers."""
        if self._scheduler is None:
            return TuttiMetadata(StepOrders())
        orders = self._scheduler.build_orders(
            scheduler_output.num_scheduled_tokens,
            scheduler_output.scheduled_spec_decode_tokens,
            scheduler_output.kv_connector_block_state.get_block_ids,
        )
        return TuttiMetadata(self._scheduler.add_rewritten(orders, scheduler_output))

    @contained(lambda: None)
    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Take the way to vLLM's own prefix cache, from which spoilt blocks have to go."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.exposed.bind(kv_cache_manager.evict_blocks)

    @contained(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        """Take the workers' reports."""
        if self._scheduler is not None:
            self._scheduler.exposed.end_step(getattr(connector_output, "invalid_block_ids", None) or ())
        metadata = connector_output.kv_connector_worker_meta
        if self._scheduler is not None and isinstance(metadata, TuttiWorkerMetadata):
            self._scheduler.take_report(metadata.report)

    @contained(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Stop looking after a request. Its blocks are free: stores hold copies of their own."""
        if self._scheduler is not None:
            self._scheduler.remove_request(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As ``request_finished``, for all KV cache groups."""
        return self.request_finished(request, block_ids[0] if block_ids else [])

    @contained(tuple)
    def take_events(self) -> Iterable[Any]:
        """Return vLLM's KV events for chunks that came and went, if the user has switched them on."""
        events = None if self._scheduler is None else self._scheduler.events
        return () if events is None else events.take()

    @contained(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Keep an idle engine stepping until every store is reported, and for one step at the start."""
        return self._scheduler is not None and self._scheduler.has_pending_work()

    @contained(lambda: False)
    def reset_cache(self) -> bool | None:
        """Forget every chunk, on disk as well; False if the disk may still remember some after a restart."""
        if self._scheduler is None:
            return True
        leave_pages_here()
        return self._scheduler.reset()

    # Worker.

    @contained(lambda: None)
    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Take the paged KV cache of this rank."""
        if self._worker is not None:
            opening.register(self._worker, self._vllm_config, self._kv_cache_config, kv_caches)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Return True: after sleep mode's remapping the pages lie at the addresses that are known."""
        return True

    @contained(lambda: None)
    def unregister_kv_caches(self) -> None:
        """Leave the pages alone while the server sleeps."""
        if self._worker is not None:
            self._worker.sleep()

    @contained(lambda: None)
    def restore_kv_caches(self) -> None:
        """Use the pages again."""
        if self._worker is not None:
            self._worker.wake()

    @contained(lambda: None)
    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take the step's orders: the only callback that surely comes before everything else of a step."""
        super().bind_connector_metadata(connector_metadata)
        self._quiet = False
        if self._worker is not None and isinstance(connector_metadata, TuttiMetadata):
            self._worker.begin_step(connector_metadata.orders)
            self._quiet = self._worker.quiet

    @contained(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Give blocks back that the step may write to: vLLM may zero them before all other callbacks."""
        if self._worker is not None and isinstance(kv_connector_metadata, TuttiMetadata):
            self._worker.give_back(kv_connector_metadata.orders.rewritten)

    @contained(lambda: None, in_step=True)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start the step's loads."""
        if self._worker is not None:
            self._worker.start_loads()

    @contained(lambda: None)
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait until the layer's pages may be read."""
        if self._worker is not None:
            self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: pages are copied once a step, in ``wait_for_save``; docs/life-cycle.md says why."""

    @contained(lambda: None, in_step=True)
    def wait_for_save(self) -> None:
        """Copy the pages of chunks that this step completed."""
        if self._worker is not None:
            self._worker.finish_step()

    @contained(lambda: (None, None), in_step=True)
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests whose loads have ended; nothing is ever sent."""
        if self._worker is None:
            return None, None
        self._worker.collect()
        return None, self._worker.take_received() or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return what ``get_finished`` does, and the requests whose loads failed where blocks cannot tell."""
        if self._quiet:
            return KVConnectorTransferResults(set(), set(), set())
        sent, received = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(
            finished_sending=set(sent or ()),
            finished_recving=set(received or ()),
            failed_recving=self._take_failed(),
        )

    @contained(set)
    def _take_failed(self) -> set[str]:
        return set() if self._worker is None else self._worker.take_failed()

    @contained(set, in_step=True)
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that were promised and did not arrive."""
        return set() if self._worker is None else self._worker.take_bad_blocks()

    @contained(lambda: None, in_step=True)
    def build_connector_worker_meta(self) -> TuttiWorkerMetadata | None:
        """Return this rank's report, if there is anything to say."""
        report = None if self._worker is None else self._worker.take_report()
        return None if report is None else TuttiWorkerMetadata(report)

    @contained(lambda: None)
    def shutdown(self) -> None:
        """Finish within a bounded time. What vLLM kills before is lost, never wrong."""
        if self._worker is not None:
            self._worker.shutdown(SHUTDOWN_SECONDS)
        if self._scheduler is not None:
            self._scheduler.shutdown()
