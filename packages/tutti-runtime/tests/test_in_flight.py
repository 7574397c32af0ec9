# SPDX-License-Identifier: Apache-2.0
"""What may and may not be done while I/O is in flight.

A frozen file system holds writes back until it is thawed, so "in flight" is a state here and no race.
"""

from __future__ import annotations

import errno
import select
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from runtime_kit import (
    KIB,
    PAGE,
    Buffer,
    LoopMount,
    Setup,
    batch,
    request,
    run,
    until_the_kernel_holds_a_thread,
)

import tutti_runtime as tr

SIZE = 64 * KIB
pytestmark = pytest.mark.root


class Held:
    """A runtime with room for four items, of which three writes are held back by the file system."""

    def __init__(self, setup: Setup, mount: LoopMount) -> None:
        self.runtime = setup.runtime
        self.mount = mount
        self.buffer, self.memory = setup.memory(SIZE)
        self.uri = setup.uri(SIZE)
        self.target = setup.runtime.open(self.uri)
        self.expected = self.buffer.fill_random(21)
        # Blocks exist already, so that nothing but the freeze holds the writes back.
        run(self.runtime, batch(request(tr.WRITE, self.memory, 0, self.target, 0, SIZE)))
        mount.freeze()
        result = self.runtime.submit(
            batch(*[request(tr.WRITE, self.memory, i * PAGE, self.target, i * PAGE, PAGE) for i in range(3)])
        )
        assert result.handle is not None
        self.handle = result.handle
        # What no device has begun is another matter: a shutdown may cancel it.
        until_the_kernel_holds_a_thread()

    def finish(self) -> tr.Completion:
        self.mount.thaw()
        return self.runtime.wait(self.handle, 30)


@pytest.fixture
def held(
    file_pair: tuple[str, str], loop_mount: LoopMount, make_setup: Callable[..., Setup]
) -> Iterator[Held]:
    setup = make_setup(file_pair, loop_mount.folder, max_in_flight=4)
    try:
        yield Held(setup, loop_mount)
    finally:
        loop_mount.thaw()
        setup.runtime.shutdown(30)


def test_an_unfinished_batch_times_out_and_stays_good(held: Held) -> None:
    assert not held.runtime.poll(held.handle)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError) as caught:
            held.runtime.wait(held.handle, timeout)
        assert caught.value.errno == errno.ETIMEDOUT
    assert select.select([held.runtime.completion_fd()], [], [], 0)[0] != []  # of the first write
    done = held.finish()
    assert done.status.tolist() == [0] * 3
    assert done.bytes.tolist() == [PAGE] * 3


def test_busy_things_are_not_closed(held: Held) -> None:
    with pytest.raises(tr.BusyError, match="3 items"):
        held.runtime.close(held.target)
    with pytest.raises(tr.BusyError, match="3 items"):
        held.runtime.unregister_memory(held.memory)
    (error,) = held.runtime.close_batch([held.target])
    assert isinstance(error, tr.BusyError)
    held.finish()
    held.runtime.close(held.target)
    held.runtime.unregister_memory(held.memory)


def test_only_free_room_is_given_out(held: Held) -> None:
    rows = batch(*[request(tr.WRITE, held.memory, SIZE - PAGE, held.target, SIZE - PAGE, PAGE)] * 3)
    result = held.runtime.submit(rows)
    assert result.errors.tolist() == [0, errno.EAGAIN, errno.EAGAIN]
    none = held.runtime.submit(rows)
    assert none.handle is None
    assert none.errors.tolist() == [errno.EAGAIN] * 3
    held.finish()
    assert result.handle is not None
    assert held.runtime.wait(result.handle, 30).status.tolist() == [0]
    again = held.runtime.submit(rows)
    assert again.accepted.all()


def test_an_abandoned_batch_keeps_memory_and_target_busy(held: Held) -> None:
    held.runtime.abandon(held.handle)
    with pytest.raises(tr.InvalidHandleError):
        held.runtime.wait(held.handle, 0)
    with pytest.raises(tr.BusyError):
        held.runtime.close(held.target)
    with pytest.raises(tr.BusyError):
        held.runtime.unregister_memory(held.memory)
    held.mount.thaw()
    assert held.runtime.shutdown(30)


def test_abandoning_wakes_a_waiter(held: Held) -> None:
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            held.runtime.wait(held.handle, 30)
        except BaseException as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    held.runtime.abandon(held.handle)
    waiter.join(30)
    assert [type(error) for error in outcome] == [tr.InvalidHandleError]


def test_shutdown_has_a_deadline_and_can_be_repeated(held: Held) -> None:
    assert held.runtime.shutdown(0) is False
    assert held.runtime.shutdown(0.05) is False
    with pytest.raises(tr.RuntimeClosedError):  # draining: nothing new
        held.runtime.submit(batch(request(tr.READ, held.memory, 0, held.target, 0, PAGE)))
    held.mount.thaw()
    assert held.runtime.shutdown(30) is True
    assert held.runtime.shutdown(0) is True
    path = held.uri.removeprefix("file://")
    assert np.fromfile(path, dtype=np.uint8).tobytes() == held.expected.tobytes()


def test_a_waiter_gets_its_result_through_a_shutdown(held: Held) -> None:
    outcome: list[object] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            outcome.append(held.runtime.wait(held.handle, 30).status.tolist())
        except BaseException as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiting.wait(30)
    # One scheduling step lies between the event and the wait; both outcomes of it are right.
    stopper = threading.Thread(target=held.runtime.shutdown, args=(30,))
    stopper.start()
    held.mount.thaw()
    waiter.join(30)
    stopper.join(30)
    assert outcome == [[0, 0, 0]] or isinstance(outcome[0], tr.RuntimeClosedError)


def test_ctrl_c_ends_a_wait(held: Held) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            held.runtime.wait(held.handle)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert held.finish().status.tolist() == [0] * 3


def test_memory_is_not_read_after_completion(held: Held) -> None:
    """The bytes that were in memory when a write finished are what a later change cannot touch."""
    held.finish()
    held.buffer.bytes[:] = 0xA5
    fresh = Buffer(SIZE)
    memory = held.runtime.register_memory(fresh.address, SIZE)
    assert not run(held.runtime, batch(request(tr.READ, memory, 0, held.target, 0, SIZE))).status.any()
    assert np.array_equal(fresh.bytes, held.expected)
