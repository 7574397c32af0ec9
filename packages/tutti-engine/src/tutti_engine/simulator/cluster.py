# SPDX-License-Identifier: Apache-2.0
"""Sends a trace to several servers, each with its own drives, that share a store behind them.

Each server is the real planner; the shared store is an LRU over chunks, as a store of memory segments that
evicts what was not asked for longest. Transfers take no time: what is counted is how many there are.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from tutti_engine.geometry import Geometry
from tutti_engine.plan import ChunkKey
from tutti_engine.planning.planner import Planner
from tutti_engine.policies.settings import PolicySettings
from tutti_engine.simulator.replay import (
    BYTES_PER_TOKEN,
    EPOCH,
    PROGRESS_EVERY,
    TraceClock,
    chunk_keys,
    take_prompt,
)
from tutti_engine.simulator.trace import BLOCK_TOKENS, Request

__all__ = ["ROUTINGS", "SHARED_WRITES", "Cluster", "ClusterOutcome", "replay_cluster"]

ROUTINGS = ("prefix", "random")

SHARED_WRITES = ("second_sight", "always", "never")

PREFIX_BLOCKS = 2
"""Blocks of a prompt that choose its server under ``prefix``: enough to pass a common system prompt."""

SEEN_FACTOR = 2
"""Chunks that a server remembers for ``second_sight``, for each place on its drives."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Servers, their drives and the store behind them.

    Attributes:
        servers: how many.
        local_chunks: places of each server's own store.
        shared_chunks: places of the shared store, over all nodes; 0 is none.
        routing: ``prefix``: equal beginnings go to one server; ``random``: anywhere.
        shared_write: who is written to the shared store: ``always``; ``second_sight``, what this server has
            had in a prompt before (it remembers twice as many chunks as its drives hold); ``never``.
        ranks: workers of a server; each has its own object for a chunk.
        batch_objects: most objects of one request to the master.
        policies: of each server's own store.
        block_tokens: tokens of a block.
        bytes_per_token: KV cache of one token, over all ranks.
    """

    servers: int
    local_chunks: int
    shared_chunks: int
    routing: str = "prefix"
    shared_write: str = "second_sight"
    ranks: int = 1
    batch_objects: int = 32
    policies: PolicySettings = PolicySettings()  # noqa: RUF009
    block_tokens: int = BLOCK_TOKENS
    bytes_per_token: int = BYTES_PER_TOKEN

    def __post_init__(self) -> None:
        for name, low in (
            ("servers", 1), ("local_chunks", 1), ("shared_chunks", 0), ("ranks", 1), ("batch_objects", 1),
        ):  # fmt: skip
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, not {getattr(self, name)}")
        for name, known in (("routing", ROUTINGS), ("shared_write", SHARED_WRITES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk over all ranks."""
        return self.block_tokens * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """What came of it. Counts are of chunks where they do not say otherwise.

    Attributes:
        requests: prompts.
        prompt_blocks: blocks of all prompts, partial ones included.
        local_hits: loaded from the server's own drives.
        shared_hits: loaded from the shared store.
        shared_puts: written to the shared store.
        drive_writes: written to all servers' drives, those that came from the shared store included.
        busiest_share: requests of the busiest server over those of an average one.
        master_requests: requests to the master.
        master_keys: keys in them.
        busiest_second_requests: requests to the master in the busiest second.
        busiest_second_keys: keys in the second with the most keys.
        seconds: from the first request to the last.
        chunk_bytes: bytes of a chunk.
    """

    requests: int
    prompt_blocks: int
    local_hits: int
    shared_hits: int
    shared_puts: int
    drive_writes: int
    busiest_share: float
    master_requests: int
    master_keys: int
    busiest_second_requests: int
    busiest_second_keys: int
    seconds: float
    chunk_bytes: int

    @property
    def hit_share(self) -> float:
        """Share of prompt blocks that were loaded from anywhere."""
        return (self.local_hits + self.shared_hits) / max(1, self.prompt_blocks)

    @property
    def shared_hit_share(self) -> float:
        """Share of prompt blocks that were loaded from the shared store."""
        return self.shared_hits / max(1, self.prompt_blocks)

    @property
    def network_bytes(self) -> int:
        """Bytes to and from the shared store, as if none of its nodes was the server itself."""
        return (self.shared_hits + self.shared_puts) * self.chunk_bytes

    @property
    def drive_bytes(self) -> int:
        """Bytes written to all drives."""
        return self.drive_writes * self.chunk_bytes


def replay_cluster(
    requests: Iterable[Request], cluster: Cluster, progress: Callable[[int], object] = lambda done: None
) -> ClusterOutcome:
    """Replay requests, in order of time, and return what came of it.

    ``progress`` is called now and then with the number of requests done since the last call.
    """
    run = _Run(cluster)
    done = 0
    for done, request in enumerate(requests, 1):
        run.serve(request)
        if done % PROGRESS_EVERY == 0:
            progress(PROGRESS_EVERY)
    progress(done % PROGRESS_EVERY)
    return run.outcome()


class _Run:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = TraceClock()
        geometry = Geometry(
            num_layers=1, block_tokens=cluster.block_tokens, blocks_per_chunk=1,
            page_bytes=cluster.chunk_bytes,
        )  # fmt: skip
        self._planners = [
            Planner(geometry, range(cluster.local_chunks), policies=cluster.policies, clock=self._clock)
            for _ in range(cluster.servers)
        ]
        self._seen: list[OrderedDict[ChunkKey, None]] = [OrderedDict() for _ in self._planners]
        self._shared: OrderedDict[ChunkKey, None] = OrderedDict()
        self._random = random.Random(1)
        self._served = [0] * cluster.servers
        self._counts: Counter[str] = Counter()
        self._asked: Counter[int] = Counter()
        self._keys: Counter[int] = Counter()
        self._times: list[float] = []

    def serve(self, request: Request) -> None:
        """Take one request from routing to stores."""
        self._clock.now = EPOCH + request.seconds
        self._times[1:] = [request.seconds]
        keys = chunk_keys(request.blocks[: request.prompt_tokens // self._cluster.block_tokens])
        server = self._route(request)
        self._served[server] += 1
        local = take_prompt(self._planners[server], keys, request.tenant)
        counts = self._counts
        counts["blocks"] += len(request.blocks)
        counts["local"] += local
        if not self._cluster.shared_chunks:
            return
        second = int(request.seconds)
        shared = self._load(keys[local:], second) if local < len(keys) else 0
        counts["shared"] += shared
        self._store(self._seen[server], keys[:local] + keys[local + shared :], second)

    def outcome(self) -> ClusterOutcome:
        """Return the counts."""
        counts, requests = self._counts, sum(self._served)
        return ClusterOutcome(
            requests=requests,
            prompt_blocks=counts["blocks"],
            local_hits=counts["local"],
            shared_hits=counts["shared"],
            shared_puts=counts["puts"],
            drive_writes=sum(planner.counters["store_chunks"] for planner in self._planners),
            busiest_share=max(self._served) * len(self._served) / max(1, requests),
            master_requests=sum(self._asked.values()),
            master_keys=sum(self._keys.values()),
            busiest_second_requests=max(self._asked.values(), default=0),
            busiest_second_keys=max(self._keys.values(), default=0),
            seconds=self._times[-1] - self._times[0] if self._times else 0.0,
            chunk_bytes=self._cluster.chunk_bytes,
        )

    def _route(self, request: Request) -> int:
        if self._cluster.routing == "random":
            return self._random.randrange(self._cluster.servers)
        text = repr(request.blocks[:PREFIX_BLOCKS]).encode()
        return crc32(text) % self._cluster.servers

    def _ask(self, second: int, chunks: int, requests_a_batch: int = 1) -> None:
        """Count what the master is asked: each rank asks for its own objects."""
        cluster = self._cluster
        batches = -(-chunks // cluster.batch_objects)
        self._asked[second] += batches * requests_a_batch * cluster.ranks
        self._keys[second] += chunks * requests_a_batch * cluster.ranks

    def _load(self, keys: Sequence[ChunkKey], second: int) -> int:
        """Look up and load what follows the local hits; return the number of hits."""
        shared = self._shared
        hits = 0
        for key in keys:
            if key not in shared:
                break
            hits += 1
        self._ask(second, len(keys))
        if hits:
            self._ask(second, hits)
        remember(shared, keys[:hits], self._cluster.shared_chunks)
        return hits

    def _store(self, seen: OrderedDict[ChunkKey, None], keys: Sequence[ChunkKey], second: int) -> None:
        """Write through what the policy lets in, of what was not just loaded from the shared store."""
        policy, shared = self._cluster.shared_write, self._shared
        if policy == "never":
            return
        chosen = [key for key in keys if (policy == "always" or key in seen) and key not in shared]
        if policy == "second_sight":
            remember(seen, keys, SEEN_FACTOR * self._cluster.local_chunks)
        if not chosen:
            return
        # A put begins and ends with a request to the master.
        self._ask(second, len(chosen), 2)
        self._counts["puts"] += len(chosen)
        remember(shared, chosen, self._cluster.shared_chunks)


def remember(chunks: OrderedDict[ChunkKey, None], keys: Sequence[ChunkKey], limit: int) -> None:
    """Note keys as used last, the first of them as the very last; what is beyond the limit goes."""
    for key in reversed(keys):
        chunks[key] = None
        chunks.move_to_end(key)
    while len(chunks) > limit:
        chunks.popitem(last=False)
