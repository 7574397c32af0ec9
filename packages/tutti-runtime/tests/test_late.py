# SPDX-License-Identifier: Apache-2.0
"""Devices that answer after the deadline: results come in time, memory stays in use until the answer."""

from __future__ import annotations

import errno
import threading

import numpy as np
import pytest
from runtime_kit import PAGE, MakeFaulty, Setup, batch, pages, request, run

import tutti_runtime as tr
from tutti_runtime import _core


def hanging(make_faulty: MakeFaulty, **options: object) -> tuple[Setup, _core.FaultControl, np.ndarray, int]:
    """A read of two pages, of which the device keeps the second."""
    setup, control = make_faulty({"rules": [{"item": 1, "hang": True}]})
    rows, data = pages(setup, tr.READ, 2)
    result = setup.runtime.submit(rows, **options)  # type: ignore[arg-type]
    assert result.handle is not None
    assert control.wait_held(1, 30)
    return setup, control, data, result.handle


def test_what_hangs_is_held_until_released(make_faulty: MakeFaulty) -> None:
    setup, control, _, handle = hanging(make_faulty)
    assert not setup.runtime.poll(handle)
    control.set_plan({})  # changes nothing for what hangs already
    assert control.held() == 1
    control.release()
    assert setup.runtime.wait(handle, 30).status.tolist() == [0, 0]
    assert control.held() == 0


def test_late_items_have_a_result_but_keep_their_memory(make_faulty: MakeFaulty) -> None:
    setup, control, data, handle = hanging(make_faulty, timeout=0.02)
    data[:] = 7
    done = setup.runtime.wait(handle, 30)
    assert done.status.tolist() == [0, errno.ETIMEDOUT]
    assert done.late.tolist() == [False, True]
    assert done.late_handle is not None
    stats = setup.runtime.stats()
    assert (stats["timed_out"], stats["late"], stats["late_done"]) == (1, 1, 0)
    assert not setup.runtime.poll(done.late_handle)
    control.release()  # the device writes into the memory only now
    late = setup.runtime.wait(done.late_handle, 30)
    assert (late.status.tolist(), late.bytes.tolist()) == ([0], [PAGE])
    assert not data[PAGE : 2 * PAGE].any()
    assert setup.runtime.stats()["late_done"] == 1
    with pytest.raises(tr.InvalidHandleError):
        setup.runtime.wait(done.late_handle, 0)


def test_memory_and_target_of_a_late_item_are_busy(make_faulty: MakeFaulty) -> None:
    setup, control = make_faulty({"rules": [{"hang": True}]})
    _, memory = setup.memory(PAGE)
    target = setup.target(PAGE)
    result = setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, PAGE)), timeout=0)
    assert result.handle is not None
    done = setup.runtime.wait(result.handle, 30)
    assert done.status.tolist() == [errno.ETIMEDOUT]
    assert done.late.tolist() == [True]
    with pytest.raises(tr.BusyError):
        setup.runtime.unregister_memory(memory)
    with pytest.raises(tr.BusyError):
        setup.runtime.close(target)
    control.set_plan({})
    control.release()
    assert done.late_handle is not None
    assert setup.runtime.wait(done.late_handle, 30).status.tolist() == [0]
    setup.runtime.unregister_memory(memory)
    setup.runtime.close(target)


def test_an_answer_before_the_result_is_fetched_is_not_late(make_faulty: MakeFaulty) -> None:
    setup, control, _, handle = hanging(make_faulty, timeout=0.01)
    while not setup.runtime.poll(handle):
        threading.Event().wait(0.001)
    control.release()
    while setup.runtime.stats()["late_done"] == 0:
        threading.Event().wait(0.001)
    done = setup.runtime.wait(handle, 30)
    assert done.status.tolist() == [0, errno.ETIMEDOUT]
    assert not done.late.any()
    assert done.late_handle is None


def test_a_gate_opens_at_the_deadline_of_a_hanging_device(make_faulty: MakeFaulty) -> None:
    setup, control = make_faulty({"rules": [{"hang": True}]})
    rows, _ = pages(setup, tr.READ, 1)
    words, memory = setup.memory(PAGE)
    result = setup.runtime.submit(rows, timeout=0.02, gate=tr.Gate(memory, 0, 4))
    assert result.handle is not None
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [errno.ETIMEDOUT]
    assert words.bytes.view(np.uint64)[:2].tolist() == [4, errno.ETIMEDOUT]
    setup.runtime.unregister_memory(memory)  # the gate is open: its word is free
    control.release()


def test_a_late_batch_can_be_abandoned(make_faulty: MakeFaulty) -> None:
    setup, control, _, handle = hanging(make_faulty, timeout=0.01)
    done = setup.runtime.wait(handle, 30)
    assert done.late_handle is not None
    setup.runtime.abandon(done.late_handle)
    control.release()


def test_what_a_device_has_is_not_canceled(make_faulty: MakeFaulty) -> None:
    setup, control, _, handle = hanging(make_faulty)
    setup.runtime.cancel(handle)
    assert control.held() == 1
    control.release()
    assert setup.runtime.wait(handle, 30).status[1] == 0


def test_the_end_opens_gates_and_waits_for_the_device(make_faulty: MakeFaulty) -> None:
    setup, control = make_faulty({"rules": [{"hang": True}]})
    rows, _ = pages(setup, tr.READ, 1)
    words, memory = setup.memory(PAGE)
    setup.runtime.submit(rows, gate=tr.Gate(memory, 0, 4))
    assert not setup.runtime.shutdown(0.02)
    assert words.bytes.view(np.uint64)[:2].tolist() == [4, errno.ETIMEDOUT]
    assert not setup.runtime.shutdown(0)
    control.release()
    assert setup.runtime.shutdown(30)
    assert setup.runtime.shutdown(0)


@pytest.mark.parametrize("make_faulty", ["posix", "uring"], indirect=True)
def test_results_that_nobody_collects_are_bounded(make_faulty: MakeFaulty) -> None:
    setup, _ = make_faulty({}, max_in_flight=8, max_results=8)
    rows, _ = pages(setup, tr.WRITE, 5)
    first = setup.runtime.submit(rows)
    assert first.accepted.all()
    assert first.handle is not None
    while not setup.runtime.poll(first.handle):
        threading.Event().wait(0.001)
    second = setup.runtime.submit(rows)
    assert second.errors.tolist() == [0, 0, 0, errno.EAGAIN, errno.EAGAIN]
    assert second.handle is not None
    setup.runtime.wait(first.handle, 30)
    setup.runtime.abandon(second.handle)
    assert not run(setup.runtime, rows).status.any()
    assert setup.runtime.caps()["max_results"] == 8
