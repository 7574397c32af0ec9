# SPDX-License-Identifier: Apache-2.0
"""A server without a model: prompts in, and whether their pages are right out; one JSON object a line each.

    {"prompt": "name", "chunks": 8}  ->  {"right": true, "hits": 8, "failed": 0, "seconds": 0.01, ...}

It takes prompts as a server does: it looks at the shared store for a bounded time, loads what was seen,
computes what was not or did not come, and writes it through. "Computing" is writing the bytes that belong to
the chunk, so that each page of each prompt can be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from tutti_engine import ChunkKey, ExecutionSettings, Geometry
from tutti_engine.backends.mooncake import MooncakeStore
from tutti_engine.execution.executor import Executor
from tutti_engine.movers.plain import PlainMover
from tutti_engine.plan import LoadResult, StoreResult
from tutti_engine.shared import object_header
from tutti_engine.shared.backend import SharedBackend
from tutti_engine.shared.connecting_store import ConnectingStore
from tutti_engine.shared.lookup import LookupSettings
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.shared.tier import SharedTier, SharedTierSettings

LAYERS, BLOCKS_PER_CHUNK, PAGE_BYTES = 4, 2, 32768
GEOMETRY = Geometry(LAYERS, 16, BLOCKS_PER_CHUNK, PAGE_BYTES)
CHUNK_PAGES = BLOCKS_PER_CHUNK * PAGE_BYTES
MOST_CHUNKS = 32
LOOK_SECONDS = 0.1
"""How long a prompt waits for a verdict, as a scheduler that asks again does."""


class Host:
    """Pages, and the planning and execution side of a shared tier."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.pages = [bytearray(MOST_CHUNKS * CHUNK_PAGES) for _ in range(LAYERS)]
        names = ObjectNames(options.digest)
        self.stores = [ConnectingStore(self.connect, first_pause=0.2) for _ in range(2)]
        self.executor = Executor(
            GEOMETRY,
            SharedBackend(self.stores[0], names, 0, GEOMETRY),
            PlainMover(GEOMETRY, [memoryview(page) for page in self.pages]),
            ExecutionSettings(
                io_timeout=options.io_timeout, load_bank_bytes=8 << 20, store_bank_bytes=8 << 20
            ),
        )
        self.tier = SharedTier(
            GEOMETRY,
            self.stores[1],
            options.digest,
            settings=SharedTierSettings(
                write="always", lookup=LookupSettings(hit_seconds=2.0, miss_seconds=0.2)
            ),
        )

    def connect(self) -> MooncakeStore:
        """Return a client, as one side of a server makes it."""
        return MooncakeStore(self.options.master, timeout=self.options.timeout)

    def serve(self, prompt: str, chunks: int) -> dict[str, object]:
        """Take a prompt; return what came of it."""
        begin = time.monotonic()
        keys = [ChunkKey(f"{prompt} {number}".encode()) for number in range(chunks)]
        for page in self.pages:
            page[:] = bytes(len(page))
        self.tier.note_prompt(keys)
        seen = self.tier.look(keys)
        while not seen.decided and time.monotonic() < begin + LOOK_SECONDS:
            time.sleep(0.002)
            seen = self.tier.look(keys)
        failed = self.load(keys[: seen.chunks]) if seen.chunks else set()
        for number in {*range(seen.chunks, chunks), *failed}:
            self.compute(keys[number], number)
        right = all(self.is_right(key, number) for number, key in enumerate(keys))
        self.write(keys)
        return {
            "right": right,
            "hits": seen.chunks - len(failed),
            "failed": len(failed),
            "seconds": time.monotonic() - begin,
            "degraded": self.tier.degraded(),
            "counters": self.tier.counters.snapshot(),
        }

    def load(self, keys: list[ChunkKey]) -> set[int]:
        """Load chunks; return the positions of those that did not come."""
        places = [(key, (blocks_of(number),)) for number, key in enumerate(keys)]
        plan = self.tier.plan_load(places)
        self.executor.load(plan)
        while True:
            self.executor.wait_idle(time.monotonic() + 0.005)
            for result in self.executor.take_results():
                self.report(result)
                if isinstance(result, LoadResult) and result.plan_id == plan.plan_id:
                    return set(result.failed)

    def write(self, keys: list[ChunkKey]) -> None:
        """Write through what the shared store is not known to have."""
        for result in self.executor.take_results():
            self.report(result)
        plan = self.tier.plan_store([(keys[at], (blocks_of(at),)) for at in self.tier.wants(keys)])
        if plan is not None:
            self.executor.store(plan)

    def settle(self) -> dict[str, object]:
        """Wait until all writes have ended."""
        while self.tier.pending_stores:
            self.executor.wait_idle(time.monotonic() + 0.01)
            for result in self.executor.take_results():
                self.report(result)
        return {"settled": True, "counters": self.tier.counters.snapshot()}

    def report(self, result: LoadResult | StoreResult) -> None:
        """Tell the planning side."""
        if isinstance(result, LoadResult):
            self.tier.complete_load(0, result)
        else:
            self.tier.complete_store(0, result)

    def compute(self, key: ChunkKey, number: int) -> None:
        """Write the bytes that belong to a chunk to its pages."""
        for layer, page in enumerate(self.pages):
            page[number * CHUNK_PAGES : (number + 1) * CHUNK_PAGES] = content(key, layer)

    def is_right(self, key: ChunkKey, number: int) -> bool:
        """Whether a chunk's pages hold its bytes."""
        return all(
            page[number * CHUNK_PAGES : (number + 1) * CHUNK_PAGES] == content(key, layer)
            for layer, page in enumerate(self.pages)
        )


def blocks_of(number: int) -> tuple[int, ...]:
    return tuple(range(number * BLOCKS_PER_CHUNK, (number + 1) * BLOCKS_PER_CHUNK))


def content(key: ChunkKey, layer: int) -> bytes:
    return (key.ljust(31, b".")[:31] + bytes([layer + 1])) * (CHUNK_PAGES // 32)


def main() -> None:
    """Obey lines until there are none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("--digest", default="ab" * 16)
    parser.add_argument("--timeout", type=float, default=1.0, help="of the store's client")
    parser.add_argument("--io-timeout", type=float, default=2.0, help="of a load or write")
    parser.add_argument("--header-version", type=int, help="write headers as another version of Tutti")
    options = parser.parse_args()
    if options.header_version is not None:
        # Names stay as they are: what is seen is a reader that meets the other version's header.
        ObjectNames(options.digest)
        object_header.OBJECT_VERSION = options.header_version
        ObjectNames.__init__ = _names_of_version_one  # type: ignore[method-assign]
    host = Host(options)
    for store in host.stores:
        store.wait_settled(60.0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = host.settle() if "settle" in order else host.serve(order["prompt"], order["chunks"])
        print(json.dumps(answer), flush=True)


def _names_of_version_one(self: ObjectNames, namespace: str) -> None:
    self.namespace = namespace
    self._prefix = f"tutti-1/{namespace}"


if __name__ == "__main__":
    main()
