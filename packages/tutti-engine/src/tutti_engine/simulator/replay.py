# SPDX-License-Identifier: Apache-2.0
"""Sends a trace through the real planner, index and policies; only the drive is missing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tutti_engine.geometry import Geometry
from tutti_engine.plan import ChunkKey, LoadResult, StoreResult
from tutti_engine.planning.planner import Planner
from tutti_engine.policies.settings import PolicySettings
from tutti_engine.simulator.trace import BLOCK_TOKENS, Request, unique_blocks

__all__ = ["BYTES_PER_TOKEN", "Outcome", "Replay", "TraceClock", "chunk_keys", "replay", "take_prompt"]

BYTES_PER_TOKEN = 131_072
"""KV cache of one token of an 8B Llama 3 in 16 bits: 32 layers, K and V, 8 heads of 128."""

EPOCH = 1_000_000_000
"""Where a trace's time 0 lies: the index counts seconds since 1970."""

SECONDS_A_DAY = 86_400.0

PROGRESS_EVERY = 64

_CHECKSUMS = (b"\0" * 8,)


@dataclass(frozen=True, slots=True)
class Replay:
    """How a trace is replayed.

    Attributes:
        capacity_chunks: places of the store; one block of the trace is one chunk.
        policies: who is stored, who stays and who goes.
        partial_blocks: whether the last block of a prompt is stored though it is not full. A server cannot;
            it is for comparison with figures that others have counted in this way.
        block_tokens: tokens of a block.
        bytes_per_token: KV cache of one token, over all ranks.
        trace_memory: whether to measure the planner's memory, which takes several times as long.
    """

    capacity_chunks: int
    policies: PolicySettings = PolicySettings()  # noqa: RUF009
    partial_blocks: bool = False
    block_tokens: int = BLOCK_TOKENS
    bytes_per_token: int = BYTES_PER_TOKEN
    trace_memory: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. Counts are of chunks where they do not say otherwise.

    Attributes:
        capacity_chunks: places of the store.
        requests: prompts.
        prompt_blocks: blocks of all prompts, partial ones included.
        hit_blocks: those that were loaded.
        prompt_tokens: tokens of all prompts.
        hit_tokens: those that were loaded.
        distinct: different chunks that were offered.
        stored: chunks written, those written again included.
        evicted: chunks that had to go.
        expired: chunks that were too old.
        refused: chunks that the policies did not let in.
        over_budget: chunks beyond the daily write budget.
        over_quota: chunks beyond a tenant's quota.
        read_bytes: bytes loaded.
        written_bytes: bytes stored.
        seconds: from the first request to the last.
        chunk_bytes: bytes of one chunk.
        memory_bytes: what the planner took when it was full; None if it was not measured.
    """

    capacity_chunks: int
    requests: int
    prompt_blocks: int
    hit_blocks: int
    prompt_tokens: int
    hit_tokens: int
    distinct: int
    stored: int
    evicted: int
    expired: int
    refused: int
    over_budget: int
    over_quota: int
    read_bytes: int
    written_bytes: int
    seconds: float
    chunk_bytes: int
    memory_bytes: int | None

    @property
    def block_hit_rate(self) -> float:
        """Share of prompt blocks that were hits."""
        return self.hit_blocks / self.prompt_blocks if self.prompt_blocks else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens that were hits."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def write_amplification(self) -> float:
        """Chunks written for each different chunk that was offered: above 1 some were written again."""
        return self.stored / self.distinct if self.distinct else 0.0

    @property
    def drive_writes_a_day(self) -> float:
        """How often a day the store's capacity is written over."""
        days = self.seconds / SECONDS_A_DAY
        return self.stored / self.capacity_chunks / days if days > 0 else 0.0


def chunk_keys(blocks: Sequence[int]) -> list[ChunkKey]:
    """Return a key for each block of a trace."""
    return [ChunkKey(block.to_bytes(16, "little")) for block in blocks]


def replay(
    requests: Sequence[Request], how: Replay, progress: Callable[[int], object] = lambda done: None
) -> Outcome:
    """Replay a trace and return what came of it.

    Args:
        requests: the trace, in order of time.
        how: capacity and policies.
        progress: called now and then with the number of requests done since the last call.
    """
    if not how.trace_memory:
        return _replay(requests, how, progress, lambda: None)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        return _replay(requests, how, progress, lambda: tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


def _replay(
    requests: Sequence[Request],
    how: Replay,
    progress: Callable[[int], object],
    memory: Callable[[], int | None],
) -> Outcome:
    clock = TraceClock()
    geometry = Geometry(
        num_layers=1, block_tokens=how.block_tokens, blocks_per_chunk=1,
        page_bytes=how.block_tokens * how.bytes_per_token,
    )  # fmt: skip
    planner = Planner(geometry, range(how.capacity_chunks), policies=how.policies, clock=clock)
    hit_blocks = hit_tokens = 0
    for number, request in enumerate(requests, 1):
        clock.now = EPOCH + request.seconds
        hits = _serve(planner, request, how)
        hit_blocks += hits
        hit_tokens += min(hits * how.block_tokens, request.prompt_tokens)
        if number % PROGRESS_EVERY == 0:
            progress(PROGRESS_EVERY)
    progress(len(requests) % PROGRESS_EVERY)
    counters = planner.counters
    return Outcome(
        capacity_chunks=how.capacity_chunks,
        requests=len(requests),
        prompt_blocks=sum(len(request.blocks) for request in requests),
        hit_blocks=hit_blocks,
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        hit_tokens=hit_tokens,
        distinct=unique_blocks(requests) if how.partial_blocks else _whole_blocks(requests, how.block_tokens),
        stored=counters["store_chunks"],
        evicted=counters["evicted_chunks"],
        expired=counters["expired_chunks"],
        refused=counters["refused_chunks"],
        over_budget=counters["over_budget_chunks"],
        over_quota=counters["over_quota_chunks"],
        read_bytes=counters["read_bytes"],
        written_bytes=counters["written_bytes"],
        seconds=requests[-1].seconds - requests[0].seconds if requests else 0.0,
        chunk_bytes=geometry.chunk_bytes,
        memory_bytes=memory(),
    )


def _serve(planner: Planner, request: Request, how: Replay) -> int:
    """Take one request from lookup to stores; return how many chunks were loaded."""
    whole = len(request.blocks) if how.partial_blocks else request.prompt_tokens // how.block_tokens
    return take_prompt(planner, chunk_keys(request.blocks[:whole]), request.tenant)


def take_prompt(planner: Planner, keys: Sequence[ChunkKey], tenant: str | None) -> int:
    """Look a prompt's chunks up, load those that are hits and store the others; return the number of hits."""
    if not keys:
        return 0
    hits = planner.lookup_prefix(keys)
    use = planner.note_prompt(keys, tenant)
    chunk_bytes = planner.geometry.chunk_bytes
    if hits:
        load = planner.plan_load([(key, ((0,),)) for key in keys[:hits]], use)
        planner.complete_load(LoadResult(load.plan_id, bytes_read=hits * chunk_bytes))
    store = planner.plan_store([(key, ((0,),)) for key in keys[hits:]], [keys], [use])
    if store is not None:
        count = len(store.transfers)
        result = StoreResult(store.plan_id, _CHECKSUMS * count, bytes_written=count * chunk_bytes)
        planner.complete_store(0, result)
    return hits


def _whole_blocks(requests: Sequence[Request], block_tokens: int) -> int:
    return len({b for request in requests for b in request.blocks[: request.prompt_tokens // block_tokens]})


class TraceClock:
    """The trace's time, in seconds since 1970."""

    now = float(EPOCH)

    def __call__(self) -> float:
        return self.now
