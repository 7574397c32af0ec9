# SPDX-License-Identifier: Apache-2.0
"""Plans larger than the window, backends and banks that are full."""

import errno
import threading
import time

import pytest


def test_a_plan_larger_than_the_window_goes_in_waves(rig):
    rig = rig(runs=2, store_stall=30.0)
    chunks = [(n, (2 * n, 2 * n + 1)) for n in range(15)]
    contents = rig.store_filled(*chunks)
    assert rig.load(*chunks).failed == ()
    assert {b: rig.content(b) for b in contents} == contents


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


def test_a_load_that_waits_for_room_takes_slots_that_become_quiet(rig):
    rig = rig(io_timeout=1.0, runs=2)
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


def test_writes_beyond_the_depth_wait_and_are_counted(rig):
    rig = rig(write_depth=1)
    rig.store_filled((0, (0, 1)))
    rig.arrived(1)
    assert rig.executor.counters["store_depth_waits"] == 0
    rig.backend.hold = True
    for plan_id in (5, 6):
        rig.executor.store(rig.store_plan((plan_id, (2, 3)), plan_id=plan_id))
    rig.arrived(1)
    deadline = time.monotonic() + 30
    while not rig.executor.counters["store_depth_waits"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert not rig.backend.arrived.acquire(blocking=False)
    rig.let_go()
    assert len(rig.until(lambda results: len(results) == 2)) == 2
    assert rig.executor.counters["store_depth_waits"] == 1


def test_a_store_without_room_gives_up_some_chunks_instead_of_the_callers_time(rig):
    rig = rig(runs=2, store_stall=0.01)
    rig.backend.hold = True
    rig.executor.store(rig.store_plan(*((n, (2 * n, 2 * n + 1)) for n in range(4))))
    rig.arrived(2)
    rig.let_go()
    result = rig.result()
    assert [sums is not None for sums in result.checksums] == [True, True, False, False]
    assert result.errno == errno.ENOBUFS
    assert rig.executor.counters["store_no_room_chunks"] == 2


def test_stores_that_wait_for_room_do_not_hold_up_a_load(rig):
    rig = rig(runs=2)
    contents = rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    rig.executor.store(rig.store_plan((1, (4, 5)), (2, (6, 7)), plan_id=3))
    rig.backend.arrived.acquire()
    rig.backend.arrived.acquire()
    rig.backend.hold = False
    rig.executor.load(rig.load_plan((0, (10, 11)), plan_id=4))
    results = rig.until(bool)
    assert [r.plan_id for r in results] == [4] and rig.content(10) == contents[0]
    rig.let_go()
    rig.result()


def test_waiting_for_room_is_left_to_backends_that_can(rig):
    rig = rig()
    room = []
    rig.backend.wait_for_room = room.append
    rig.backend.verdict = lambda what, chunk_id, layer: 0 if room else errno.EAGAIN
    rig.store_filled((0, (0, 1)))
    assert len(room) == rig.executor.counters["room_waits"] == 1


def test_reads_of_the_next_plan_begin_before_the_first_one_is_copied(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    rig.arrived(1)
    rig.backend.hold = True
    for plan_id in (5, 6, 7):
        rig.executor.load(rig.load_plan((0, (2 * plan_id, 2 * plan_id + 1)), plan_id=plan_id))
    rig.arrived(3)
    assert rig.executor.take_results() == []
    rig.let_go()
    assert [r.plan_id for r in rig.until(lambda results: len(results) == 3)] == [5, 6, 7]


def test_no_more_than_lookahead_layers_are_read_ahead(rig):
    rig = rig(lookahead=1)
    contents = rig.store_filled((0, (0, 1)))
    rig.arrived(1)
    rig.backend.hold = True
    plan = rig.load_plan((0, (10, 11)))
    layers = [rig.executor.load(plan, (layer,)) for layer in range(rig.geometry.num_layers)]
    rig.arrived(2)
    assert not rig.backend.arrived.acquire(timeout=0.05), "the third layer has to wait"
    rig.backend.held.pop(0).finish()
    assert layers[0].wait(time.monotonic() + 30) and not layers[1].poll()
    rig.arrived(1)
    rig.let_go()
    assert rig.result().failed == () and rig.content(10) == contents[0]
    assert rig.executor.counters["load_lookahead_waits"] == 1


def test_loads_beyond_the_queue_are_refused_at_once(rig):
    rig = rig(max_queued_loads=2, runs=2)
    rig.store_filled((0, (0, 1)))
    rig.arrived(1)
    rig.backend.hold = True
    for plan_id in (3, 4, 5):
        # Two in flight; the reading thread has the third and waits for slots.
        rig.executor.load(rig.load_plan((0, (4, 5)), plan_id=plan_id))
        if plan_id < 5:
            rig.arrived(1)
    deadline = time.monotonic() + 30
    while not rig.executor.counters["load_slot_waits"] and time.monotonic() < deadline:
        time.sleep(0.001)
    for plan_id in (6, 7, 8):
        rig.executor.load(rig.load_plan((0, (4, 5)), plan_id=plan_id))
    (refused,) = rig.executor.take_results()
    assert (refused.plan_id, refused.errno, refused.untried) == (8, errno.ENOBUFS, (0,))
    assert rig.executor.counters["loads_refused"] == 1
    rig.let_go()
    assert sorted(r.plan_id for r in rig.until(lambda results: len(results) == 5)) == [3, 4, 5, 6, 7]


def test_a_real_error_is_not_hidden_by_a_lack_of_room(rig):
    rig = rig(runs=2, store_stall=0.0)
    rig.backend.verdict = lambda what, chunk_id, layer: errno.EIO
    rig.backend.hold = True
    rig.executor.store(rig.store_plan(*((n, (2 * n, 2 * n + 1)) for n in range(4))))
    rig.arrived(2)
    rig.let_go()
    assert rig.result().errno == errno.EIO


def test_a_backend_says_how_many_batches_share_the_window(rig, monkeypatch):
    usual = rig(runs=8)
    monkeypatch.setattr(type(usual.backend), "load_waves", 2, raising=False)
    for each, most in ((usual, 2), (rig(runs=8), 4)):
        chunks = [(n, (2 * n, 2 * n + 1)) for n in range(8)]
        contents = each.store_filled(*chunks)
        sizes, read = [], each.backend.read_segments

        def reading(batch, sizes=sizes, read=read):
            sizes.append(len(batch) // 3)
            return read(batch)

        each.backend.read_segments = reading
        assert each.load(*chunks).failed == ()
        assert {b: each.content(b) for b in contents} == contents
        assert max(sizes) == most and sum(sizes) == 8


@pytest.mark.parametrize("waves", [1, 0, -2])
def test_a_backend_that_wants_fewer_than_two_batches_is_refused(rig, monkeypatch, waves):
    monkeypatch.setattr(type(rig().backend), "load_waves", waves, raising=False)
    with pytest.raises(ValueError, match=rf"load_waves is {waves}: at least 2"):
        rig()
