# SPDX-License-Identifier: Apache-2.0
"""Start-up of both sides, where settings, disk and model meet and a cache may be refused."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tutti_engine import ExecutionSettings, Mover, TuttiEngine, TuttiError
from tutti_engine.geometry import Geometry
from tutti_engine.mover import BackgroundMover
from tutti_engine.namespace import Namespace
from tutti_engine.planning.upkeep import Upkeep
from tutti_engine.store.follow import ViewFollower
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.local_store import LocalStore
from tutti_engine.store.roots import prepare_directory
from tutti_engine.store.space import SpaceSettings
from tutti_engine.store.view import LocalStoreView
from tutti_vllm.compat import check_vllm, untested
from tutti_vllm.metrics.status_line import StatusLine
from tutti_vllm.metrics.transfer_spans import TransferSpans, find_tracer
from tutti_vllm.scheduler_side.load_mode import LoadRules, why_not_layerwise
from tutti_vllm.scheduler_side.scheduler import SchedulerSide
from tutti_vllm.settings.settings import Settings, SettingsError
from tutti_vllm.settings.sources import effective
from tutti_vllm.start.cache_groups import check_groups, layer_names, loses_whole_requests
from tutti_vllm.start.identity import make_geometry, make_namespace, names_media_by_content
from tutti_vllm.start.shared_opening import execution_settings, open_shared_engine, open_shared_side
from tutti_vllm.start.topology import Topology, read_topology
from tutti_vllm.worker_side import ranges
from tutti_vllm.worker_side.shared_worker import SharedWorker
from tutti_vllm.worker_side.worker import WorkerSide

__all__ = [
    "MakeEngine",
    "StartupError",
    "add_ranges",
    "check_settings",
    "make_local_engine",
    "make_mover",
    "names_media",
    "open_scheduler",
    "open_worker",
    "register",
]

logger = logging.getLogger(__name__)

MakeEngine: TypeAlias = Callable[[Geometry, StoreLayout, int], TuttiEngine]
"""Makes an engine from a chunk's shape, the store's layout and the rank."""

DEVICE_SETTINGS = ExecutionSettings(load_bank_bytes=384 << 20, store_bank_bytes=512 << 20)
"""Staging for a GPU: its link takes a batch in milliseconds, so that more must be on the way at a time."""


class StartupError(SystemExit):
    """Ends the process with one line on standard error and no traceback."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"Tutti: {reason}")


def check_settings(extra: Mapping[str, Any]) -> Settings:
    """Return the settings. Ends the process if they are wrong, or strict with a root that cannot be used."""
    try:
        settings = effective(extra, os.environ).settings
        if settings.strict and not settings.read_only:
            for root in settings.roots:
                prepare_directory(root)
    except (SettingsError, TuttiError) as error:
        raise StartupError(error) from None
    return settings


def read_settings(vllm_config: Any) -> Settings:
    """Return the user's settings, which vLLM carries to every process."""
    return check_settings(vllm_config.kv_transfer_config.kv_connector_extra_config or {})


def open_scheduler(vllm_config: Any, kv_cache_config: Any) -> SchedulerSide | None:
    """Open the store for the scheduler; None if the server shall go on without a cache."""
    settings = read_settings(vllm_config)
    try:
        side = _open_scheduler(settings, vllm_config, kv_cache_config)
    except Exception as error:
        # Whatever it is: a cache is no reason for a server not to start, unless its user says so.
        _refuse(settings, error)
        return None
    planner = side.engine.planner
    news = untested(check_vllm())
    if news is not None:
        logger.warning("%s", news)
    logger.info(
        "Tutti: %d chunks of %d tokens are on disk, there is room for %d, in %s.",
        planner.resident_chunks,
        planner.geometry.chunk_tokens,
        planner.capacity_chunks,
        ", ".join(map(str, settings.roots)),
    )
    policy = getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "recompute")
    if policy != "recompute":
        logger.warning(
            "Tutti: kv_load_failure_policy is %r: a request whose cached part turns out damaged will fail. "
            "Set it to 'recompute' and it is computed instead.",
            policy,
        )
    return side


def names_media(vllm_config: Any) -> bool:
    """Return whether requests with images or sound can be cached; say so where they cannot."""
    named = names_media_by_content(vllm_config)
    if not named:
        logger.warning(
            "Tutti: with mm_processor_cache_gb 0 and without prefix caching vLLM does not tell images apart; "
            "requests with images, videos or sound are not cached. Switch one of the two on."
        )
    return named


def make_local_engine(geometry: Geometry, layout: StoreLayout, rank: int) -> TuttiEngine:
    """Make the engine of one rank on its part of a store."""
    from tutti_engine.backends.local import LocalStoreBackend

    return TuttiEngine(geometry, backend=LocalStoreBackend(layout, rank), rank=rank)


def make_mover(layers: Mapping[str, tuple[Any, Any]]) -> Mover:
    """Return the way to reach pages, given as tensors and layouts by layer: on a CUDA device or not."""
    import tutti_kv_kernels as kernels

    cache = kernels.PagedCache.from_layouts(layers)
    if cache.storages[0].is_cuda:
        from tutti_engine.movers.device import DeviceMover

        return DeviceMover(cache)
    from tutti_engine.movers.kernels import KernelMover

    return KernelMover(cache)


def open_worker(
    vllm_config: Any, kv_cache_config: Any, make_engine: MakeEngine = make_local_engine
) -> WorkerSide:
    """Make a worker's side; one that only says what is wrong if the KV cache cannot be used.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: the resolved KV cache.
        make_engine: makes the rank's engine once the store is known, ready to be bound.
    """
    settings = read_settings(vllm_config)
    topology, worker, by_request = Topology(), 0, False

    def open_engine(layout: StoreLayout) -> TuttiEngine:
        geometry = make_geometry(
            vllm_config, kv_cache_config, settings.blocks_per_chunk, num_layers=layout.num_layers
        )
        return make_engine(geometry, layout, topology.part(worker))

    # The scheduler's side fails for the same reasons and, if it is strict, ends the start with one line; a
    # worker that ended first would bury that line under its parents' tracebacks.
    with _reasons(strict=False) as reasons:
        from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

        topology = read_topology(vllm_config, kv_cache_config)
        stage = 0 if len(topology.stages) == 1 else get_pp_group().rank_in_group
        worker = topology.worker(get_tensor_model_parallel_rank(), stage)
        geometry = make_geometry(vllm_config, kv_cache_config, settings.blocks_per_chunk)
        by_request = loses_whole_requests(geometry)
    shared = None
    if settings.shared.shared_store is not None:

        def open_shared(layout: StoreLayout, digest: str) -> TuttiEngine:
            geometry = make_geometry(
                vllm_config, kv_cache_config, settings.blocks_per_chunk, num_layers=layout.num_layers
            )
            return open_shared_engine(settings.shared, digest, geometry, topology.part(worker))

        shared = SharedWorker(worker, open_shared)
    side = WorkerSide(
        worker, open_engine, stores=topology.stores(worker), by_request=by_request, shared=shared
    )
    if reasons:
        side.refuse(reasons[0])
    return side


def add_ranges(side: WorkerSide, vllm_config: Any) -> None:
    """Put ranges for profilers around a worker's work, if the user has switched them on."""
    if ranges.are_wanted(read_settings(vllm_config).nvtx):
        ranges.add_to_worker(side, ranges.find_marks())


def register(side: WorkerSide, vllm_config: Any, kv_cache_config: Any, kv_caches: Mapping[str, Any]) -> None:
    """Work out where the pages of every layer lie."""
    settings = read_settings(vllm_config)
    with _reasons(strict=settings.strict) as reasons:
        import tutti_kv_kernels as kernels

        geometry = make_geometry(vllm_config, kv_cache_config, settings.blocks_per_chunk)
        pages = {layer: group.page_bytes for group in geometry.groups for layer in group.layers}
        layers = {}
        names = layer_names(kv_cache_config)
        for number, name in enumerate(names):
            layout = kernels.PagedLayout.from_kv_cache(
                kv_caches[name],
                kv_cache_layout=kv_cache_config.kv_cache_layout,
                page_bytes=pages[number],
                num_blocks=kv_cache_config.num_blocks,
                layer_name=name,
            )
            layers[name] = kv_caches[name], layout
        mover = make_mover(layers)
        execution = _execution(mover, kv_cache_config)
        side.register(mover, names, execution)
        _register_shared(side, settings, lambda: make_mover(layers), execution)
    if reasons:
        side.refuse(reasons[0])


def _register_shared(
    side: WorkerSide, settings: Settings, make: Callable[[], Mover], execution: ExecutionSettings | None
) -> None:
    """Give the shared store's transfers a way to the pages; a mover serves one window."""
    if side.shared is None:
        return
    late = True if execution is None else execution.late_copies
    try:
        side.shared.register(make(), replace(execution_settings(settings.shared), late_copies=late))
    except Exception as error:
        # Not a reason to go without the own drive.
        logger.warning("Tutti: this rank goes without the shared store: %s", error)


@contextlib.contextmanager
def _reasons(*, strict: bool) -> Iterator[list[str]]:
    """Collect why a worker's part of the start-up failed; if it is strict, end the process instead."""
    reasons: list[str] = []
    try:
        yield reasons
    except Exception as error:
        if strict:
            raise StartupError(error) from None
        reasons.append(str(error) or repr(error))


def _open_scheduler(settings: Settings, vllm_config: Any, kv_cache_config: Any) -> SchedulerSide:
    import tutti_kv_kernels as kernels

    geometry = make_geometry(vllm_config, kv_cache_config, settings.blocks_per_chunk)
    check_groups(geometry)
    namespace = make_namespace(vllm_config, kv_cache_config, geometry, kernels.CHECKSUM_NAME, check_vllm())
    topology = read_topology(vllm_config, kv_cache_config)
    ranks = topology.parts
    replica = _replica(settings, vllm_config.parallel_config)
    store = _open_store(settings, namespace, geometry, ranks, replica)
    upkeep = contextlib.ExitStack()
    upkeep.callback(store.close)
    try:
        engine = TuttiEngine(
            geometry,
            chunk_ids=store.chunk_ids,
            records=store.records,
            journal=None if isinstance(store, LocalStoreView) else store.catalogue,
            places=None if isinstance(store, LocalStoreView) else store.places,
            read_only=settings.read_only,
            ranks=ranks,
            load_ranks=topology.workers,
            policies=settings.policies,
        )
        if isinstance(store, LocalStoreView):
            upkeep.callback(ViewFollower(store, engine.planner).close)
        else:
            upkeep.callback(Upkeep(engine.planner).close)
        # The planner and its upkeep have taken over what they need.
        store.records.clear()
        hash_tokens = kv_cache_config.hash_block_size or geometry.block_tokens
        side = SchedulerSide(
            engine,
            store.layout,
            hash_tokens=hash_tokens,
            close=upkeep.close,
            rules=_load_rules(settings, vllm_config, geometry, topology.replicas),
            names_rewritten=_computes_on_device(vllm_config),
        )
        shared = open_shared_side(settings, namespace, geometry, topology, vllm_config)
        if shared is not None:
            upkeep.callback(shared.tier.close)
            side.use_shared(shared)
        _follow_events(side, vllm_config, kv_cache_config, hash_tokens)
        tracer = find_tracer(vllm_config)
        if tracer is not None:
            side.spans = TransferSpans(
                tracer,
                chunk_tokens=geometry.chunk_tokens,
                load_ranks=topology.workers,
                store_ranks=ranks,
            )
        upkeep.callback(StatusLine(side.meter, settings.log_interval_seconds).close)
        return side
    except BaseException:
        upkeep.close()
        raise


def _load_rules(settings: Settings, vllm_config: Any, geometry: Geometry, copies: int = 1) -> LoadRules:
    graphs = vllm_config.compilation_config.cudagraph_mode
    why_not = why_not_layerwise(
        settings.load_mode,
        # A version that does not say is taken to overlap its steps.
        concurrent_steps=getattr(vllm_config, "max_concurrent_batches", 2),
        full_graphs=graphs is not None and graphs.has_full_cudagraphs(),
        whole_requests=loses_whole_requests(geometry),
        copies=copies,
    )
    if settings.load_mode == "layerwise" and why_not is not None:
        logger.warning("Tutti: load_mode is 'layerwise', but loads are asynchronous: %s.", why_not)
    return LoadRules(
        mode=settings.load_mode,
        break_even=settings.break_even,
        layerwise=why_not is None,
        max_tokens=settings.max_loading_bytes // geometry.chunk_bytes * geometry.chunk_tokens,
    )


def _follow_events(side: SchedulerSide, vllm_config: Any, kv_cache_config: Any, hash_tokens: int) -> None:
    from tutti_vllm.scheduler_side.kv_events import KVEvents, are_enabled

    if not are_enabled(vllm_config):
        return
    side.events = KVEvents(
        side.engine.planner,
        hashes_per_chunk=side.engine.geometry.chunk_tokens // hash_tokens,
        hash_tokens=hash_tokens,
        group=0 if len(kv_cache_config.kv_cache_groups) == 1 else None,
    )


def _open_store(
    settings: Settings, namespace: Namespace, geometry: Geometry, ranks: int, replica: tuple[int, int]
) -> LocalStore | LocalStoreView:
    if settings.read_only:
        return LocalStoreView.open(settings.roots, namespace, geometry, ranks=ranks, replica=replica)
    return LocalStore.open(
        settings.roots,
        namespace,
        geometry,
        ranks=ranks,
        capacity_bytes=settings.capacity_bytes,
        replica=replica,
        space=SpaceSettings(min_free_bytes=settings.min_free_bytes, prepare=settings.prepare),
        reclaim_unused_days=settings.reclaim_unused_days or None,
    )


def _replica(settings: Settings, parallel_config: Any) -> tuple[int, int]:
    """Return this engine's number among data-parallel ones, and how many they are.

    vLLM tells engines of a dense model their number, but not how many there are.
    """
    replicas = settings.replicas or getattr(parallel_config, "data_parallel_size", 1)
    number = getattr(parallel_config, "data_parallel_index", 0)
    if number >= replicas:
        raise SettingsError(
            f"this is data-parallel engine {number} and replicas is {replicas}: set replicas to vLLM's"
            " data_parallel_size, so that each engine gets its share of the capacity"
        )
    return number, replicas


def _computes_on_device(vllm_config: Any) -> bool:
    return getattr(getattr(vllm_config, "device_config", None), "device_type", "cpu") != "cpu"


def _execution(mover: Mover, kv_cache_config: Any) -> ExecutionSettings | None:
    """Return what bounds a rank's transfers, None for the engine's own choice.

    vLLM's second model runner writes zeros to new blocks before it tells a connector anything of the step:
    where blocks need that, none may be left to be copied later. Models with caches of several precisions do.
    """
    if not isinstance(mover, BackgroundMover):
        return None
    # A version that does not say is taken to write first.
    zeroes = getattr(kv_cache_config, "needs_kv_cache_zeroing", True)
    return replace(DEVICE_SETTINGS, late_copies=not zeroes)


def _refuse(settings: Settings, error: Exception) -> None:
    if settings.strict:
        raise StartupError(error) from None
    logger.warning("Tutti: the server runs without the KV cache on disk: %s", error)
