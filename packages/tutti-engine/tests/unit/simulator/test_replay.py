# SPDX-License-Identifier: Apache-2.0
"""Replays against plain models of the same store."""

import itertools
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti_engine.policies.settings import EVICTIONS, PolicySettings
from tutti_engine.simulator.clairvoyant import clairvoyant_hits
from tutti_engine.simulator.replay import Replay, replay
from tutti_engine.simulator.synthetic import make_trace
from tutti_engine.simulator.trace import Request, unique_blocks


def plain_lru(requests, capacity):
    """The blocks that an LRU over blocks hits, a prompt's last block being its oldest."""
    stored, hits = OrderedDict(), 0
    for request in requests:
        keys = request.blocks[: request.prompt_tokens // 512]
        found = list(itertools.takewhile(stored.__contains__, keys))
        hits += len(found)
        for key in found[::-1]:
            stored.move_to_end(key)
        new = keys[len(found) :]
        # A prompt does not push out its own beginning.
        room = capacity - len(found)
        for _ in range(len(stored) + min(len(new), room) - capacity):
            stored.popitem(last=False)
        for key in new[:room]:
            stored[key] = None
        for key in keys[::-1]:
            if key in stored:
                stored.move_to_end(key)
    return hits


@pytest.mark.parametrize("share", [50, 10, 3])
@pytest.mark.parametrize("kind", ["chat", "agents", "documents"])
def test_lru_hits_what_a_plain_lru_hits(kind, share):
    requests = make_trace(kind, 400, seed=3)
    capacity = unique_blocks(requests) // share
    outcome = replay(requests, Replay(capacity, PolicySettings(eviction="lru")))
    assert outcome.hit_blocks == pytest.approx(plain_lru(requests, capacity), rel=0.01, abs=5)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_with_room_for_all_every_repeated_block_is_a_hit_and_every_block_is_written_once(policy):
    requests = make_trace("documents", 300, seed=4)
    outcome = replay(requests, Replay(unique_blocks(requests), PolicySettings(eviction=policy)))
    whole = [r.blocks[: r.prompt_tokens // 512] for r in requests]
    assert outcome.hit_blocks == sum(map(len, whole)) - outcome.distinct
    assert outcome.stored == outcome.distinct and outcome.write_amplification == 1
    assert outcome.evicted == outcome.refused == 0
    assert outcome.read_bytes == outcome.hit_blocks * outcome.chunk_bytes
    assert outcome.written_bytes == outcome.stored * outcome.chunk_bytes


@pytest.mark.parametrize("policy", EVICTIONS)
def test_nobody_beats_who_knows_the_future(policy):
    for kind in ("chat", "documents"):
        requests = make_trace(kind, 400, seed=8)
        capacity = unique_blocks(requests) // 20
        outcome = replay(requests, Replay(capacity, PolicySettings(eviction=policy)))
        assert outcome.hit_blocks <= clairvoyant_hits(requests, capacity, whole_only=512)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=7), st.integers(1, 3)
)
def test_the_bound_is_what_the_best_of_all_choices_hits(prompts, capacity):
    # A block is named by its whole prefix.
    paths = [tuple(tuple(prompt[: n + 1]) for n in range(len(prompt))) for prompt in prompts]
    names = {block: number for number, block in enumerate({block for path in paths for block in path})}
    requests = [
        Request(float(n), 512 * len(path), 0, tuple(names[block] for block in path))
        for n, path in enumerate(paths)
    ]

    def best(number, stored):
        if number == len(requests):
            return 0
        path = requests[number].blocks
        hits = len(list(itertools.takewhile(stored.__contains__, path)))
        may_stay = stored | set(path)
        choices = itertools.combinations(sorted(may_stay), min(capacity, len(may_stay)))
        return hits + max(best(number + 1, frozenset(choice)) for choice in choices)

    assert clairvoyant_hits(requests, capacity, whole_only=512) == best(0, frozenset())


def test_progress_reaches_the_number_of_requests():
    requests = make_trace("chat", 150)
    seen = []
    replay(requests, Replay(100), seen.append)
    assert sum(seen) == len(requests)


def test_memory_is_measured_when_asked_for():
    requests = make_trace("chat", 60)
    assert replay(requests, Replay(100)).memory_bytes is None
    memory = replay(requests, Replay(100, trace_memory=True)).memory_bytes
    assert memory is not None and memory > 1000
