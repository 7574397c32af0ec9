# SPDX-License-Identifier: Apache-2.0
"""What transfers between window and pages cost with each mover, and which of the two to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

__all__ = ["Decision", "Mover", "MoverCosts", "TransferCosts", "decide", "fastest_us", "fit_costs"]


class Mover(Enum):
    """What moves the bytes."""

    AUTO = "auto"
    """The one that costs less, by measurement."""
    KERNEL = "kernel"
    """A kernel; it takes time of some multiprocessors, and ids may be known on the device only."""
    COPY_ENGINE = "copy_engine"
    """The device's copy engines; they take no multiprocessor, and a fixed time for each run."""


@dataclass(frozen=True)
class MoverCosts:
    """One mover in one direction: microseconds to start, and bytes a microsecond by the length of runs."""

    start_us: float
    rates: tuple[tuple[int, float], ...]
    """(bytes of a run, bytes a microsecond), by rising length."""

    def predict_us(self, nbytes: int, runs: int) -> float:
        """Time of a transfer; the rate lies on the line between the lengths that were measured."""
        run = nbytes / max(runs, 1)
        below = [point for point in self.rates if point[0] <= run]
        above = [point for point in self.rates if point[0] > run]
        if not below:
            # A shorter run takes as long as the shortest that was measured.
            rate = above[0][1] * run / above[0][0]
        elif not above:
            rate = below[-1][1]
        else:
            (low, slow), (high, fast) = below[-1], above[0]
            rate = slow + (fast - slow) * (run - low) / (high - low)
        return self.start_us + nbytes / max(rate, 1e-6)


@dataclass(frozen=True)
class TransferCosts:
    """Both movers in both directions, between a device's pages and one kind of window."""

    kernel_gather: MoverCosts
    kernel_scatter: MoverCosts
    copy_gather: MoverCosts
    copy_scatter: MoverCosts


@dataclass(frozen=True)
class Decision:
    """Which mover a transfer took, and why."""

    mover: Mover
    reason: str


def decide(costs: TransferCosts, *, gather: bool, nbytes: int, runs: int) -> Decision:
    """Choose by predicted time."""
    kernel = (costs.kernel_gather if gather else costs.kernel_scatter).predict_us(nbytes, runs)
    copies = (costs.copy_gather if gather else costs.copy_scatter).predict_us(nbytes, runs)
    mover = Mover.KERNEL if kernel <= copies else Mover.COPY_ENGINE
    return Decision(
        mover,
        f"{nbytes} bytes in {runs} runs: {kernel:.1f} us by the kernel, {copies:.1f} us by copy engines",
    )


def fastest_us(work: Callable[[], object], rounds: int = 9) -> float:
    """Shortest device time of ``work`` on the current stream, after one run that is not counted.

    What others do with the device meanwhile, as engines that start beside this one, only ever adds to it.
    """
    work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return float(min(times))


def fit_costs(time_us: Callable[[int, int], float], nbytes: int, run_sizes: Sequence[int]) -> MoverCosts:
    """Costs from some transfers of ``nbytes`` bytes; ``time_us(bytes, run_bytes)`` takes the time of one."""
    start = time_us(run_sizes[0], run_sizes[0])
    times = [(run, time_us(nbytes, run)) for run in sorted(run_sizes)]
    return MoverCosts(start, tuple((run, nbytes / max(us - start, 1e-3)) for run, us in times))
