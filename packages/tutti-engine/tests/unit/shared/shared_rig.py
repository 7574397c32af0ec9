# SPDX-License-Identifier: Apache-2.0
"""Servers over one shared store in this process: a planning tier, and a rank with pages."""

import time

from tutti_engine import ExecutionSettings, Geometry
from tutti_engine.execution.executor import Executor
from tutti_engine.movers.plain import PlainMover
from tutti_engine.shared.backend import SharedBackend
from tutti_engine.shared.lookup import LookupSettings
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.shared.tier import SharedTier, SharedTierSettings
from tutti_engine.testing.shared_stores import Faults, MemorySharedStore

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
DIGEST = "ab" * 16
PATIENCE = 30.0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Server:
    def __init__(self, pool, *, digest=DIGEST, write="always", io_timeout=5.0, blocks=16, clock=None, **more):
        self.faults = Faults()
        self.pages = [bytearray(blocks * 4096) for _ in range(3)]
        self.executor = Executor(
            GEOMETRY,
            SharedBackend(MemorySharedStore(pool, self.faults), ObjectNames(digest), 0, GEOMETRY),
            PlainMover(GEOMETRY, [memoryview(page) for page in self.pages]),
            ExecutionSettings(io_timeout=io_timeout),
        )
        self.planner_store = MemorySharedStore(pool, self.faults)
        self.tier = SharedTier(
            GEOMETRY,
            self.planner_store,
            digest,
            settings=SharedTierSettings(write=write, lookup=LookupSettings(**more)),
            clock=time.monotonic if clock is None else clock,
        )

    def look(self, keys):
        """Ask until the answer is whole."""
        deadline = time.monotonic() + PATIENCE
        while not (seen := self.tier.look(keys)).decided:
            assert time.monotonic() < deadline, "no verdict came"
            time.sleep(0.001)
        return seen.chunks

    def fill(self, keys):
        """Compute chunks: chunk n in blocks 2n and 2n + 1."""
        for number, key in enumerate(keys):
            for layer, page in enumerate(self.pages):
                page[number * 8192 : (number + 1) * 8192] = content(key, layer)

    def store(self, keys):
        """Compute chunks and write those that are wanted; return the report."""
        self.fill(keys)
        chosen = [(keys[n], ((2 * n, 2 * n + 1),)) for n in self.tier.wants(keys)]
        plan = self.tier.plan_store(chosen)
        if plan is None:
            return None
        self.executor.store(plan)
        (result,) = self.results()
        assert self.tier.complete_store(0, result)
        return result

    def load(self, keys):
        """Load chunks into emptied pages; return the report."""
        for page in self.pages:
            page[:] = bytes(len(page))
        plan = self.tier.plan_load([(key, ((2 * n, 2 * n + 1),)) for n, key in enumerate(keys)])
        self.executor.load(plan)
        (result,) = self.results()
        assert self.tier.complete_load(0, result)
        return result

    def right(self, keys):
        """For each chunk of the last load: whether its pages hold it, None where they were not touched."""
        answer = []
        for number, key in enumerate(keys):
            found = [bytes(page[number * 8192 : (number + 1) * 8192]) for page in self.pages]
            wanted = [content(key, layer) for layer in range(3)]
            answer.append(None if not any(map(any, found)) else found == wanted)
        return answer

    def results(self):
        assert self.executor.wait_idle(time.monotonic() + PATIENCE)
        return self.executor.take_results()

    def close(self):
        self.faults.running.set()
        self.executor.shutdown(time.monotonic() + PATIENCE)
        self.tier.close()


def content(key, layer):
    return (key.ljust(16, b".") + bytes([layer + 1]) * 16) * 256


def keys_of(count, start=0):
    return [f"chunk {n}".encode() for n in range(start, start + count)]
