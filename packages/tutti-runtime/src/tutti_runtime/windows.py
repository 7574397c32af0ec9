# SPDX-License-Identifier: Apache-2.0
"""More requests than a runtime has room for, in a bounded window."""

from __future__ import annotations

import errno
import select
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.requests import Completion
from tutti_runtime.runtime import Runtime

__all__ = ["submit_all"]


def submit_all(
    runtime: Runtime, requests: NDArray[np.void], *, window: int = 256, timeout: float | None = None
) -> Iterator[tuple[NDArray[np.intp], Completion]]:
    """Run any number of requests, each exactly once, with at most ``window`` of them in flight.

    Yields ``(indices, completion)`` as batches finish, oldest first: ``completion.status[i]`` is the outcome
    of ``requests[indices[i]]``. What is rejected for lack of room (EAGAIN) is submitted again; what is
    rejected for another reason is yielded with that errno as its status. ``timeout`` is that of
    :meth:`Runtime.submit`, for each submission. A caller that stops early leaves nothing behind: what is in
    flight is canceled as far as it can be and abandoned.

    Raises ``ValueError`` for a window below 1 at once, and what ``submit`` and ``wait`` raise. Raises
    ``BlockingIOError`` when there is no room although nothing of this call is in flight (others hold all
    of it) for a second.
    """
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"window={window!r} must be an int of 1 or more")
    return _run_all(runtime, requests, window, timeout)


def _run_all(
    runtime: Runtime, requests: NDArray[np.void], window: int, timeout: float | None
) -> Iterator[tuple[NDArray[np.intp], Completion]]:
    step = max(1, window // 4)
    todo = deque(np.arange(len(requests))[i : i + step] for i in range(0, len(requests), step))
    flying: deque[tuple[int, NDArray[np.intp]]] = deque()
    in_flight = 0
    give_up = time.monotonic() + 1.0
    try:
        while todo or flying:
            full = False
            while todo and in_flight + len(todo[0]) <= window and not full:
                chosen = todo.popleft()
                result = runtime.submit(requests[chosen], timeout=timeout)
                if result.handle is not None:
                    flying.append((result.handle, chosen[result.accepted]))
                    in_flight += int(result.accepted.sum())
                no_room = ~result.accepted & (result.errors == errno.EAGAIN)
                if no_room.any():
                    todo.appendleft(chosen[no_room])
                    full = True
                refused = ~result.accepted & ~no_room
                if refused.any():
                    status = result.errors[refused]
                    yield chosen[refused], Completion(status, np.zeros(len(status), np.uint64))
            if not flying:
                if full and time.monotonic() > give_up:
                    raise _no_room()
                if full:
                    _wait_for_room(runtime)
                continue
            give_up = time.monotonic() + 1.0
            handle, chosen = flying[0]
            completion = runtime.wait(handle)
            flying.popleft()
            in_flight -= len(chosen)
            yield chosen, completion
    finally:
        for handle, _ in flying:
            runtime.cancel(handle)
            runtime.abandon(handle)


def _wait_for_room(runtime: Runtime) -> None:
    """Wait a moment, or until some batch has finished. Never reads the eventfd: it is the caller's."""
    poller = select.poll()
    poller.register(runtime.completion_fd(), select.POLLIN)
    if poller.poll(5):
        time.sleep(0.001)  # readable for long, perhaps


def _no_room() -> BlockingIOError:
    return BlockingIOError(
        errno.EAGAIN,
        "no room: others have had max_in_flight requests in flight, or max_results results uncollected, "
        "for a second; wait for their batches",
    )
