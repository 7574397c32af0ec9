# SPDX-License-Identifier: Apache-2.0
"""Pages on a device, whose server goes on while they are copied: each chunk keeps the bytes that it had."""

import errno
import random
import threading
import time

import pytest

from tutti_engine import ChunkTransfer, ExecutionSettings, Geometry, LoadPlan, StorePlan
from tutti_engine.counters import Counters
from tutti_engine.execution.deferred_copies import DeferredCopies
from tutti_engine.execution.executor import Executor
from tutti_engine.execution.shares import Share
from tutti_engine.execution.transfer import StoreJob
from tutti_engine.mover import BackgroundMover
from tutti_engine.testing.device import SimulatedDeviceMover

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=3000)
BLOCKS = 40
CHUNK = GEOMETRY.blocks_per_chunk
SECONDS = 30.0


class Server:
    """Writes to pages on the device's queue, as a model does, and stores and loads chunks of them."""

    def __init__(self, backend, *, runs=4, dawdle=lambda: None, **options):
        self.backend = backend
        self.pages = [bytearray(BLOCKS * GEOMETRY.page_bytes) for _ in range(GEOMETRY.num_layers)]
        self.mover = SimulatedDeviceMover(GEOMETRY, [memoryview(each) for each in self.pages], dawdle)
        bank = runs * GEOMETRY.num_layers * GEOMETRY.segment_bytes
        settings = ExecutionSettings(load_bank_bytes=bank, store_bank_bytes=bank, **options)
        self.executor = Executor(GEOMETRY, self.backend, self.mover, settings)
        self.plans = 0
        self.stored = {}  # chunk id -> its bytes, layer by layer, as they were when the store was asked for
        self.sums = {}

    def step(self, blocks, value):
        """Write ``value`` all over some blocks: now for this thread, later on the device."""
        self.executor.reuse_blocks(blocks)
        self.mover.server.put(lambda: self._write(blocks, value))

    def _write(self, blocks, value):
        size = GEOMETRY.page_bytes
        for layer, pages in enumerate(self.pages):
            for block in blocks:
                pages[block * size : (block + 1) * size] = bytes([value, layer]) * (size // 2)

    def store(self, chunks):
        """Store chunks, given as id, blocks, and the value that they were or will be filled with."""
        self.plans += 1
        transfers = tuple(ChunkTransfer(b"k", chunk, (tuple(blocks),)) for chunk, blocks, _ in chunks)
        for chunk, blocks, value in chunks:
            self.stored[chunk] = [
                bytes([value, layer]) * (GEOMETRY.page_bytes // 2) * len(blocks)
                for layer in range(GEOMETRY.num_layers)
            ]
        self.executor.store(StorePlan(self.plans, transfers))
        return self.plans

    def load(self, chunk, blocks):
        """Load one chunk."""
        self.plans += 1
        transfer = ChunkTransfer(b"k", chunk, (tuple(blocks),), (self.sums[chunk],))
        return self.executor.load(LoadPlan(self.plans, (transfer,)))

    def results(self):
        assert self.executor.wait_idle(time.monotonic() + SECONDS)
        return self.executor.take_results()

    def content(self, blocks):
        self.mover.server.synchronize()
        size = GEOMETRY.page_bytes
        return [b"".join(pages[b * size : (b + 1) * size] for b in blocks) for pages in self.pages]

    def check_stored(self, chunk):
        for layer, expected in enumerate(self.stored[chunk]):
            assert self.backend.bytes[chunk, layer][: len(expected)] == expected, (chunk, layer)

    def close(self):
        assert self.executor.shutdown(time.monotonic() + SECONDS)


@pytest.fixture
def serve(scripted_backend):
    """Makes the test's server."""
    return lambda **options: Server(scripted_backend, **options)


@pytest.fixture
def gate():
    """Holds the device back until it is set."""
    event = threading.Event()
    yield event
    event.set()


def test_the_simulated_mover_is_one():
    assert isinstance(SimulatedDeviceMover(GEOMETRY, []), BackgroundMover)


def test_a_store_does_not_wait_for_the_device_and_has_what_the_step_wrote(serve, gate):
    server = serve(dawdle=gate.wait)
    server.step([0, 1], 7)
    server.store([(5, [0, 1], 7)])
    assert not server.executor.take_results()  # the device has done nothing yet, and nobody waited for it
    gate.set()
    (result,) = server.results()
    assert result.checksums[0] is not None
    server.check_stored(5)
    server.close()
    assert not server.mover.bound


def test_without_late_copies_pages_may_be_written_as_soon_as_store_returns(serve):
    server = serve(late_copies=False, dawdle=lambda: time.sleep(0.002))
    reports = {}
    for chunk in range(12):
        # Nobody says that the blocks are wanted back.
        server.mover.server.put(lambda value=chunk + 1: server._write([0, 1], value))
        reports[server.store([(chunk, [0, 1], chunk + 1)])] = chunk
    for result in server.results():
        chunk = reports.pop(result.plan_id)
        assert result.checksums[0] is not None
        server.check_stored(chunk)
    assert not reports
    server.close()


def test_blocks_that_are_wanted_back_before_they_are_copied_are_given_up(serve):
    server = serve(runs=2)
    server.backend.hold = True
    many = [(chunk, [2 * chunk, 2 * chunk + 1], chunk) for chunk in range(6)]
    for _, blocks, value in many:
        server.step(blocks, value)
    server.store(many)
    # The bank holds two chunks and their writes do not end: the others wait in their pages.
    server.backend.arrived.acquire()
    server.step([8, 9], 99)
    server.backend.hold = False
    while not server.executor.wait_idle(time.monotonic() + 0.01):
        for handle in server.backend.held:
            handle.finish()
    (result,) = server.executor.take_results()
    assert [position for position, sums in enumerate(result.checksums) if sums is None] == [4]
    assert result.errno == errno.ECANCELED
    for chunk in (0, 1, 2, 3, 5):
        server.check_stored(chunk)
    assert (4, 0) not in server.backend.bytes
    assert server.executor.counters["store_revoked_chunks"] == 1
    server.close()


def test_a_copy_under_way_holds_the_next_writer_up(serve, gate):
    server = serve()
    held = threading.Event()

    def slow(layers, block_ids, slots):
        held.set()
        gate.wait()
        return type(server.mover).gather(server.mover, layers, block_ids, slots)

    server.step([0, 1], 3)
    server.mover.gather = slow
    server.store([(0, [0, 1], 3)])
    assert held.wait(SECONDS)
    server.step([0, 1], 4)  # returns although the copy is under way
    assert not server.mover.server.record().wait(0.1)  # the device does not go on
    gate.set()
    assert server.results()[0].checksums[0] is not None
    server.check_stored(0)
    assert server.content([0])[0][:2] == bytes([4, 0])
    assert server.executor.counters["store_copy_waits"] == 1
    server.close()


def test_a_device_that_does_not_take_the_order_to_wait_costs_the_chunks_that_are_copied(serve, gate):
    server = serve()
    held = threading.Event()

    def slow(layers, block_ids, slots):
        held.set()
        gate.wait()
        return type(server.mover).gather(server.mover, layers, block_ids, slots)

    def refuse(copies):
        raise RuntimeError("no such stream")

    server.mover.gather, server.mover.hold = slow, refuse
    server.store([(0, [0, 1], 0), (1, [2, 3], 0)])
    assert held.wait(SECONDS)
    with pytest.raises(RuntimeError, match="no such stream"):
        server.executor.reuse_blocks([0, 1])
    gate.set()
    (result,) = server.results()
    assert [sums is None for sums in result.checksums] == [True, False]
    server.close()


def test_a_plan_ends_whatever_the_device_says_when_it_is_given(serve):
    server = serve()

    def refuse():
        raise RuntimeError("no more events")

    server.mover.mark = refuse
    server.store([(0, [0, 1], 0)])
    (result,) = server.results()
    assert result.checksums == (None,) and result.errno == errno.EIO
    assert server.executor.in_use() == dict.fromkeys(server.executor.in_use(), 0)
    server.close()


def test_a_chunk_of_several_groups_is_given_up_once():
    counters = Counters()
    copies = DeferredCopies(SimulatedDeviceMover(GEOMETRY, []), counters)
    plan = StorePlan(1, (ChunkTransfer(b"k", 0, ((1, 2), (3,))), ChunkTransfer(b"l", 1, ((4, 5), (6,)))))
    job = StoreJob(plan, 3)
    shares = [copies.add(job, Share(group, (group,), range(2))) for group in range(2)]
    copies.revoke([2, 3])
    assert job.errors == {0: errno.ECANCELED} and counters["store_revoked_chunks"] == 1
    assert [list(each.todo) for each in shares] == [[1], [1]]


def test_a_load_waits_for_the_work_of_those_who_had_its_blocks(serve, gate):
    server = serve()
    server.step([0, 1], 3)
    server.store([(0, [0, 1], 3)])
    server.sums[0] = server.results()[0].checksums[0]
    server.mover.server.put(gate.wait)
    server.step([4, 5], 9)  # somebody's last step, which the device has not come to yet
    server.executor.reuse_blocks([4, 5])
    transfer = server.load(0, [4, 5])
    assert not transfer.wait(time.monotonic() + 0.05)
    gate.set()
    assert transfer.wait(time.monotonic() + SECONDS) and transfer.ok
    assert server.content([4, 5]) == server.stored[0]
    server.close()


def test_pages_can_be_left_at_once(serve, gate):
    server = serve()
    server.step([0, 1], 3)
    server.mover.server.put(gate.wait)
    started, start = threading.Event(), server.mover.start_gather

    def start_gather(*arguments):
        try:
            return start(*arguments)
        finally:
            started.set()

    server.mover.start_gather = start_gather
    server.store([(0, [0, 1], 3)])
    assert started.wait(SECONDS)
    leaving = threading.Thread(target=server.executor.leave_pages)
    leaving.start()
    leaving.join(0.05)
    assert leaving.is_alive()  # the copy is under way
    gate.set()
    leaving.join(SECONDS)
    server.pages[0][:] = bytes(len(server.pages[0]))  # the memory is gone
    (result,) = server.results()
    assert result.checksums[0] is not None
    server.check_stored(0)
    server.close()


def test_pages_are_left_although_there_is_no_room_to_copy_them(serve):
    server = serve(runs=2)
    server.backend.hold = True
    chunks = [(chunk, [2 * chunk, 2 * chunk + 1], chunk) for chunk in range(6)]
    for _, blocks, value in chunks:
        server.step(blocks, value)
    server.store(chunks)
    for _ in range(2):
        server.backend.arrived.acquire()
    server.executor.leave_pages()  # the bank is full and stays so
    for handle in server.backend.held:
        handle.finish()
    (result,) = server.results()
    assert [sums is None for sums in result.checksums] == [False, False, True, True, True, True]
    server.close()


def test_a_load_that_is_given_up_is_waited_for_by_its_copy_only(serve, gate):
    server = serve()
    server.step([0, 1], 3)
    server.store([(0, [0, 1], 3)])
    server.sums[0] = server.results()[0].checksums[0]
    server.mover.server.put(gate.wait)
    transfer = server.load(0, [4, 5])
    plan = LoadPlan(server.plans, (ChunkTransfer(b"k", 0, ((4, 5),), (server.sums[0],)),))
    giving_up = threading.Thread(target=server.executor.give_up, args=(plan,))
    while not server.executor.window.loads.busy:
        time.sleep(0.001)
    server.executor.give_up(LoadPlan(99, plan.transfers))  # unknown: nothing to wait for
    giving_up.start()
    gate.set()
    giving_up.join(SECONDS)
    assert not giving_up.is_alive() and transfer.wait(time.monotonic() + SECONDS)
    again = server.load(0, [6, 7])
    assert again.wait(time.monotonic() + SECONDS) and again.ok
    server.close()


def test_a_copy_that_fails_gives_its_slots_back(serve):
    server = serve(runs=2)
    server.store([(0, [0, BLOCKS + 5], 1), (1, [2, 3], 0)])
    (result,) = server.results()
    assert result.checksums == (None, None) and result.errno == errno.EIO
    assert server.executor.in_use() == dict.fromkeys(server.executor.in_use(), 0)
    server.step([2, 3], 8)
    server.store([(2, [2, 3], 8)])
    assert server.results()[0].checksums[0] is not None
    server.close()


def test_drives_that_hang_cost_the_stores_and_nothing_else(serve):
    server = serve(runs=2, io_timeout=0.2)
    server.backend.hold = True
    chunks = [(chunk, [2 * chunk, 2 * chunk + 1], chunk) for chunk in range(6)]
    for _, blocks, value in chunks:
        server.step(blocks, value)
    server.store(chunks)
    (result,) = server.results()
    assert result.checksums == (None,) * 6
    for handle in server.backend.held:
        handle.finish()
    server.close()


def test_drives_that_hang_are_waited_for_once_however_many_stores_wait(serve):
    server = serve(runs=2, io_timeout=1.0)
    server.backend.hold = True
    plans = [server.store([(chunk, [2 * chunk, 2 * chunk + 1], 0)]) for chunk in range(16)]
    results = server.results()
    assert sorted(result.plan_id for result in results) == plans
    assert all(result.checksums == (None,) for result in results)
    assert server.executor.counters["store_slot_waits"] == 1
    # What comes later is tried again.
    server.backend.hold = False
    for handle in server.backend.held:
        handle.finish()
    while server.executor.in_use()["store_slots"]:
        time.sleep(0.001)
    server.executor.take_results()
    server.store([(0, [0, 1], 0)])
    assert server.results()[0].checksums[0] is not None
    server.close()


def test_room_that_comes_back_is_taken_as_a_whole(serve):
    """Small waves follow each other one at a time: each costs the interpreter as much as a large one."""
    server = serve(runs=16)
    server.backend.hold = True
    server.store([(chunk, [2 * chunk, 2 * chunk + 1], 0) for chunk in range(18)])
    while not server.executor.counters["store_slot_waits"]:
        time.sleep(0.001)
    server.backend.hold = False
    for handle in server.backend.held:
        handle.finish()
    (result,) = server.results()
    assert None not in result.checksums
    assert server.executor.counters["store_waves"] == 9, "of two chunks each"
    server.close()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_stored_is_what_its_step_wrote(serve, seed):
    rng = random.Random(seed)
    lock = threading.Lock()

    def dawdle():
        with lock:
            pause = rng.choice((0.0, 0.0, 0.0005, 0.002))
        time.sleep(pause)

    server = serve(runs=rng.choice((2, 3, 8)), dawdle=dawdle)
    choose = random.Random(seed + 1000)
    reports, chunk = {}, 0
    for _ in range(60):
        # Some chunks' worth of blocks go to somebody else, whoever has them.
        blocks = choose.sample(range(BLOCKS), CHUNK * choose.randrange(1, 4))
        value = choose.randrange(1, 250)
        server.step(blocks, value)
        batch = []
        for start in range(0, len(blocks), CHUNK):
            batch.append((chunk, blocks[start : start + CHUNK], value))
            chunk += 1
        reports[server.store(batch)] = [each[0] for each in batch]
    stored = 0
    for result in server.results():
        for number, sums in zip(reports.pop(result.plan_id), result.checksums):
            if sums is not None:
                server.check_stored(number)
                server.sums[number] = sums
                stored += 1
    assert not reports and stored
    last = max(server.sums)
    server.step([0, 1], 251)
    server.executor.reuse_blocks([0, 1])
    assert server.load(last, [0, 1]).wait(time.monotonic() + SECONDS)
    assert server.content([0, 1]) == server.stored[last]
    server.close()
