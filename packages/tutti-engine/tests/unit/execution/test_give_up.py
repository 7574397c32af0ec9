# SPDX-License-Identifier: Apache-2.0
"""A load that its server does not wait for any longer."""

import errno
import threading
import time


def test_nothing_writes_to_the_pages_of_a_load_that_was_given_up(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    plan = rig.load_plan((0, (10, 11)))
    rig.executor.load(plan)
    rig.arrived(2)
    rig.executor.give_up(plan)
    rig.let_go()
    result = rig.result()
    assert (result.failed, result.untried, result.errno) == ((0,), (0,), errno.ECANCELED)
    assert rig.content(10) == rig.poison, "the late read was copied"
    assert rig.load((0, (12, 13)), plan_id=3).failed == ()
    assert rig.content(12) == contents[0]


def test_giving_up_waits_for_a_copy_that_is_under_way(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    copying, go_on, given_up = threading.Event(), threading.Event(), threading.Event()
    mover = rig.executor._loads._mover
    scatter = mover.scatter

    def slow(*arguments):
        copying.set()
        assert go_on.wait(30)
        return scatter(*arguments)

    mover.scatter = slow
    plan = rig.load_plan((0, (10, 11)))
    rig.executor.load(plan)
    assert copying.wait(30)
    thread = threading.Thread(target=lambda: (rig.executor.give_up(plan), given_up.set()))
    thread.start()
    assert not given_up.wait(0.05)
    go_on.set()
    assert given_up.wait(30)
    thread.join()
    assert rig.result().untried in ((0,), ())


def test_a_load_by_layers_ends_for_those_that_wait_for_its_layers(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    plan = rig.load_plan((0, (10, 11)))
    transfers = [rig.executor.load(plan, (layer,)) for layer in range(rig.geometry.num_layers)]
    rig.executor.give_up(plan)
    rig.let_go()
    assert all(transfer.wait(time.monotonic() + 30) and not transfer.ok for transfer in transfers)
    assert rig.result().failed == (0,)


def test_a_load_that_has_ended_is_left_alone(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    plan = rig.load_plan((0, (10, 11)))
    rig.executor.load(plan)
    assert rig.result().failed == ()
    rig.executor.give_up(plan)
    assert rig.executor.take_results() == []
