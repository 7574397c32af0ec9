# SPDX-License-Identifier: Apache-2.0
"""An executor on a backend that delays, reorders, refuses, fails and hangs on command."""

import threading
import time

import pytest

from tutti_engine import ChunkTransfer, ExecutionSettings, Geometry, LoadPlan, StorePlan, StoreSettled
from tutti_engine.execution.executor import Executor
from tutti_engine.movers.plain import PlainMover
from tutti_engine.testing.window import POISON

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=3000)
BLOCKS = 40


class Handle:
    def __init__(self, act, statuses):
        self._act = act
        self._statuses = statuses
        self._done = threading.Event()

    def finish(self):
        self._act()
        self._done.set()

    def poll(self):
        return self._done.is_set()

    def wait(self, deadline):
        return self._done.wait(max(0.0, deadline - time.monotonic()))

    def status(self):
        assert self._done.is_set()
        return self._statuses


class ScriptedBackend:
    """Keeps segments in a dictionary.

    ``verdict`` gives each segment's errno; ``held`` batches wait for ``finish``.
    """

    def __init__(self):
        self.bytes = {}
        self.verdict = lambda what, chunk_id, layer: 0
        self.hold = False
        self.held = []
        self.arrived = threading.Semaphore(0)
        self.down = False

    def chunk_ids(self, count):
        return range(count)

    def bind_staging(self, window):
        self.window = window

    def write_segments(self, batch):
        return self._start("write", batch)

    def read_segments(self, batch):
        for slot in batch.slots:
            self.window.slot(slot)[:] = bytes([POISON]) * self.window.slot_bytes
        return self._start("read", batch)

    def _start(self, what, batch):
        segments = list(zip(batch.chunk_ids, batch.layers, batch.slots, strict=True))
        statuses = [self.verdict(what, chunk_id, layer) for chunk_id, layer, _ in segments]

        def act():
            for (chunk_id, layer, slot), status in zip(segments, statuses, strict=True):
                if status == 0 and what == "write":
                    self.bytes[chunk_id, layer] = bytes(self.window.slot(slot))
                elif status == 0:
                    self.window.slot(slot)[:] = self.bytes[chunk_id, layer]

        handle = Handle(act, statuses)
        if self.hold:
            self.held.append(handle)
        else:
            handle.finish()
        self.arrived.release()
        return handle

    def wait_idle(self, deadline):
        return True

    def shutdown(self):
        self.down = True


class Rig:
    geometry = GEOMETRY
    blocks = BLOCKS
    poison = [bytes([POISON]) * GEOMETRY.page_bytes] * GEOMETRY.num_layers

    def __init__(self, **options):
        self.backend = ScriptedBackend()
        self.pages = [bytearray(BLOCKS * GEOMETRY.page_bytes) for _ in range(GEOMETRY.num_layers)]
        mover = PlainMover(GEOMETRY, [memoryview(p) for p in self.pages])
        mover.can_skip_verification = options.pop("skips", True)
        # In runs of a whole chunk's slots.
        bank = options.pop("runs", 4) * GEOMETRY.num_layers * GEOMETRY.segment_bytes
        settings = ExecutionSettings(load_bank_bytes=bank, store_bank_bytes=bank, **options)
        self.executor = Executor(GEOMETRY, self.backend, mover, settings)
        self.sums = {}

    def fill(self, block):
        """Give a block's pages contents of their own on every layer; return them."""
        for layer, pages in enumerate(self.pages):
            start = block * GEOMETRY.page_bytes
            pages[start : start + GEOMETRY.page_bytes] = bytes([block + 1, layer]) * (
                GEOMETRY.page_bytes // 2
            )
        return self.content(block)

    def content(self, block):
        size = GEOMETRY.page_bytes
        return [bytes(pages[block * size : (block + 1) * size]) for pages in self.pages]

    def wipe(self):
        for pages in self.pages:
            pages[:] = bytes([POISON]) * len(pages)

    def store(self, *chunks, plan_id=1):
        self.executor.store(self.store_plan(*chunks, plan_id=plan_id))
        return self.result()

    def store_filled(self, *chunks):
        contents = {block: self.fill(block) for _, blocks in chunks for block in blocks}
        result = self.store(*chunks)
        assert result.errno == 0
        self.sums.update(zip((c for c, _ in chunks), result.checksums, strict=True))
        self.wipe()
        return contents

    def load_plan(self, *chunks, plan_id=2):
        return LoadPlan(
            plan_id,
            tuple(
                ChunkTransfer(b"k", c, (tuple(b),), () if c is None else (self.sums[c],)) for c, b in chunks
            ),
        )

    def load(self, *chunks, plan_id=2):
        self.executor.load(self.load_plan(*chunks, plan_id=plan_id))
        return self.result()

    def result(self):
        assert self.executor.wait_idle(time.monotonic() + 30)
        (result,) = [r for r in self.executor.take_results() if not isinstance(r, StoreSettled)]
        return result

    def busy_slots(self):
        return self.executor.window.loads.busy + self.executor.window.stores.busy

    @staticmethod
    def store_plan(*chunks, plan_id=1):
        return StorePlan(plan_id, tuple(ChunkTransfer(b"k", c, (tuple(b),)) for c, b in chunks))

    def arrived(self, count):
        """Wait until the backend got so many more batches."""
        for _ in range(count):
            assert self.backend.arrived.acquire(timeout=30)

    def let_go(self):
        """End what is held, and hold no more."""
        self.backend.hold = False
        while self.backend.held:
            self.backend.held.pop(0).finish()

    def until(self, wanted):
        """Return the results once some satisfy ``wanted``."""
        results = []
        deadline = time.monotonic() + 30
        while not wanted(results):
            assert time.monotonic() < deadline
            results += self.executor.take_results()
            time.sleep(0.001)
        return results


@pytest.fixture
def rig():
    made = []

    def make(**options):
        made.append(Rig(**options))
        return made[-1]

    yield make
    for one in made:
        assert one.busy_slots() == 0, "slots leaked"
        assert one.executor.shutdown(time.monotonic() + 5)


@pytest.fixture
def scripted_backend():
    """Returns a backend that is told what to do."""
    return ScriptedBackend()
