# SPDX-License-Identifier: Apache-2.0
"""Which chunks a step of vLLM's completes, and how many steps will complete none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tutti_engine import ChunkKey, TuttiEngine
from tutti_engine.chunk_transfer import BlockIds
from tutti_engine.policies.eviction import Use
from tutti_vllm.scheduler_side.adapters import Adapter, Adapters
from tutti_vllm.scheduler_side.block_tables import BlockTables, stored_blocks, stored_chunks
from tutti_vllm.scheduler_side.prefill_times import PrefillTimes
from tutti_vllm.scheduler_side.tracked import Request, Tracked, TrackedRequests

__all__ = ["CompletedChunks", "StepChunks"]


@dataclass(slots=True)
class CompletedChunks:
    """What a step completes and the own store does not have.

    Attributes:
        chunks: each with its blocks.
        prefixes: for each request of them its keys up to its last one.
        uses: for each request what the engine noted of its prompt.
        owners: each request, and the numbers of the chunks that it completes, known ones included.
        adapters: those that they are computed with.
        calm: no request ends a chunk before the step with this number, if each computes a token a step.
    """

    calm: int
    chunks: list[tuple[ChunkKey, BlockIds]] = field(default_factory=list)
    prefixes: list[list[ChunkKey]] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    owners: list[tuple[Request, range]] = field(default_factory=list)
    adapters: list[Adapter] = field(default_factory=list)


class StepChunks:
    """Looks at the requests of a step. Chunks for a shared store are noted with its side.

    Args:
        engine: knows what is stored.
        requests: those that are looked after.
        adapters: LoRA adapters of theirs.
        prefills: is told when requests begin.
    """

    def __init__(
        self, engine: TuttiEngine, requests: TrackedRequests, adapters: Adapters, prefills: PrefillTimes
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._adapters = adapters
        self._prefills = prefills
        self._chunk_tokens = engine.geometry.chunk_tokens

    def look(
        self,
        scheduled_tokens: dict[str, int],
        draft_tokens: Mapping[str, Sequence[int]],
        block_ids_of: Callable[[str], BlockTables | None],
    ) -> CompletedChunks:
        """Return what a step completes; its arguments are those of ``SchedulerSide.build_orders``."""
        found = CompletedChunks(self._chunk_tokens)
        for request_id, tokens in scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            left = self._left_in_chunk(tracked, tokens)
            found.calm = min(found.calm, left)
            if left:
                continue
            if tracked.prefill is not None or not tracked.started:
                self._time_prefill(tracked)
            use = self._requests.use_of(tracked)
            if not tracked.stores:
                continue
            sure = tokens - len(draft_tokens.get(request_id, ()))
            completed, new = self._completed_chunks(tracked, sure, block_ids_of)
            if completed and self._adapters.is_as_keyed(tracked.adapter):
                found.uses.append(use)
                found.adapters += [tracked.adapter] if tracked.adapter is not None else []
                end = tracked.next_store_chunk
                found.owners.append((tracked.request, range(end - new, end)))
                found.chunks += completed
                found.prefixes.append(self._requests.keys_of(tracked)[:end])
        return found

    def _left_in_chunk(self, tracked: Tracked, tokens: int) -> int:
        """Return how many tokens complete the chunk after a step that only goes on within it; else 0."""
        if tracked.prefill is not None or tracked.use is None or not tracked.started:
            return 0
        size, computed = self._chunk_tokens, tracked.request.num_computed_tokens
        chunk = computed // size
        if tracked.next_store_chunk < chunk or chunk != (computed + tokens) // size:
            return 0
        return size - (computed + tokens) % size

    def _time_prefill(self, tracked: Tracked) -> None:
        request = tracked.request
        tracked.started = True
        if tracked.prefill is not None:
            if self._prefills.end(tracked.prefill, request.num_tokens):
                tracked.prefill = None
        elif not tracked.layerwise:
            tracked.prefill = self._prefills.begin(request.num_computed_tokens, request.num_tokens)

    def _completed_chunks(
        self, tracked: Tracked, tokens: int, block_ids_of: Callable[[str], BlockTables | None]
    ) -> tuple[list[tuple[ChunkKey, BlockIds]], int]:
        """Return the chunks that can be stored, and out of how many before ``next_store_chunk``."""
        request = tracked.request
        # After a failed load vLLM goes back and computes tokens again: what was counted then may never have
        # existed.
        first = min(tracked.next_store_chunk, request.num_computed_tokens // self._chunk_tokens)
        last = (request.num_computed_tokens + tokens) // self._chunk_tokens
        if last <= first:
            return [], 0
        keys = self._requests.keys_of(tracked)[first:last]
        tracked.next_store_chunk = first + len(keys)
        unknown = self._engine.planner.unknown(keys)
        wanted: list[int] = []
        shared = self._requests.shared
        if shared is not None and first < tracked.shared_worth:
            wanted = shared.wants(self._requests.keys_of(tracked), range(first, last))
        if not unknown and not wanted:
            return [], 0
        block_ids = block_ids_of(request.request_id)
        if block_ids is None:
            return [], 0
        if shared is not None and wanted:
            named = [keys[chunk - first] for chunk in wanted]
            shared.note_candidates(stored_chunks(self._engine.geometry, block_ids, named, wanted))
        completed: list[tuple[ChunkKey, BlockIds]] = []
        for position in unknown:
            blocks = stored_blocks(self._engine.geometry, block_ids, first + position)
            if blocks is not None:
                completed.append((keys[position], blocks))
        return completed, len(keys)
