# SPDX-License-Identifier: Apache-2.0
"""The cost model that chooses between kernel and copy engines."""

from __future__ import annotations

import pytest

from tutti_kv_kernels.costs import Mover, MoverCosts, TransferCosts, decide, fit_costs

KERNEL = MoverCosts(start_us=5, rates=((4096, 50_000), (65536, 50_000)))
COPIES = MoverCosts(start_us=10, rates=((4096, 5_000), (16384, 20_000), (65536, 54_000)))
COSTS = TransferCosts(KERNEL, KERNEL, COPIES, COPIES)


@pytest.mark.parametrize("gather", [True, False])
def test_short_runs_are_the_kernel_s_and_long_ones_the_copy_engines(gather: bool) -> None:
    nbytes = 64 << 20
    chosen = [
        decide(COSTS, gather=gather, nbytes=nbytes, runs=nbytes // run).mover for run in (4096, 16384, 65536)
    ]
    assert chosen == [Mover.KERNEL, Mover.KERNEL, Mover.COPY_ENGINE]


def test_the_reason_names_both_times() -> None:
    decision = decide(COSTS, gather=True, nbytes=1_080_000, runs=1)
    assert decision.reason == "1080000 bytes in 1 runs: 26.6 us by the kernel, 30.0 us by copy engines"


def test_a_rate_between_two_lengths_lies_between_their_rates() -> None:
    nbytes = 64 << 20
    times = [COPIES.predict_us(nbytes, nbytes // run) for run in (16384, 32768, 65536)]
    assert times == sorted(times, reverse=True)
    assert times[1] < (times[0] + times[2]) / 2


def test_runs_shorter_than_any_that_was_measured_cost_as_much_each() -> None:
    short, shortest = (COPIES.predict_us(1000 * run, 1000) for run in (512, 4096))
    assert short == pytest.approx(shortest)


@pytest.mark.parametrize("costs", [KERNEL, COPIES])
def test_a_fit_finds_the_costs_that_times_were_made_of(costs: MoverCosts) -> None:
    sizes = [run for run, _ in costs.rates]
    nbytes = 1 << 30
    fitted = fit_costs(lambda size, run: costs.predict_us(size, size // run), nbytes, sizes)
    for run in sizes:
        times = [c.predict_us(nbytes, nbytes // run) for c in (fitted, costs)]
        assert times[0] == pytest.approx(times[1], rel=0.01)
