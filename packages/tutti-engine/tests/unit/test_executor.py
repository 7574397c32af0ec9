# SPDX-License-Identifier: Apache-2.0
"""The execution side against a backend that delays, reorders, refuses, fails and hangs on command."""

import errno
import threading
import time

import pytest

from tutti_engine import SKIP_BLOCK, ChunkTransfer, Geometry, LoadPlan, StorePlan, StoreSettled
from tutti_engine.executor import Executor
from tutti_engine.movers.plain import PlainMover

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=3000)
BLOCKS = 40
POISON = 0xA5


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
    def __init__(self, **options):
        self.backend = ScriptedBackend()
        self.pages = [bytearray(BLOCKS * GEOMETRY.page_bytes) for _ in range(GEOMETRY.num_layers)]
        mover = PlainMover(GEOMETRY, [memoryview(p) for p in self.pages])
        bank = options.pop("bank_bytes", 12 * GEOMETRY.segment_bytes)
        self.executor = Executor(
            GEOMETRY, self.backend, mover, load_bank_bytes=bank, store_bank_bytes=bank, **options
        )
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
        self.executor.store(store_plan(*chunks, plan_id=plan_id))
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


def store_plan(*chunks, plan_id=1):
    return StorePlan(plan_id, tuple(ChunkTransfer(b"k", c, (tuple(b),)) for c, b in chunks))


@pytest.fixture
def rig():
    made = []

    def make(**options):
        made.append(Rig(**options))
        return made[-1]

    yield make
    for one in made:
        assert one.busy_slots() == 0, "slots leaked"
        one.executor.shutdown(time.monotonic() + 5)


def test_chunks_come_back_into_other_blocks_bit_by_bit(rig):
    rig = rig()
    contents = rig.store_filled((7, (3, 1)), (8, (0, 5)), (2, (4, 6)))
    result = rig.load((2, (30, 31)), (7, (11, 10)))
    assert (result.failed, result.errno) == ((), 0)
    assert result.bytes_read == 2 * 3 * GEOMETRY.segment_bytes
    assert [rig.content(b) for b in (30, 31, 11, 10)] == [contents[b] for b in (4, 6, 3, 1)]
    untouched = set(range(BLOCKS)) - {30, 31, 11, 10}
    poison = [bytes([POISON]) * GEOMETRY.page_bytes] * GEOMETRY.num_layers
    assert all(rig.content(block) == poison for block in untouched)


def test_a_plan_larger_than_the_window_goes_in_waves(rig):
    rig = rig(bank_bytes=6 * GEOMETRY.segment_bytes, store_stall=30.0)
    chunks = [(n, (2 * n, 2 * n + 1)) for n in range(15)]
    contents = rig.store_filled(*chunks)
    assert rig.load(*chunks).failed == ()
    assert {b: rig.content(b) for b in contents} == contents


def test_nothing_is_copied_before_its_read_has_finished(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    rig.executor.load(rig.load_plan((0, (2, 3))))
    rig.backend.arrived.acquire()
    rig.backend.arrived.acquire()
    poison = [bytes([POISON]) * GEOMETRY.page_bytes] * GEOMETRY.num_layers
    assert rig.content(2) == poison and rig.executor.take_results() == []
    rig.backend.held[0].finish()
    assert rig.result().failed == ()
    assert rig.content(2)[0][:2] == bytes([1, 0])


def test_damaged_bytes_reach_no_page(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    damaged = bytearray(rig.backend.bytes[0, 1])
    damaged[100] ^= 1
    rig.backend.bytes[0, 1] = bytes(damaged)
    result = rig.load((0, (10, 11)), (1, (12, 13)))
    assert (result.failed, result.errno) == ((0,), errno.EBADMSG)
    assert rig.content(10)[1] == bytes([POISON]) * GEOMETRY.page_bytes
    assert rig.content(12) == contents[2]


def test_swapped_segments_are_noticed(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)), (1, (2, 3)))
    backend = rig.backend
    backend.bytes[0, 2], backend.bytes[1, 2] = backend.bytes[1, 2], backend.bytes[0, 2]
    assert rig.load((0, (10, 11)), (1, (12, 13))).failed == (0, 1)


def test_a_read_error_fails_its_chunk_and_no_other(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    rig.backend.verdict = lambda what, chunk_id, layer: errno.EIO if (chunk_id, layer) == (0, 2) else 0
    result = rig.load((0, (10, 11)), (1, (12, 13)))
    assert (result.failed, result.errno) == ((0,), errno.EIO)
    assert rig.content(13) == contents[3]


def test_a_write_error_on_one_layer_makes_the_chunk_not_durable(rig):
    rig = rig()
    rig.backend.verdict = lambda what, chunk_id, layer: errno.ENOSPC if (chunk_id, layer) == (1, 0) else 0
    for block in range(4):
        rig.fill(block)
    result = rig.store((0, (0, 1)), (1, (2, 3)))
    assert result.checksums[0] is not None and result.checksums[1] is None
    assert (result.errno, result.unsettled) == (errno.ENOSPC, ())
    assert result.bytes_written == 3 * GEOMETRY.segment_bytes


def test_what_the_backend_had_no_room_for_is_tried_again(rig):
    rig = rig()
    tries = {}

    def verdict(what, chunk_id, layer):
        tries[what, chunk_id, layer] = tries.get((what, chunk_id, layer), 0) + 1
        return errno.EAGAIN if tries[what, chunk_id, layer] <= layer else 0

    rig.backend.verdict = verdict
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    assert rig.load((1, (10, 11)), (0, (12, 13))).failed == ()
    assert [rig.content(b) for b in (10, 12)] == [contents[2], contents[0]]
    assert max(tries.values()) == 3


def test_a_backend_that_never_has_room_ends_the_plan_in_time(rig):
    rig = rig(io_timeout=0.05)
    rig.backend.verdict = lambda what, chunk_id, layer: errno.EAGAIN
    rig.fill(0)
    result = rig.store((0, (0, 1)))
    assert (result.checksums, result.errno) == ((None,), errno.EAGAIN)


def test_a_hanging_read_fails_in_time_and_its_slots_wait_for_the_drive(rig):
    rig = rig(io_timeout=0.05)
    contents = rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    result = rig.load((0, (10, 11)))
    assert (result.failed, result.errno) == ((0,), errno.ETIMEDOUT)
    assert rig.busy_slots() == GEOMETRY.num_layers
    rig.backend.hold = False
    rig.backend.held[0].finish()
    poison = [bytes([POISON]) * GEOMETRY.page_bytes] * GEOMETRY.num_layers
    assert rig.content(10) == poison, "the late read was copied"
    assert rig.load((0, (12, 13)), plan_id=3).failed == ()
    assert rig.content(12) == contents[0]


def test_a_hanging_write_is_reported_as_unsettled(rig):
    rig = rig(io_timeout=0.05)
    rig.backend.hold = True
    rig.fill(0)
    result = rig.store((0, (0, 1)))
    assert (result.checksums, result.unsettled, result.errno) == ((None,), (0,), errno.ETIMEDOUT)
    assert rig.executor.take_results() == []
    rig.backend.hold = False
    rig.backend.held[0].finish()
    assert rig.executor.take_results() == [StoreSettled(1, (0,))]
    assert rig.store((1, (0, 1)), plan_id=5).errno == 0


def test_what_waits_behind_a_hung_drive_fails_with_it_and_is_not_blamed(rig):
    rig = rig(io_timeout=0.2)
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    rig.backend.hold = True
    for plan_id in range(10, 40):
        rig.executor.load(rig.load_plan((0, (10, 11)), plan_id=plan_id))
    assert rig.executor.wait_idle(time.monotonic() + 30)
    results = {r.plan_id: r for r in rig.executor.take_results()}
    assert results[10].errno == errno.ETIMEDOUT and results[10].untried == ()
    assert all(results[n].failed == results[n].untried == (0,) for n in range(11, 40))
    rig.backend.hold = False
    for handle in rig.backend.held:
        handle.finish()
    assert rig.load((1, (12, 13)), plan_id=50).failed == ()
    assert rig.content(12) == contents[2]


def test_a_plan_that_hangs_does_not_try_its_later_waves(rig):
    rig = rig(io_timeout=0.05, bank_bytes=6 * GEOMETRY.segment_bytes)
    chunks = [(n, (2 * n, 2 * n + 1)) for n in range(6)]
    for chunk in chunks:
        rig.store_filled(chunk)
    read = rig.backend.read_segments

    def only_the_first_hangs(batch):
        rig.backend.hold = not rig.backend.held
        return read(batch)

    rig.backend.read_segments = only_the_first_hangs
    result = rig.load(*chunks)
    # The second wave was on its way; there would have been room for the others.
    assert result.failed == (0, 2, 3, 4, 5)
    assert (result.errno, result.untried) == (errno.ETIMEDOUT, (2, 3, 4, 5))
    rig.backend.held[0].finish()
    rig.executor.take_results()


def test_writes_that_wait_behind_a_hung_one_are_given_up(rig):
    rig = rig(io_timeout=0.1)
    rig.backend.hold = True
    rig.executor.store(store_plan((0, (0, 1)), plan_id=1))
    rig.executor.store(store_plan((1, (2, 3)), plan_id=2))
    assert rig.executor.wait_idle(time.monotonic() + 30)
    first, second = rig.executor.take_results()
    assert (first.errno, first.unsettled) == (errno.ETIMEDOUT, (0,))
    assert (second.errno, second.unsettled) == (errno.ECANCELED, ())
    rig.backend.held[0].finish()
    assert rig.executor.take_results() == [StoreSettled(1, (0,))]


def test_a_load_that_waits_for_room_takes_slots_that_become_quiet(rig):
    rig = rig(io_timeout=1.0, bank_bytes=6 * GEOMETRY.segment_bytes)
    contents = rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    # Both runs of the bank hang.
    rig.executor.load(rig.load_plan((0, (4, 5)), (0, (6, 7)), plan_id=3))
    assert rig.executor.wait_idle(time.monotonic() + 30)
    rig.executor.take_results()
    rig.backend.hold = False
    rig.executor.load(rig.load_plan((0, (8, 9)), plan_id=4))
    threading.Timer(0.1, lambda: [handle.finish() for handle in rig.backend.held]).start()
    assert rig.result().failed == ()
    assert rig.content(8) == contents[0]


def test_a_store_without_room_gives_up_some_chunks_instead_of_the_callers_time(rig):
    rig = rig(bank_bytes=6 * GEOMETRY.segment_bytes, store_stall=0.01)
    rig.backend.hold = True
    rig.executor.store(store_plan(*((n, (2 * n, 2 * n + 1)) for n in range(4))))
    rig.backend.hold = False
    rig.backend.arrived.acquire()
    for handle in rig.backend.held:
        handle.finish()
    result = rig.result()
    assert [sums is not None for sums in result.checksums] == [True, True, False, False]
    assert result.errno == errno.ENOBUFS


def test_stores_that_wait_for_room_do_not_hold_up_a_load(rig):
    rig = rig(bank_bytes=6 * GEOMETRY.segment_bytes)
    contents = rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    rig.executor.store(store_plan((1, (4, 5)), (2, (6, 7)), plan_id=3))
    rig.backend.arrived.acquire()
    rig.backend.arrived.acquire()
    rig.backend.hold = False
    rig.executor.load(rig.load_plan((0, (10, 11)), plan_id=4))
    deadline = time.monotonic() + 30
    while not (results := rig.executor.take_results()) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [r.plan_id for r in results] == [4] and rig.content(10) == contents[0]
    rig.backend.held[0].finish()
    rig.result()


def test_pages_may_be_reused_as_soon_as_store_returns(rig):
    rig = rig()
    contents = rig.fill(0), rig.fill(1)
    rig.backend.hold = True
    rig.executor.store(store_plan((0, (0, 1))))
    rig.wipe()
    rig.backend.arrived.acquire()
    rig.backend.hold = False
    rig.backend.held[0].finish()
    rig.sums[0] = rig.result().checksums[0]
    assert rig.load((0, (20, 21))).failed == ()
    assert (rig.content(20), rig.content(21)) == contents


def test_blocks_that_the_server_owns_are_verified_and_not_written(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    assert rig.load((0, (SKIP_BLOCK, 9))).failed == ()
    assert rig.content(9) == contents[1]
    damaged = bytearray(rig.backend.bytes[0, 0])
    damaged[0] ^= 1
    rig.backend.bytes[0, 0] = bytes(damaged)
    assert rig.load((0, (SKIP_BLOCK, 12)), plan_id=3).failed == (0,)


def test_a_lost_chunk_fails_without_a_read(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    result = rig.load((None, (4, 5)), (0, (6, 7)))
    assert (result.failed, result.errno) == ((0,), errno.ENOENT)
    assert rig.content(6) == contents[0]


def test_a_backend_that_raises_ends_the_plan_and_not_the_thread(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))

    def refuse(batch):
        raise ValueError("no such chunk")

    good, rig.backend.read_segments = rig.backend.read_segments, refuse
    assert rig.load((0, (4, 5))).failed == (0,)
    rig.backend.read_segments = good
    assert rig.load((0, (4, 5)), plan_id=3).failed == ()
    assert rig.content(4) == contents[0]


def test_layers_can_be_loaded_and_stored_one_by_one(rig):
    rig = rig()
    contents = rig.fill(0), rig.fill(1)
    plan = store_plan((0, (0, 1)))
    for layer in range(GEOMETRY.num_layers):
        assert rig.executor.take_results() == []
        rig.executor.store(plan, (layer,))
    rig.sums[0] = rig.result().checksums[0]
    rig.wipe()
    load = rig.load_plan((0, (10, 11)))
    for layer in range(GEOMETRY.num_layers):
        transfer = rig.executor.load(load, (layer,))
        assert transfer.wait(time.monotonic() + 30) and transfer.ok
        assert rig.content(10)[layer] == contents[0][layer]
    assert rig.result().failed == ()


def test_shutdown_reports_what_it_had_to_leave(rig):
    rig = rig()
    rig.backend.hold = True
    rig.executor.store(store_plan((0, (0, 1))))
    rig.backend.arrived.acquire()
    assert not rig.executor.shutdown(time.monotonic() + 0.05)
    assert rig.backend.down
    rig.backend.held[0].finish()
    assert rig.result().errno == 0


def test_a_bank_full_of_hung_reads_fails_what_waits_for_it_together(rig):
    rig = rig(io_timeout=0.1, bank_bytes=6 * GEOMETRY.segment_bytes)
    rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    rig.executor.load(rig.load_plan((0, (4, 5)), (0, (6, 7)), plan_id=3))
    assert rig.executor.wait_idle(time.monotonic() + 30)
    rig.executor.take_results()
    for plan_id in range(10, 15):
        rig.executor.load(rig.load_plan((0, (8, 9)), plan_id=plan_id))
    assert rig.executor.wait_idle(time.monotonic() + 30)
    results = rig.executor.take_results()
    assert [r.errno for r in results] == [errno.ETIMEDOUT] + 4 * [errno.ECANCELED]
    assert all(r.untried == (0,) for r in results)
    for handle in rig.backend.held:
        handle.finish()
    rig.executor.take_results()


def test_a_real_error_is_not_hidden_by_a_lack_of_room(rig):
    rig = rig(bank_bytes=6 * GEOMETRY.segment_bytes, store_stall=0.0)
    rig.backend.verdict = lambda what, chunk_id, layer: errno.EIO
    rig.backend.hold = True
    rig.executor.store(store_plan(*((n, (2 * n, 2 * n + 1)) for n in range(4))))
    rig.backend.arrived.acquire()
    for handle in rig.backend.held:
        handle.finish()
    assert rig.result().errno == errno.EIO


def test_a_backend_whose_handles_break_costs_its_plan_and_not_the_thread(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    good = rig.backend.read_segments

    class Broken:
        def poll(self):
            raise RuntimeError("broken")

        wait = status = lambda self, *arguments: self.poll()

    rig.backend.read_segments = lambda batch: Broken()
    assert rig.load((0, (4, 5))).errno == errno.EIO
    rig.backend.read_segments = good
    assert rig.load((0, (6, 7)), plan_id=3).failed == ()
    assert rig.content(6) == contents[0]
    # What such a handle may still write to is never used again.
    assert rig.busy_slots() == GEOMETRY.num_layers
    rig.executor._keeper._stuck.pop().release()
