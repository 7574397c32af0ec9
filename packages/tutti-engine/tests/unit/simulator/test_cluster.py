# SPDX-License-Identifier: Apache-2.0
"""Several servers with a store behind them, against what must add up."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tutti_engine.simulator.cluster import Cluster, replay_cluster
from tutti_engine.simulator.copies import common_blocks, copies_of
from tutti_engine.simulator.replay import Replay, replay
from tutti_engine.simulator.synthetic import make_trace
from tutti_engine.simulator.trace import Request, unique_blocks, write_trace

STUDY = Path(__file__).parents[3] / "benchmarks" / "cluster_study.py"


@pytest.fixture(scope="module")
def trace():
    return make_trace("chat", 400, seed=5)


def test_one_server_without_a_shared_store_is_the_plain_replay(trace):
    capacity = unique_blocks(trace) // 10
    alone = replay(trace, Replay(capacity))
    outcome = replay_cluster(trace, Cluster(1, capacity, 0))
    assert (outcome.local_hits, outcome.drive_writes) == (alone.hit_blocks, alone.stored)
    assert outcome.hit_share == alone.block_hit_rate
    assert outcome.shared_hits == outcome.shared_puts == outcome.master_requests == 0


def test_with_room_for_all_it_does_not_matter_which_server_a_request_goes_to(trace):
    """What any server has computed is then a hit on all."""
    room = unique_blocks(trace)
    one = replay_cluster(trace, Cluster(1, room, 0))
    many = replay_cluster(trace, Cluster(8, room, room, routing="random", shared_write="always"))
    assert many.local_hits + many.shared_hits == one.local_hits
    assert many.shared_hits > 0
    assert many.shared_puts == one.drive_writes, "each chunk is written through once"


def test_without_a_shared_store_prefix_routing_hits_more_than_random_routing(trace):
    room = unique_blocks(trace)
    by_prefix, at_random = (
        replay_cluster(trace, Cluster(8, room, 0, routing=name)) for name in ("prefix", "random")
    )
    assert by_prefix.hit_share > at_random.hit_share
    assert by_prefix.drive_writes < at_random.drive_writes


def test_second_sight_writes_only_what_came_again(trace):
    room = unique_blocks(trace)
    how = Cluster(4, room, room, routing="random")
    second = replay_cluster(trace, how)
    always = replay_cluster(trace, replace(how, shared_write="always"))
    never = replay_cluster(trace, replace(how, shared_write="never"))
    assert 0 < second.shared_puts < always.shared_puts
    assert 0 < second.shared_hits < always.shared_hits
    assert never.shared_puts == never.shared_hits == 0
    once = [Request(float(n), 1024, 1, (2 * n, 2 * n + 1)) for n in range(50)]
    assert replay_cluster(once, how).shared_puts == 0


def test_a_full_shared_store_forgets_what_was_not_asked_for_longest():
    def ask(block):
        return Request(float(ask.time), 512, 1, (block,))

    ask.time = 0
    # One place on each server's drives, so that all hits of other blocks come from the shared store of two.
    how = Cluster(1, 1, 2, shared_write="always")
    outcome = replay_cluster([ask(b) for b in (1, 2, 1, 3, 1, 2)], how)
    # 1 and 2 are shared; 1 is hit; 3 pushes 2 out; 1 is hit; 2 is a miss.
    assert (outcome.shared_hits, outcome.local_hits) == (2, 0)


def test_requests_to_the_master_are_counted_by_batch_and_rank():
    prompt = Request(0.0, 5 * 512, 1, tuple(range(5)))
    how = Cluster(1, 10, 10, shared_write="always", ranks=2, batch_objects=4)
    outcome = replay_cluster([prompt], how)
    # Two batches of existence, two of puts that begin and end; twice, once a rank.
    assert (outcome.master_requests, outcome.master_keys) == (2 * (2 + 4), 2 * (5 + 10))
    assert outcome.network_bytes == 5 * outcome.chunk_bytes


def test_copies_share_what_belongs_to_everybody_and_nothing_else():
    requests = [Request(float(n), 1024, 1, (0, n // 2 + 1)) for n in range(200)]
    assert common_blocks(requests) == {0}
    many = list(copies_of(requests, 3))
    assert [r.seconds for r in many] == sorted(r.seconds for r in many)
    assert len(many) == 3 * len(requests)
    assert unique_blocks(many) == 3 * (unique_blocks(requests) - 1) + 1
    assert list(copies_of(requests, 3)) == many
    # Who was alike before is alike still.
    assert replay(many, Replay(10_000)).hit_blocks == 3 * replay(requests, Replay(10_000)).hit_blocks + 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"servers": 0}, "servers must be at least 1, not 0"),
        ({"shared_chunks": -1}, "shared_chunks must be at least 0"),
        ({"routing": "nearest"}, "routing must be one of prefix, random"),
        ({"shared_write": "maybe"}, "shared_write must be one of"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Cluster(**{"servers": 1, "local_chunks": 1, "shared_chunks": 0} | wrong)


def test_the_study_runs_on_a_short_trace(tmp_path, trace):
    write_trace(tmp_path / "trace.jsonl", trace[:60])
    command = [sys.executable, STUDY, tmp_path / "trace.jsonl", "--load", "2", "--json", tmp_path / "s.json"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.count("| 2x |") == 10
    again = [sys.executable, STUDY, "-", "--from-json", tmp_path / "s.json"]
    shown = subprocess.run([*map(str, again)], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout == done.stdout
