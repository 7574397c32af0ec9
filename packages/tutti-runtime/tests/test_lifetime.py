# SPDX-License-Identifier: Apache-2.0
"""Shutdown, fork and garbage collection."""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_kit import KIB, Setup, batch, request, run

import tutti_runtime as tr

SIZE = 64 * KIB


def every_call(runtime: tr.Runtime, target: int, memory: int, handle: int) -> dict[str, Callable[[], object]]:
    rows = batch(request(tr.READ, memory, 0, target, 0, SIZE))
    return {
        "open": lambda: runtime.open("file:///etc/hostname"),
        "open_batch": lambda: runtime.open_batch(["file:///etc/hostname"]),
        "close": lambda: runtime.close(target),
        "close_batch": lambda: runtime.close_batch([target]),
        "register_memory": lambda: runtime.register_memory(1 << 16, 4096),
        "unregister_memory": lambda: runtime.unregister_memory(memory),
        "submit": lambda: runtime.submit(rows),
        "submit nothing": lambda: runtime.submit(rows[:0]),
        "poll": lambda: runtime.poll(handle),
        "wait": lambda: runtime.wait(handle, 0),
        "abandon": lambda: runtime.abandon(handle),
        "completion_fd": runtime.completion_fd,
        "caps": runtime.caps,
        "stats": runtime.stats,
    }


def prepare(setup: Setup) -> tuple[int, int, int]:
    _, memory = setup.memory(SIZE)
    target = setup.target(SIZE)
    handle = setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 0, SIZE))).handle
    assert handle is not None
    return target, memory, handle


def address_of_a_page(setup: Setup) -> int:
    return setup.memory(SIZE)[0].address


def test_every_call_after_shutdown_is_refused(setup: Setup) -> None:
    calls = every_call(setup.runtime, *prepare(setup))
    address = address_of_a_page(setup)
    calls["register_memory"] = lambda: setup.runtime.register_memory(address, 4096)
    assert setup.runtime.shutdown() is True
    for name, call in calls.items():
        with pytest.raises(tr.RuntimeClosedError):
            call()
            pytest.fail(f"{name} went through")
    assert setup.runtime.shutdown() is True
    assert setup.runtime.shutdown(0) is True


def test_shutdown_closes_every_descriptor(pair: tuple[str, str], make_setup: Callable[..., Setup]) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    setup = make_setup(pair)
    prepare(setup)
    assert setup.runtime.shutdown() is True
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    assert sum(1 for _ in Path("/proc/self/task").iterdir()) == threads


def test_leaving_the_block_shuts_down(setup: Setup) -> None:
    with setup.runtime as runtime:
        prepare(setup)
    with pytest.raises(tr.RuntimeClosedError):
        runtime.stats()


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_senseless_shutdown_timeout_is_refused(setup: Setup, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        setup.runtime.shutdown(timeout)
    setup.runtime.stats()


def test_many_threads_may_shut_down(setup: Setup) -> None:
    prepare(setup)
    outcomes: list[bool] = []
    threads = [threading.Thread(target=lambda: outcomes.append(setup.runtime.shutdown(30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 8


def test_shutdown_while_others_submit(setup: Setup) -> None:
    """Whatever was accepted is finished; whatever came later is refused; nothing else can happen."""
    target, memory, _ = prepare(setup)
    rows = batch(*[request(tr.READ, memory, 0, target, 0, SIZE)] * 4)
    started = threading.Barrier(5)
    surprises: list[BaseException] = []

    def work() -> None:
        started.wait()
        try:
            while True:
                handle = setup.runtime.submit(rows).handle
                if handle is not None:
                    setup.runtime.wait(handle, 30)
        except tr.RuntimeClosedError:
            pass
        except BaseException as error:
            surprises.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    assert setup.runtime.shutdown(30) is True
    for thread in threads:
        thread.join(30)
    assert not surprises


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_harms_nobody(setup: Setup) -> None:
    target, memory, handle = prepare(setup)
    calls = every_call(setup.runtime, target, memory, handle)
    calls["shutdown"] = setup.runtime.shutdown
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for name, call in calls.items():
                try:
                    call()
                except tr.ForkedRuntimeError as error:
                    assert str(os.getppid()) in str(error), name
                else:
                    raise AssertionError(name)
            calls.clear()
            del (
                setup.runtime
            )  # the last reference: garbage collection must not wait for threads that are not there
            gc.collect()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert setup.runtime.wait(handle, 30).status.tolist() == [0]
    run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, SIZE)))


def test_a_forgotten_runtime_says_so_and_ends(tmp_path: Path) -> None:
    def threads() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    before = threads()  # of other tests too, which may end meanwhile
    runtime = tr.make_file_runtime(threads=2)
    own = threads() - before
    assert own
    with pytest.warns(ResourceWarning, match="not shut down"):
        del runtime
        gc.collect()
    assert not own & threads()
