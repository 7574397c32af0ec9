# SPDX-License-Identifier: Apache-2.0
"""Planner, ring window and executor together against a model that knows which bytes belong where.

The backend answers late, out of order, partly, wrongly or never.

A longer run: ``TUTTI_MODEL_EXAMPLES=2000 pytest packages/tutti-engine/tests/unit/execution/test_model.py``.

No draw depends on what has happened so far: threads take their time, and Hypothesis must not notice.
"""

import errno
import functools
import os
import random
import threading
import time

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tutti_engine import ChunkKey, ExecutionSettings, Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_engine.movers.plain import PlainMover
from tutti_engine.planning.breaker import Breaker
from tutti_engine.testing.window import POISON

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=512)
BLOCKS = 48
CHUNKS = 5
KEYS = [ChunkKey(b"key-%d" % number) for number in range(9)]
PATIENCE = 20.0
EXAMPLES = int(os.environ.get("TUTTI_MODEL_EXAMPLES", "25"))

FAILURES = (errno.EIO, errno.ENOSPC, errno.EAGAIN, errno.ENOENT)


@functools.cache
def page(key, layer, index):
    return random.Random(f"{key} {layer} {index}").randbytes(GEOMETRY.page_bytes)


class Handle:
    def __init__(self, backend, write, batch):
        self.backend = backend
        self.write = write
        self.segments = list(zip(batch.chunk_ids, batch.layers, batch.slots, strict=True))
        self.places = {(chunk, layer) for chunk, layer, _ in self.segments}
        self.slots = {slot for _, _, slot in self.segments}
        self.done = threading.Event()
        self.codes = []

    def end(self, codes):
        """Move what succeeds now, with the bytes of now; leave rubbish where it does not."""
        stored, window = self.backend.stored, self.backend.window
        for (chunk, layer, slot), code in zip(self.segments, codes, strict=True):
            if self.write and code != errno.EAGAIN:
                stored[chunk, layer] = bytes(window.slot(slot)) if code == 0 else b"torn" * 1024
            elif not self.write:
                data = stored.get((chunk, layer), bytes(window.slot_bytes))
                window.slot(slot)[:] = data if code == 0 else bytes([POISON]) * window.slot_bytes
        self.codes = codes
        self.done.set()

    def poll(self):
        return self.done.is_set()

    def wait(self, deadline):
        return self.done.wait(max(0.0, deadline - time.monotonic()))

    def status(self):
        return self.codes


class Backend:
    """Ends a batch when it is told to, and how."""

    def __init__(self):
        self.stored = {}
        self.held = []
        self.misuse = []
        # Handles whose deadline has passed, as the engine sees it.
        self.given_up = lambda: ()

    def chunk_ids(self, count):
        return range(count)

    def bind_staging(self, window):
        self.window = window

    def write_segments(self, batch):
        return self._start(Handle(self, True, batch))

    def read_segments(self, batch):
        for slot in batch.slots:
            self.window.slot(slot)[:] = bytes([POISON]) * self.window.slot_bytes
        return self._start(Handle(self, False, batch))

    def _start(self, handle):
        """Note what must never happen: two batches at one slot, or a place that is written and in use.

        A read that was given up may meet a write: what it brings lies in slots that nobody looks at any more.
        """
        given_up = self.given_up()
        for other in list(self.held):
            if not other.poll():
                if handle.slots & other.slots:
                    self.misuse.append("a slot was used again before its I/O had ended")
                in_use = other.write or (handle.write and other not in given_up)
                if in_use and handle.places & other.places:
                    self.misuse.append("a place was used while it could still be written")
        self.held.append(handle)
        return handle

    def wait_for_room(self, deadline):
        """There is room at once: what comes again waits for its end like anything else."""

    def wait_idle(self, deadline):
        return True

    def shutdown(self):
        pass


class EngineModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.backend = Backend()
        self.pages = [bytearray([POISON]) * BLOCKS * GEOMETRY.page_bytes for _ in range(GEOMETRY.num_layers)]
        self.expected = [bytearray(pages) for pages in self.pages]
        self.free = list(range(BLOCKS))
        self.engine = TuttiEngine(GEOMETRY, chunk_ids=range(CHUNKS), backend=self.backend)
        planner = self.engine.planner
        planner.load_breaker, planner.store_breaker = (Breaker(threshold=1 << 30) for _ in range(2))
        runs = 4 * GEOMETRY.num_layers * GEOMETRY.segment_bytes
        self.engine.bind(
            PlainMover(GEOMETRY, [memoryview(pages) for pages in self.pages]),
            ExecutionSettings(
                load_bank_bytes=runs,
                store_bank_bytes=runs,
                io_timeout=0.05,
                store_stall=0.0,
                lookahead=1,
                write_depth=2,
                max_queued_loads=6,
            ),
        )
        keeper = self.engine.executor._keeper
        self.backend.given_up = lambda: [wave.handle for wave in list(keeper._overdue)]
        self.loads = {}
        self.stores = {}
        self.damaged = set()

    # What a server does.

    @rule(
        numbers=st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=4),
        by_layer=st.booleans(),
        skip=st.booleans(),
        lost=st.integers(0, 5),
    )
    def load(self, numbers, by_layer, skip, lost):
        """Load chunks, one possibly twice, now and then one that is not there, into blocks of their own."""
        known = [key for key in KEYS if self.engine.planner.lookup_prefix([key])] if lost else KEYS
        if len(self.free) < 2 * len(numbers) or not known:
            return
        wanted = []
        for number in numbers:
            blocks = [self.free.pop(0), self.free.pop(0)]
            wanted.append((known[number % len(known)], (tuple([-1, blocks[1]] if skip else blocks),)))
            if skip:
                self.free.append(blocks[0])
        plan = self.engine.plan_load(wanted)
        self.loads[plan.plan_id] = plan
        if by_layer:
            self.engine.load_layers(plan)
        else:
            self.engine.load(plan)

    @rule(numbers=st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=4), by_layer=st.booleans())
    def store(self, numbers, by_layer):
        """Compute chunks, store what the planner wants, and use the blocks for something else at once."""
        if len(self.free) < 2 * len(numbers):
            return
        candidates = []
        blocks = [self.free.pop(0) for _ in range(2 * len(numbers))]
        for place, number in enumerate(numbers):
            own = tuple(blocks[2 * place : 2 * place + 2])
            candidates.append((KEYS[number], (own,)))
            for layer in range(GEOMETRY.num_layers):
                for index, block in enumerate(own):
                    self.write_page(layer, block, page(KEYS[number], layer, index))
        plan = self.engine.plan_store(candidates)
        if plan is not None:
            self.stores[plan.plan_id] = plan
            if by_layer:
                for layer in range(GEOMETRY.num_layers):
                    self.engine.store_layer(plan, layer)
            else:
                self.engine.store(plan)
        self.give_back(blocks)

    @rule()
    def settle(self):
        """Take what has ended."""
        self.engine.wait_idle(time.monotonic() + 0.002)
        for result in self.engine.settle():
            if isinstance(result, LoadResult):
                self.end_load(result)
            elif isinstance(result, StoreResult):
                plan = self.stores.pop(result.plan_id)
                assert len(result.checksums) == len(plan.transfers)
                for transfer, sums in zip(plan.transfers, result.checksums, strict=True):
                    if sums is not None:
                        self.damaged.discard(transfer.chunk_id)
        assert not self.backend.misuse, self.backend.misuse[0]
        busy = {b for plan in self.loads.values() for t in plan.transfers for b in t.block_ids[0] if b != -1}
        for pages, expected in zip(self.pages, self.expected, strict=True):
            for block in set(range(BLOCKS)) - busy:
                part = slice(block * GEOMETRY.page_bytes, (block + 1) * GEOMETRY.page_bytes)
                assert pages[part] == expected[part], "a page was written that nobody loads into"

    @rule(really=st.integers(0, 9))
    def reset(self, really):
        if not really:
            assert self.engine.reset()
            assert self.engine.lookup_prefix(KEYS) == 0

    @rule(numbers=st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=4), needed=st.booleans())
    def store_in_peace(self, numbers, needed):
        """Store with everything in order, so that there is something to load."""
        if not needed and self.engine.planner.resident_chunks:
            return
        self.end_everything()
        self.store(numbers, by_layer=False)
        self.end_everything()

    # What drives do.

    @rule(which=st.integers(0, 99), codes=st.lists(st.sampled_from((0,) * 9 + FAILURES), min_size=1))
    def end_some_batch(self, which, codes):
        deadline = time.monotonic() + 0.01
        while not self.backend.held and (self.loads or self.stores) and time.monotonic() < deadline:
            time.sleep(0.0005)
        held = list(self.backend.held)
        if held:
            handle = held[which % len(held)]
            self.backend.held.remove(handle)
            handle.end([codes[place % len(codes)] for place in range(len(handle.segments))])

    @rule(
        numbers=st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=3),
        by_layer=st.booleans(),
        codes=st.lists(st.sampled_from((0, 0, 0, *FAILURES)), min_size=1),
    )
    def load_badly(self, numbers, by_layer, codes):
        self.load(numbers, by_layer=by_layer, skip=False, lost=1)
        self.end_some_batch(-1, codes)

    @rule()
    def end_all_batches_the_youngest_first(self):
        while self.backend.held:
            handle = self.backend.held.pop()
            handle.end([0] * len(handle.segments))

    @rule()
    def hang(self):
        time.sleep(0.06)

    @rule(number=st.integers(0, len(KEYS) - 1), layer=st.integers(0, GEOMETRY.num_layers - 1))
    def rot(self, number, layer):
        """Change a byte that is stored."""
        known = [key for key in KEYS if self.engine.planner.lookup_prefix([key])]
        if known:
            key = known[number % len(known)]
            place = self.engine.planner._index.get(key).chunk_id, layer
            if data := self.backend.stored.get(place):
                self.backend.stored[place] = bytes([data[0] ^ 1]) + data[1:]
                self.damaged.add(place[0])
                self.load([KEYS.index(key)], by_layer=False, skip=False, lost=0)

    # The model.

    def write_page(self, layer, block, data):
        for pages in (self.pages[layer], self.expected[layer]):
            pages[block * GEOMETRY.page_bytes : (block + 1) * GEOMETRY.page_bytes] = data

    def give_back(self, blocks):
        for block in blocks:
            for layer in range(GEOMETRY.num_layers):
                self.write_page(layer, block, bytes([POISON]) * GEOMETRY.page_bytes)
            self.free.append(block)

    def end_load(self, result):
        plan = self.loads.pop(result.plan_id)
        assert set(result.untried) <= set(result.failed)
        assert set(result.corrupt) <= set(result.failed)
        corrupt = {plan.transfers[position].chunk_id for position in result.corrupt}
        assert corrupt <= self.damaged, "bytes were mixed up"
        for position, transfer in enumerate(plan.transfers):
            blocks = [block for block in transfer.block_ids[0] if block != -1]
            if position not in result.failed:
                for layer in range(GEOMETRY.num_layers):
                    for index, block in enumerate(transfer.block_ids[0]):
                        if block != -1:
                            start = block * GEOMETRY.page_bytes
                            found = self.pages[layer][start : start + GEOMETRY.page_bytes]
                            assert found == page(transfer.key, layer, index)
            self.give_back(blocks)

    def end_everything(self):
        deadline = time.monotonic() + PATIENCE
        while self.loads or self.stores or self.backend.held or self.engine.executor._keeper.overdue:
            assert time.monotonic() < deadline, "something never ends"
            self.end_all_batches_the_youngest_first()
            self.settle()

    def teardown(self):
        executor, planner = self.engine.executor, self.engine.planner
        self.end_everything()
        deadline = time.monotonic() + PATIENCE
        assert executor.wait_idle(deadline)
        self.settle()
        assert executor.window.loads.busy == executor.window.stores.busy == 0, "slots leaked"
        assert planner.pending_loads == planner.pending_stores == 0
        assert not planner._quarantined, "places leaked"
        assert self.engine.reset()
        plan = self.engine.plan_store([(ChunkKey(b"last-%d" % n), ((0, 1),)) for n in range(CHUNKS)])
        assert plan is not None and len(plan.transfers) == CHUNKS, "pins or places leaked"
        assert self.engine.shutdown()


EngineModel.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    # Threads take part: the same draws need not fail twice, so there is nothing to shrink.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestEngineModel = EngineModel.TestCase
