# SPDX-License-Identifier: Apache-2.0
"""Acceptance item by item, and the life of a batch's handle."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable

import numpy as np
import pytest
from runtime_kit import KIB, PAGE, Setup, batch, request, run

import tutti_runtime as tr

N = 6


@pytest.mark.parametrize("k", range(1, N + 2))
def test_every_k_of_n_is_accepted_and_the_rest_can_follow(
    pair: tuple[str, str], make_setup: Callable[..., Setup], k: int
) -> None:
    setup = make_setup(pair, max_in_flight=k)
    buffer, memory = setup.memory(N * 64 * KIB)
    target = setup.target(N * 64 * KIB)
    expected = buffer.fill_random(k)
    left = batch(*[request(tr.WRITE, memory, i * 64 * KIB, target, i * 64 * KIB, 64 * KIB) for i in range(N)])
    rounds = 0
    while len(left):
        result = setup.runtime.submit(left)
        room = min(k, len(left))
        assert result.accepted.tolist() == [True] * room + [False] * (len(left) - room)
        assert result.errors.tolist() == [0] * room + [errno.EAGAIN] * (len(left) - room)
        assert result.handle is not None
        done = setup.runtime.wait(result.handle, 30)
        assert done.status.tolist() == [0] * room
        assert done.bytes.tolist() == [64 * KIB] * room
        left = left[~result.accepted]
        rounds += 1
    assert rounds == -(-N // k)
    buffer.bytes[:] = 0
    for i in range(N):
        run(setup.runtime, batch(request(tr.READ, memory, i * 64 * KIB, target, i * 64 * KIB, 64 * KIB)))
    assert np.array_equal(buffer.bytes, expected)


SIZE = 64 * KIB
BIG = 2**64 - PAGE
BAD = {
    "target offset off 4 KiB": ({"target_offset": 1}, errno.EINVAL),
    "target offset off 4 KiB by 512": ({"target_offset": 512}, errno.EINVAL),
    "memory offset off 4 KiB": ({"memory_offset": 2048}, errno.EINVAL),
    "length off 4 KiB": ({"length": PAGE + 1}, errno.EINVAL),
    "no length": ({"length": 0}, errno.EINVAL),
    "past the end of the memory": ({"memory_offset": SIZE}, errno.EINVAL),
    "over the end of the memory": ({"memory_offset": SIZE - PAGE, "length": 2 * PAGE}, errno.EINVAL),
    "past the end of the target": ({"target_offset": SIZE}, errno.EINVAL),
    "over the end of the target": ({"target_offset": SIZE - PAGE, "length": 2 * PAGE}, errno.EINVAL),
    "memory range wraps": ({"memory_offset": BIG, "length": 2 * PAGE}, errno.EINVAL),
    "target range wraps": ({"target_offset": BIG, "length": 2 * PAGE}, errno.EINVAL),
    "longer than one I/O may be": ({"length": 2**30 + PAGE}, errno.EINVAL),
    "longest length": ({"length": BIG}, errno.EINVAL),
    "unknown direction": ({"direction": 3}, errno.EINVAL),
    "reserved in use": ({"reserved": 1}, errno.EINVAL),
    "memory handle 0": ({"memory": 0}, errno.EBADF),
    "target handle 0": ({"target": 0}, errno.EBADF),
    "made-up target": ({"target": 2**64 - 1}, errno.EBADF),
    "made-up memory": ({"memory": 2**64 - 1}, errno.EBADF),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_fails_alone(setup: Setup, what: str) -> None:
    buffer, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    expected = buffer.fill_random(2)
    fields, error = BAD[what]
    rows = batch(*[request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(5)])
    for name, value in fields.items():
        rows[2][name] = value
    result = setup.runtime.submit(rows)
    assert result.errors.tolist() == [0, 0, error, 0, 0]
    assert result.handle is not None
    done = setup.runtime.wait(result.handle, 30)
    assert done.status.tolist() == [0] * 4
    buffer.bytes[:] = 0
    run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE)))
    expected[2 * PAGE : 3 * PAGE] = 0
    expected[5 * PAGE :] = 0
    assert np.array_equal(buffer.bytes, expected)


def test_stale_and_foreign_handles_are_never_someone_elses(
    pair: tuple[str, str], make_setup: Callable[..., Setup]
) -> None:
    one, two = make_setup(pair), make_setup(pair)
    _, memory = one.memory(SIZE)
    _, other_memory = two.memory(SIZE)
    target, other_target = one.target(SIZE), two.target(SIZE)
    old_target, old_memory = one.target(SIZE), one.memory(SIZE)[1]
    one.runtime.close(old_target)
    one.runtime.unregister_memory(old_memory)
    new_target, new_memory = one.target(SIZE), one.memory(SIZE)[1]  # take the places that became free
    assert new_target != old_target
    assert new_memory != old_memory

    pairs = [
        (memory, old_target),
        (old_memory, target),
        (memory, other_target),
        (other_memory, target),
        (target, memory),
    ]
    result = one.runtime.submit(batch(*[request(tr.READ, m, 0, t, 0, PAGE) for m, t in pairs]))
    assert result.handle is None
    assert result.errors.tolist() == [errno.EBADF] * len(pairs)
    for handle in (old_target, other_target, memory, 0, -1, 2**70):
        with pytest.raises(tr.InvalidHandleError):
            one.runtime.close(handle)
    for handle in (old_memory, other_memory, target, 0, -1):
        with pytest.raises(tr.InvalidHandleError):
            one.runtime.unregister_memory(handle)
    with pytest.raises(TypeError):
        one.runtime.close("target")  # type: ignore[arg-type]


def test_a_handle_is_good_for_one_wait(setup: Setup) -> None:
    _, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    result = setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, SIZE)))
    assert result.handle is not None
    while not setup.runtime.poll(result.handle):
        select.select([setup.runtime.completion_fd()], [], [], 30)
    done = setup.runtime.wait(result.handle, 0)
    assert done.status.tolist() == [0]
    for again in (setup.runtime.wait, setup.runtime.poll, setup.runtime.abandon):
        with pytest.raises(tr.InvalidHandleError):
            again(result.handle)
    with pytest.raises(ValueError, match="handle"):
        setup.runtime.wait(result.handle)
    with pytest.raises(tr.TuttiRuntimeError):
        setup.runtime.wait(target)


def test_another_runtimes_batch_is_refused(pair: tuple[str, str], make_setup: Callable[..., Setup]) -> None:
    one, two = make_setup(pair), make_setup(pair)
    _, memory = one.memory(SIZE)
    target = one.target(SIZE)
    handle = one.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, SIZE))).handle
    assert handle is not None
    with pytest.raises(tr.InvalidHandleError):
        two.runtime.wait(handle, 0)
    assert one.runtime.wait(handle, 30).status.tolist() == [0]


def test_completion_fd_counts_batches(setup: Setup) -> None:
    _, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    fd = setup.runtime.completion_fd()
    assert select.select([fd], [], [], 0)[0] == []
    handles = [
        setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, SIZE))).handle for _ in range(5)
    ]
    seen = 0
    while seen < 5:
        assert select.select([fd], [], [], 30)[0] == [fd]
        seen += int.from_bytes(os.read(fd, 8), "little")
    assert seen == 5
    assert all(setup.runtime.poll(handle) for handle in handles if handle is not None)


def test_an_abandoned_batch_frees_everything(setup: Setup) -> None:
    _, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    result = setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, SIZE)))
    assert result.handle is not None
    setup.runtime.abandon(result.handle)
    fd = setup.runtime.completion_fd()
    assert select.select([fd], [], [], 30)[0] == [fd]
    setup.runtime.close(target)
    setup.runtime.unregister_memory(memory)
    assert setup.runtime.stats()["completed"] == 1


def test_an_empty_batch_is_nothing(setup: Setup) -> None:
    result = setup.runtime.submit(np.empty(0, dtype=tr.REQUEST_DTYPE))
    assert result.handle is None
    assert result.accepted.shape == result.errors.shape == (0,)


def test_malformed_arrays(setup: Setup) -> None:
    rows = batch(request(tr.READ, 1, 0, 1, 0, PAGE))
    for wrong in ([1, 2], None, np.zeros(3), rows.astype(rows.dtype.newbyteorder(">")), rows[["memory"]]):
        with pytest.raises(TypeError, match="REQUEST_DTYPE"):
            setup.runtime.submit(wrong)  # type: ignore[arg-type]
    for shape in ((), (1, 1)):
        with pytest.raises(ValueError, match="one dimension"):
            setup.runtime.submit(rows.reshape(shape))


def test_strided_and_unaligned_arrays_mean_what_they_say(setup: Setup) -> None:
    buffer, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    expected = buffer.fill_random(4)
    rows = batch(*[request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(16)])
    run(setup.runtime, rows[::2])
    run(setup.runtime, rows[::-1][::2])
    buffer.bytes[:] = 0
    reads = rows.copy()
    reads["direction"] = tr.READ
    raw = np.zeros(reads.nbytes + 1, dtype=np.uint8)
    raw[1:] = reads.view(np.uint8)
    run(setup.runtime, raw[1:].view(tr.REQUEST_DTYPE))
    assert np.array_equal(buffer.bytes, expected)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_senseless_timeout_is_refused(setup: Setup, timeout: float) -> None:
    _, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    handle = setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, PAGE))).handle
    assert handle is not None
    with pytest.raises(ValueError, match="timeout"):
        setup.runtime.wait(handle, timeout)
    assert setup.runtime.wait(handle, float("inf")).status.tolist() == [0]


def test_many_threads_submit_and_wait(setup: Setup) -> None:
    threads, rounds, block = 8, 25, 16 * KIB
    buffer, memory = setup.memory(threads * block)
    target = setup.target(threads * rounds * block)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        mine = buffer.bytes[number * block : (number + 1) * block]
        try:
            for i in range(rounds):
                place = (i * threads + number) * block
                mine[:] = rng.integers(0, 256, block, dtype=np.uint8)
                expected = mine.copy()
                run(setup.runtime, batch(request(tr.WRITE, memory, number * block, target, place, block)))
                mine[:] = 0
                run(setup.runtime, batch(request(tr.READ, memory, number * block, target, place, block)))
                assert np.array_equal(mine, expected)
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert setup.runtime.stats()["completed"] == 2 * threads * rounds


def test_two_waiters_of_one_batch_get_one_result(setup: Setup) -> None:
    _, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    for _ in range(20):
        handle = setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, PAGE))).handle
        assert handle is not None
        outcomes: list[str] = []

        def wait(which: int = handle, seen: list[str] = outcomes) -> None:
            try:
                setup.runtime.wait(which, 30)
                seen.append("result")
            except tr.InvalidHandleError:
                seen.append("refused")

        waiters = [threading.Thread(target=wait) for _ in range(2)]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()
        assert sorted(outcomes) == ["refused", "result"]
