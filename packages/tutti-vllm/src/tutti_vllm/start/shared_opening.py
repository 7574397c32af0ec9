# SPDX-License-Identifier: Apache-2.0
"""Start-up of a shared store's two sides. Neither waits for the store: it may come later, or never."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tutti_engine import ExecutionSettings, Geometry, TuttiEngine
from tutti_engine.namespace import Namespace
from tutti_engine.shared.backend import SharedBackend
from tutti_engine.shared.connecting_store import ConnectingStore
from tutti_engine.shared.kinds import make_shared_store
from tutti_engine.shared.lookup import LookupSettings
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.shared.tier import SharedTier, SharedTierSettings
from tutti_vllm.scheduler_side.shared_side import SharedRules, SharedSide
from tutti_vllm.settings.shared import SharedSettings
from tutti_vllm.start.identity import config_digest
from tutti_vllm.start.topology import Topology

if TYPE_CHECKING:
    from tutti_vllm.settings.settings import Settings

__all__ = ["execution_settings", "open_shared_engine", "open_shared_side", "shared_namespace"]

logger = logging.getLogger(__name__)

LOAD_BANK_BYTES = 128 << 20
"""Staging of a rank's loads. With half of it loads from Mooncake were slower: docs/cluster.md has figures."""


def open_shared_side(
    settings: Settings, namespace: Namespace, geometry: Geometry, topology: Topology, vllm_config: Any
) -> SharedSide | None:
    """Make the scheduler's side; None where there is no shared store, or none that can be used.

    Args:
        settings: the user's.
        namespace: of the local store.
        geometry: shape of a chunk.
        topology: who stores and loads.
        vllm_config: vLLM's configuration.
    """
    shared = settings.shared
    if shared.shared_store is None:
        return None
    if len(geometry.groups) > 1 and len(topology.stages) > 1:
        logger.warning(
            "Tutti: the shared store is left out: with several KV cache groups and pipeline stages the"
            " scheduler does not know which stage has layers of which group."
        )
        return None
    config = "" if shared.shared_weights is None else config_digest(vllm_config)
    tier = SharedTier(
        geometry,
        connect(shared),
        shared_namespace(namespace, shared, config).digest,
        ranks=topology.parts,
        load_ranks=topology.workers,
        settings=SharedTierSettings(
            write="never" if settings.read_only else shared.shared_write,
            max_writing_bytes=shared.shared_max_writing_bytes,
            lookup=LookupSettings(
                hit_seconds=shared.shared_hit_seconds,
                miss_seconds=shared.shared_miss_seconds,
                call_seconds=min(1.0, shared.shared_timeout_seconds),
            ),
        ),
    )
    rules = SharedRules(
        lookup_seconds=shared.shared_lookup_ms / 1000,
        lookup_asks=shared.shared_lookup_steps,
        load_seconds=shared.shared_timeout_seconds,
        break_even=settings.break_even,
        max_tokens=shared.shared_max_loading_bytes // geometry.chunk_bytes * geometry.chunk_tokens,
    )
    return SharedSide(tier, rules)


def shared_namespace(namespace: Namespace, shared: SharedSettings, config: str) -> Namespace:
    """Return what must be equal for servers to share: all of it, or a name in place of path and dates.

    Args:
        namespace: of the local store.
        shared: the user's settings.
        config: digest of the model's configuration without its path, which the namespace's own one has in it.
    """
    if shared.shared_weights is None:
        return namespace
    facts: dict[str, Any] = namespace.facts
    named = {"model": None, "revision": None, "weights": {"named": shared.shared_weights}}
    return Namespace(facts | named | {"hf_config": config})


def open_shared_engine(shared: SharedSettings, namespace: str, geometry: Geometry, part: int) -> TuttiEngine:
    """Make the engine of one rank.

    Args:
        shared: the user's settings.
        namespace: its digest, from the scheduler's side.
        geometry: of this rank's chunks.
        part: which part of a chunk this rank has.
    """
    backend = SharedBackend(connect(shared), ObjectNames(namespace), part, geometry)
    return TuttiEngine(geometry, backend=backend, rank=part)


def execution_settings(shared: SharedSettings) -> ExecutionSettings:
    """Return the bounds of a rank's transfers. A step never waits for room to write."""
    return ExecutionSettings(
        load_bank_bytes=LOAD_BANK_BYTES,
        store_bank_bytes=min(128 << 20, shared.shared_max_writing_bytes),
        io_timeout=shared.shared_timeout_seconds,
        store_stall=0.0,
    )


def connect(shared: SharedSettings) -> ConnectingStore:
    """Return a client that connects in the background."""
    return ConnectingStore(lambda: make_shared_store(shared.kind, **shared.options))
