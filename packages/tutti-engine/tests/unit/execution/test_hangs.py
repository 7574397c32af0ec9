# SPDX-License-Identifier: Apache-2.0
"""Drives that do not answer in time, and what waits behind them."""

import errno
import threading
import time

from tutti_engine import StoreSettled


def test_a_hanging_read_fails_in_time_and_its_slots_wait_for_the_drive(rig):
    rig = rig(io_timeout=0.05)
    contents = rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    result = rig.load((0, (10, 11)))
    assert (result.failed, result.errno) == ((0,), errno.ETIMEDOUT)
    assert rig.busy_slots() == rig.geometry.num_layers
    rig.backend.hold = False
    rig.backend.held[0].finish()
    assert rig.content(10) == rig.poison, "the late read was copied"
    assert rig.load((0, (12, 13)), plan_id=3).failed == ()
    assert rig.content(12) == contents[0]


def test_what_a_hung_read_holds_shows_until_the_drive_answers(rig):
    rig = rig(io_timeout=0.05)
    rig.store_filled((0, (0, 1)))
    assert not any(rig.executor.in_use().values())
    rig.backend.hold = True
    rig.load((0, (10, 11)))
    held = {name: count for name, count in rig.executor.in_use().items() if count}
    assert held == {"load_slots": rig.geometry.num_layers, "overdue_waves": 1}
    rig.let_go()
    assert not any(rig.executor.in_use().values())


def test_a_hanging_write_is_reported_as_unsettled(rig):
    rig = rig(io_timeout=0.05)
    rig.backend.hold = True
    rig.fill(0)
    result = rig.store((0, (0, 1)))
    assert (result.checksums, result.unsettled, result.errno) == ((None,), (0,), errno.ETIMEDOUT)
    assert rig.executor.take_results() == []
    assert not rig.executor.is_idle, "somebody has to ask whether it has ended"
    rig.backend.hold = False
    rig.backend.held[0].finish()
    assert rig.until(bool) == [StoreSettled(1, (0,))]
    assert rig.executor.is_idle
    assert rig.store((1, (0, 1)), plan_id=5).errno == 0


def test_an_executor_with_a_result_is_not_idle(rig):
    rig = rig()
    rig.executor.store(rig.store_plan((0, (0, 1))))
    assert not rig.executor.is_idle
    assert rig.executor.wait_for_results(time.monotonic() + 30)
    assert not rig.executor.is_idle, "somebody has to take it"
    assert len(rig.executor.take_results()) == 1
    assert rig.executor.wait_idle(time.monotonic() + 30) and rig.executor.is_idle


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
    rig = rig(io_timeout=0.05, runs=2)
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
    rig = rig(io_timeout=0.1, write_depth=2)
    rig.backend.hold = True
    for plan_id in range(1, 5):
        rig.executor.store(rig.store_plan((plan_id, (0, 1)), plan_id=plan_id))
    assert rig.executor.wait_idle(time.monotonic() + 30)
    first, *others = sorted(rig.executor.take_results(), key=lambda result: result.plan_id)
    assert (first.errno, first.unsettled) == (errno.ETIMEDOUT, (0,))
    assert [r.errno for r in others] == 3 * [errno.ECANCELED], "the drive is blamed once"
    # The second one was on its way and may still be written; the others were not tried.
    assert [r.unsettled for r in others] == [(0,), (), ()]
    assert len(rig.backend.held) == 2
    assert rig.executor.counters["write_hangs"] == 1
    rig.let_go()
    assert set(rig.until(lambda results: len(results) == 2)) == {StoreSettled(1, (0,)), StoreSettled(2, (0,))}


def test_a_late_write_of_one_layer_does_not_settle_a_later_one_of_the_same_chunk(rig):
    rig = rig(io_timeout=0.1)
    rig.backend.hold = True
    keeper = rig.executor._keeper
    dismiss = keeper.dismiss

    def dismiss_and_end_the_first(wave):
        now = dismiss(wave)
        if not rig.backend.held[0].poll():
            rig.backend.held[0].finish()
            keeper.reclaim()
        return now

    keeper.dismiss = dismiss_and_end_the_first
    plan = rig.store_plan((0, (0, 1)))
    for layer in range(3):
        rig.executor.store(plan, (layer,))
    (result,) = rig.until(bool)
    assert (result.checksums, result.unsettled) == ((None,), (0,)), "two layers are still in flight"
    rig.let_go()
    assert set(rig.until(bool)) == {StoreSettled(1, (0,))}
    assert rig.executor.wait_idle(0.0) and keeper.overdue == 0


def test_shutdown_reports_what_it_had_to_leave(rig):
    rig = rig()
    rig.backend.hold = True
    rig.executor.store(rig.store_plan((0, (0, 1))))
    rig.backend.arrived.acquire()
    assert not rig.executor.shutdown(time.monotonic() + 0.05)
    assert rig.backend.down
    rig.backend.held[0].finish()
    assert rig.result().errno == 0


def test_nobody_need_ask_for_slots_of_a_late_read_to_come_back(rig):
    rig = rig(io_timeout=0.05)
    rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    assert rig.load((0, (10, 11))).errno == errno.ETIMEDOUT
    freed = threading.Event()
    release = rig.executor.window.loads.release_all
    rig.executor.window.loads.release_all = lambda slots, count: (release(slots, count), freed.set())
    rig.let_go()
    assert freed.wait(30)


def test_a_handle_whose_wait_returns_early_is_not_asked_in_a_loop(rig):
    rig = rig(io_timeout=0.05)
    rig.store_filled((0, (0, 1)))
    asked = []

    class Impatient:
        done = False

        def poll(self):
            return self.done

        def wait(self, deadline):
            asked.append(deadline)
            return self.done

    read, handle = rig.backend.read_segments, Impatient()
    rig.backend.read_segments = lambda batch: handle
    assert rig.load((0, (4, 5))).errno == errno.ETIMEDOUT
    rig.backend.read_segments = read
    assert rig.load((0, (6, 7)), plan_id=3).failed == ()
    assert len(asked) <= 2
    handle.done = True
    rig.executor.take_results()


def test_a_bank_full_of_hung_reads_fails_what_waits_for_it_together(rig):
    rig = rig(io_timeout=0.1, runs=2)
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
