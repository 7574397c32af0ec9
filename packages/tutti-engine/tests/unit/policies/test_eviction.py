# SPDX-License-Identifier: Apache-2.0
"""What each policy of eviction keeps of the same prompts."""

from array import array

import pytest

from tutti_engine.planning.chunk_index import ChunkIndex
from tutti_engine.planning.chunk_state import generation_of, order_of_use, states_of
from tutti_engine.policies.settings import EVICTIONS, PolicySettings
from tutti_engine.simulator.replay import Replay, replay
from tutti_engine.simulator.synthetic import make_trace
from tutti_engine.simulator.trace import unique_blocks


def store(index, *keys):
    use = index.begin(keys)
    parent = None
    for key in keys:
        if index.get(key) is None:
            entry = index.reserve(key, parent, use)
            index.commit(entry, (b"8 bytes.",))
        parent = key


def stored(index, keys):
    return {key for key in keys if index.get(key)}


def test_lru_takes_the_prompt_that_was_used_longest_ago_from_its_end():
    index = ChunkIndex(range(6), policy=EVICTIONS["lru"]())
    store(index, b"a", b"aa", b"aaa")
    store(index, b"b", b"bb", b"bbb")
    index.begin([b"a", b"aa", b"aaa"])
    index.evict(2)
    assert stored(index, [b"a", b"aa", b"aaa", b"b", b"bb", b"bbb"]) == {b"a", b"aa", b"aaa", b"b"}
    index.evict(2)
    assert stored(index, [b"a", b"aa", b"aaa"]) == {b"a", b"aa"}


def test_s3fifo_takes_what_was_used_once_before_what_was_used_twice():
    index = ChunkIndex(range(20), policy=EVICTIONS["s3fifo"]())
    store(index, b"often")
    index.begin([b"often"])
    for number in range(19):
        store(index, b"%d" % number)
    index.evict(12)
    assert index.get(b"often")


def test_s3fifo_trusts_a_chunk_that_came_back_soon():
    index = ChunkIndex(range(20), policy=EVICTIONS["s3fifo"]())
    for number in range(20):
        store(index, b"%d" % number)
    index.evict(1)
    index.give_back([entry.chunk_id for entry in index.take_leaving()])
    store(index, b"0")  # the oldest, which was just thrown out
    index.evict(17)
    assert index.get(b"0")


@pytest.mark.parametrize("policy", EVICTIONS)
def test_what_was_stored_before_goes_in_order_of_use(policy):
    from tutti_engine.catalogue.checksum_table import ChecksumTable

    index = ChunkIndex(range(4), policy=EVICTIONS[policy]())
    keys = [b"old", b"mid", b"new"]
    slots, tenants = [2, 0, 3], array("H", bytes(6))
    index.restore(keys, slots, [10, 20, 30], bytes(3), tenants, slots, ChecksumTable(4, 1, 8))
    assert index.free == 1 and index.lookup_prefix([b"new"]) == 1
    index.evict(1)
    index.evict(1)
    assert [entry.key for entry in index.take_leaving()] == [b"old", b"mid"]
    store(index, b"x")
    assert index.get(b"x")


@pytest.mark.parametrize("first_use", [1_700_000_000, 0], ids=["exact", "far apart"])
def test_the_order_of_use_is_by_time_and_then_the_later_stored_first(first_use):
    used = array("q", [first_use, 1_700_000_009, 1_700_000_002, 1_700_000_002, 1_700_000_009])
    generations = array("q", [generation_of(n, 3, 4) for n in (2**30, 1, 2, 3, 4)])
    assert order_of_use(used, generations) == [0, 3, 2, 4, 1]


def test_marks_and_tenants_come_out_of_generations():
    generations = array("q", [generation_of(2**37, 255, 65535), generation_of(1, 2, 258)])
    assert states_of(generations) == (bytes((255, 2)), array("H", (65535, 258)))


@pytest.mark.parametrize("kind", ["chat", "documents", "scans"])
def test_the_default_hits_more_than_lru_where_room_is_scarce(kind):
    requests = make_trace(kind, 1500, seed=11)
    capacity = unique_blocks(requests) // 20
    rates = {
        name: replay(requests, Replay(capacity, PolicySettings(eviction=name))).block_hit_rate
        for name in ("lru", PolicySettings().eviction)
    }
    assert rates[PolicySettings().eviction] > 1.05 * rates["lru"]


def test_the_default_writes_less_where_nothing_stays_long_enough():
    requests = make_trace("scans", 1500, seed=12)
    capacity = unique_blocks(requests) // 50
    default, lru = (
        replay(requests, Replay(capacity, PolicySettings(eviction=name)))
        for name in (PolicySettings().eviction, "lru")
    )
    assert default.written_bytes < lru.written_bytes
    assert default.block_hit_rate > lru.block_hit_rate
