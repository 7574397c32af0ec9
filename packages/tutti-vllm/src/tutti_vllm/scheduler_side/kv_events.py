# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV events for chunks on disk, so that a router knows which server has which prefix.

A chunk is told as the blocks that it covers, with vLLM's own block hashes. Only the hash of its last block is
kept over a restart, so a chunk that was stored before this process is told when a prompt first loads it;
what was never told is not told when it goes either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from vllm.distributed import kv_events as vllm_events
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tutti_engine import ChunkKey, LoadPlan, StorePlan
from tutti_engine.planning.planner import Planner
from tutti_vllm.compat import optional

__all__ = ["MEDIUM", "OWNER", "KVEvents", "are_enabled"]

MEDIUM = getattr(vllm_events, "MEDIUM_STORAGE", "STORAGE")
"""vLLM's own word for what is neither on the GPU nor in host memory, which routers know."""

OWNER = "tutti"

_UTILITIES = "vllm.v1.core.kv_cache_utils"


def are_enabled(vllm_config: Any) -> bool:
    """Whether the user has switched vLLM's KV events on."""
    config = getattr(vllm_config, "kv_events_config", None)
    return config is not None and bool(config.enable_kv_cache_events)


class KVEvents:
    """Follows a planner's chunks and turns them into events, in the order of what happens.

    Args:
        planner: whose chunks.
        hashes_per_chunk: block hashes that one chunk spans.
        hash_tokens: tokens that one block hash stands for.
        group: number of the KV cache group, None with several, all of which a chunk holds.
    """

    def __init__(
        self, planner: Planner, *, hashes_per_chunk: int, hash_tokens: int, group: int | None = 0
    ) -> None:
        self._planner = planner
        self._hashes_per_chunk = hashes_per_chunk
        self._hash_tokens = hash_tokens
        self._group = group
        # Of stores under way, and of what was told: needed again when it goes.
        self._pending: dict[ChunkKey, Any] = {}
        self._told: dict[ChunkKey, list[Any]] = {}
        self._queue: deque[Any] = deque()
        planner.watch(self._stored, self._gone)

    def note(self, plan: LoadPlan | StorePlan, owners: Iterable[tuple[Any, range]]) -> None:
        """Take note of whose chunks a plan moves; those of a load are there, those of a store may come.

        Args:
            plan: a plan that has just been made.
            owners: vLLM's requests that its chunks belong to, each with the numbers of its chunks among which
                they are.
        """
        columns = plan.columns
        wanted = {
            key
            for key, chunk_id in zip(columns.keys, columns.chunk_ids, strict=True)
            if chunk_id is not None and key not in self._told
        }
        for request, chunks in owners:
            for chunk in chunks if wanted else ():
                key = ChunkKey(bytes(request.block_hashes[(chunk + 1) * self._hashes_per_chunk - 1]))
                if key not in wanted:
                    continue
                wanted.discard(key)
                self._pending[key] = self._event(request, chunk)
                if isinstance(plan, LoadPlan):
                    self._stored(key)
                    if not self._planner.is_known(key):
                        # It went, from another thread, while it was being told.
                        self._gone(key)

    def take(self) -> list[Any]:
        """Return the events since the last call."""
        if not self._planner.pending_stores:
            # What is left belongs to stores that failed.
            self._pending.clear()
        return [self._queue.popleft() for _ in range(len(self._queue))]

    def _stored(self, key: ChunkKey) -> None:
        event = self._pending.pop(key, None)
        if event is not None:
            self._told[key] = event.block_hashes
            self._queue.append(event)

    def _gone(self, key: ChunkKey) -> None:
        hashes = self._told.pop(key, None)
        if hashes is not None:
            self._queue.append(
                vllm_events.BlockRemoved(
                    block_hashes=hashes, medium=MEDIUM, group_idx=self._group, ownership=OWNER
                )
            )

    def _event(self, request: Any, chunk: int) -> Any:
        first = chunk * self._hashes_per_chunk
        hashes = request.block_hashes[first : first + self._hashes_per_chunk]
        start, stop = first * self._hash_tokens, (first + len(hashes)) * self._hash_tokens
        adapter = request.lora_request
        return vllm_events.BlockStored(
            block_hashes=[maybe_convert_block_hash(each) for each in hashes],
            parent_block_hash=maybe_convert_block_hash(request.block_hashes[first - 1]) if first else None,
            token_ids=list(request.all_token_ids[start:stop]),
            block_size=self._hash_tokens,
            lora_id=None if adapter is None else adapter.adapter_id,
            medium=MEDIUM,
            lora_name=None if adapter is None else adapter.name,
            extra_keys=self._extra_keys(request, start, stop),
            group_idx=self._group,
            ownership=OWNER,
        )

    def _extra_keys(self, request: Any, start: int, stop: int) -> list[Any] | None:
        """Return what beside its tokens went into each block's hash, in the form that vLLM publishes."""
        make, convert = (
            optional(_UTILITIES, name) for name in ("generate_block_hash_extra_keys", "to_event_extra_keys")
        )
        if make is None or convert is None:
            return None
        keys, image = [], 0
        for begin in range(start, stop, self._hash_tokens):
            extra, image = make(request, begin, begin + self._hash_tokens, image)
            keys.append(extra)
        found: list[Any] | None = convert(keys)
        return found
