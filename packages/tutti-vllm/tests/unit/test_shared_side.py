# SPDX-License-Identifier: Apache-2.0
"""Which hits of a shared store are worth their load: all that a request waits for counts, as with drives."""

from dataclasses import dataclass

import pytest

from tutti_engine import Geometry, LoadPlan, LoadResult, TuttiEngine
from tutti_engine.block_rows import ChunkBlocks
from tutti_engine.counters import Counters
from tutti_engine.planning.break_even import BreakEven
from tutti_engine.shared.lookup import Seen
from tutti_engine.transfers import Transfers
from tutti_vllm.scheduler_side.scheduler import SchedulerSide
from tutti_vllm.scheduler_side.shared_side import SharedSide

# Chunks of 64 tokens.
GEOMETRY = Geometry(num_layers=1, block_tokens=16, blocks_per_chunk=4, page_bytes=4096)
KEYS = [bytes([n]) for n in range(15)]


@dataclass
class Request:
    request_id: str
    num_tokens: int = 1000


class Tier:
    """Holds all chunks, and has measured 10 us a token for a load and 34 for computing."""

    geometry = GEOMETRY

    def __init__(self, ranks=1):
        self.break_even = BreakEven()
        self.counters = Counters()
        self.ranks = ranks
        self.loads = {}
        for tokens in (128, 512, 960):
            self.break_even.note_load(tokens, tokens * 10e-6)
            self.break_even.note_compute(tokens, tokens * 34e-6)

    def look(self, keys, start, stop):
        return Seen(min(stop, len(keys)) - start, True)

    def plan_load(self, chunks, prompt):
        plan = LoadPlan(-1 - len(self.loads), Transfers(chunks, chunks.keys))
        self.loads[plan.plan_id] = self.ranks
        return plan

    def complete_load(self, rank, result):
        self.loads[result.plan_id] -= 1
        return not self.loads[result.plan_id]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def load(side, clock, name, seconds, *results):
    """Have a request load all of its chunks; report each rank's result once so many seconds are over."""
    assert side.beyond(Request(name), KEYS, 0, 0) == (0, 960)
    plan = side.plan_load(name, ChunkBlocks.of([(KEYS[0], ((0, 1, 2, 3),))]), 960, KEYS)
    clock.now += seconds
    for rank, (took, failed) in enumerate(results):
        side.take(rank, LoadResult(plan.plan_id, (0,) if failed else (), seconds=took))


def test_what_a_request_waits_for_beside_the_load_counts(clock):
    """10 ms from the store, but the server takes 16 ms to look at it and 19 for the rest; 34 to compute."""
    side = SharedSide(Tier(), clock=clock)
    for _ in range(3):
        side.tier.break_even.note_rest(40, 1000, 0.019)
    for name in "abc":
        load(side, clock, name, 0.026, (0.01, False))
    assert side.beyond(Request("d"), KEYS, 0, 0) == (0, 0)
    assert "wait 16 ms, compute the rest 19 ms" in side._asked["d"].choice.why


def test_behind_a_load_from_the_drive_a_request_waits_in_any_case(clock):
    side = SharedSide(Tier(), clock=clock)
    for _ in range(3):
        side.tier.break_even.note_rest(40, 1000, 0.019)
        side.tier.break_even.note_wait(0.016)
    assert side.beyond(Request("a"), KEYS, 0, 128) == (128, 832)


def test_what_lies_before_a_hit_counts_wherever_it_comes_from(clock):
    """A few chunks take longer behind many than by themselves: 640 tokens are computed in 60 ms, not 22."""
    side = SharedSide(Tier(), clock=clock)
    for _ in range(3):
        side.tier.break_even.note_rest(640, 20000, 0.06)
    keys = [bytes([n // 256, n % 256]) for n in range(400)]
    for name, local, hit in (("a", 64 * 300, 0), ("b", 0, 64 * 300)):
        assert side.beyond(Request(name, 64 * 310 + 1), keys, local, hit)[1] == 640
        assert "compute 60 ms" in side._asked[name].choice.why or "all 60 ms" in side._asked[name].choice.why


@pytest.mark.parametrize(
    "results", [((0.01, False), (0.5, False)), ((0.5, False), (0.01, False)), ((0.01, True), (0.01, False))]
)
def test_a_slow_rank_or_one_that_failed_is_not_taken_for_the_server_s_delay(clock, results):
    side = SharedSide(Tier(ranks=2), clock=clock)
    for name in "abcdef":
        load(side, clock, name, 0.501, *results)
    assert side.tier.break_even._wait.predict(()) <= 0.0011


def test_prefills_of_a_few_tokens_teach_both_tiers(clock):
    engine = TuttiEngine(GEOMETRY, chunk_ids=range(4))
    scheduler = SchedulerSide(engine, None, hash_tokens=16)
    scheduler.use_shared(SharedSide(Tier(), clock=clock))
    for _ in range(3):
        scheduler._prefills.end(scheduler._prefills.begin(960, 1000), 1001)
    assert engine.break_even._rest.samples == scheduler.shared.tier.break_even._rest.samples == 3
