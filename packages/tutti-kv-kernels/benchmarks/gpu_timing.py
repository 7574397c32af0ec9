# SPDX-License-Identifier: Apache-2.0
"""Device times of several methods that take turns, so that whatever else happens meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["Rotation", "alternating_us", "host_us", "on_stream_us"]

Work = Callable[[], object]


class Rotation:
    """Calls with the numbers 0 to ``count - 1`` in turn: buffers change, so that no cache holds them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def __call__(self, work: Callable[[int], object]) -> Work:
        def turn() -> None:
            self._next = (self._next + 1) % self._count
            work(self._next)

        return turn


def alternating_us(methods: dict[str, Work], *, repeats: int = 16, rounds: int = 9) -> dict[str, float]:
    """Median microseconds of each, from captured graphs of ``repeats`` calls: without the host's share."""
    graphs = {}
    for name, work in methods.items():
        for _ in range(2):
            work()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(repeats):
                work()
        graphs[name].replay()
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(_events_us(graph.replay) / repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def on_stream_us(methods: dict[str, Work], *, rounds: int = 9) -> dict[str, float]:
    """Median microseconds of each on a stream of its own, with the host's share where that is longer."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    with torch.cuda.stream(torch.cuda.Stream()):
        for work in methods.values():
            work()
        torch.cuda.synchronize()
        for _ in range(rounds):
            for name, work in methods.items():
                times[name].append(_events_us(work))
    return {name: statistics.median(values) for name, values in times.items()}


def host_us(work: Work, calls: int = 500) -> float:
    """Median of five means of the host's time for one call."""
    means = []
    for _ in range(5):
        work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls // 5):
            work()
        means.append((time.perf_counter() - begin) / (calls // 5) * 1e6)
        torch.cuda.synchronize()
    return statistics.median(means)


def _events_us(work: Work) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3
