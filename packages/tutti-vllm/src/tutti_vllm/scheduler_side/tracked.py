# SPDX-License-Identifier: Apache-2.0
"""The requests that vLLM's scheduler has, and what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tutti_engine import ChunkKey, TuttiEngine
from tutti_engine.chunk_key import keys_from_block_hashes
from tutti_engine.policies.eviction import Use
from tutti_vllm.metrics.meters import SchedulerMeter
from tutti_vllm.scheduler_side.adapters import Adapter, mixed
from tutti_vllm.scheduler_side.load_mode import Choice
from tutti_vllm.scheduler_side.prefill_times import Prefill
from tutti_vllm.scheduler_side.shared_side import SharedSide

__all__ = ["Request", "Tracked", "TrackedRequests"]


class Request(Protocol):
    """The part of ``vllm.v1.request.Request`` that is used."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int
    block_hashes: Sequence[bytes]
    cache_salt: str | None


@dataclass(slots=True)
class Tracked:
    """One request, as far as its transfers go."""

    request: Request
    # vLLM tells the local hit only when it asks for the external one.
    local_tokens: int = 0
    next_store_chunk: int = 0
    # A prompt is noted once, whatever becomes of its request.
    use: Use | None = None
    # After a load that failed the rest is computed: asking again might fail again, without end.
    loads: bool = True
    # After a reset nobody knows whether what was computed before is still right.
    stores: bool = True
    # Stands until the request is admitted, or its hit is another one.
    choice: Choice | None = None
    # What vLLM was told last.
    layerwise: bool = False
    # Whether its first step is behind it, and what is measured of its prefill.
    started: bool = False
    prefill: Prefill | None = None
    # Of the prompt and of what was answered so far, and the block hash behind the last one.
    keys: list[ChunkKey] = field(default_factory=list)
    last_hash: bytes = b""
    adapter: Adapter | None = None
    # Of what vLLM was told last, the tokens that come from the shared store.
    shared_tokens: int = 0
    # Leading chunks that can be worth a write to the shared store.
    shared_worth: int = 0


class TrackedRequests(dict[str, Tracked]):
    """Those that are looked after, by their names.

    Args:
        engine: is told of prompts.
        meter: counts them.
        hash_tokens: tokens that one of a request's block hashes stands for.

    Attributes:
        shared: a shared store's side, if there is one.
    """

    def __init__(self, engine: TuttiEngine, meter: SchedulerMeter, hash_tokens: int) -> None:
        super().__init__()
        self._engine = engine
        self._meter = meter
        self._hashes_per_chunk = engine.geometry.chunk_tokens // hash_tokens
        self.shared: SharedSide | None = None

    def keys_of(self, tracked: Tracked) -> list[ChunkKey]:
        """Return the keys of a request's whole chunks; not to be changed."""
        keys, hashes, each = tracked.keys, tracked.request.block_hashes, self._hashes_per_chunk
        # A request that goes on with new input may lose tokens, and the hashes of their blocks.
        if keys and (len(hashes) < len(keys) * each or tracked.last_hash != hashes[len(keys) * each - 1]):
            keys.clear()
        if len(hashes) >= (len(keys) + 1) * each:
            more = keys_from_block_hashes(hashes, each, start=len(keys))
            tracked.last_hash = more[-1]
            keys += more if tracked.adapter is None else mixed(tracked.adapter.digest, more)
        return keys

    def use_of(self, tracked: Tracked, hit_tokens: int = 0) -> Use:
        """Return what the engine noted of a request's prompt, telling it when it is first scheduled."""
        if tracked.use is None:
            request = tracked.request
            self._meter.note_prompt(request.num_tokens, hit_tokens)
            keys = self.keys_of(tracked).copy()
            tracked.use = self._engine.note_prompt(keys, request.cache_salt)
            if self.shared is not None and tracked.adapter is None:
                tracked.shared_worth = self.shared.tier.note_prompt(keys)
        return tracked.use
