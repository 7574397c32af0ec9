# SPDX-License-Identifier: Apache-2.0
"""Two servers and one store: what one writes the other loads, verified, and whatever fails is a miss."""

import errno
import time

import pytest
from shared_rig import GEOMETRY, Clock, keys_of

from tutti_engine import CacheGroup, Geometry, LoadResult
from tutti_engine.shared import tier as shared_tier
from tutti_engine.shared.object_header import OBJECT_VERSION, ObjectNames
from tutti_engine.shared.tier import SharedTier, SharedTierSettings
from tutti_engine.testing.shared_stores import MemoryPool, MemorySharedStore

OTHER = "cd" * 16


def damage(pool, keys, at, byte=0xFF):
    for name, data in pool.objects.items():
        if any(name.endswith(key.hex()) for key in keys):
            pool.objects[name] = data[:at] + bytes([data[at] ^ byte]) + data[at + 1 :]


def test_what_one_server_wrote_another_loads(server):
    keys = keys_of(5)
    one, other = server(), server()
    assert one.store(keys).errno == 0
    assert other.look([*keys, b"never"]) == 5
    assert other.load(keys).failed == ()
    assert other.right(keys) == [True] * 5
    assert other.tier.counters["shared_load_chunks"] == 5
    assert one.tier.in_use() == other.tier.in_use() == dict.fromkeys(one.tier.in_use(), 0)


def test_another_namespace_never_hits(server):
    keys = keys_of(2)
    server().store(keys)
    assert server(digest=OTHER).look(keys) == 0


def test_an_object_in_anothers_place_does_not_verify(server, pool):
    one, other = server(), server()
    keys = keys_of(2)
    one.store(keys)
    first, second = (next(n for n in pool.objects if n.endswith(key.hex())) for key in keys)
    pool.objects[first], pool.objects[second] = pool.objects[second], pool.objects[first]
    assert other.look(keys) == 2
    result = other.load(keys)
    assert (result.failed, result.errno) == ((0, 1), errno.EBADMSG)
    assert other.right(keys) == [None, None]


@pytest.mark.parametrize("at", [0, 20, 60, 4096, 4096 + 3 * 8192 - 1])
def test_a_damaged_object_reaches_no_page_and_is_removed(server, pool, at):
    one, other = server(), server()
    keys = keys_of(3)
    one.store(keys)
    damage(pool, keys[1:2], at)
    assert other.look(keys) == 3
    result = other.load(keys)
    assert (result.failed, result.errno) == ((1,), errno.EBADMSG)
    assert other.right(keys)[::2] == [True, True]
    assert not any(map(any, [page[8192 + 0 : 8192] for page in other.pages]))
    assert other.tier.look(keys).chunks == 1
    deadline = time.monotonic() + 30
    while len(pool.objects) > 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(pool.objects) == 2


def test_an_object_of_another_version_is_a_miss_and_no_error(server, pool):
    one, other = server(), server()
    keys = keys_of(1)
    one.store(keys)
    damage(pool, keys, 8, OBJECT_VERSION ^ 9)
    assert other.look(keys) == 1
    for _ in range(5):
        result = other.load(keys)
        assert (result.failed, result.errno) == ((0,), errno.ENOENT)
    assert not other.tier.load_breaker.is_open
    assert other.look(keys) == 0
    assert len(pool.objects) == 1


def test_a_chunk_that_went_between_look_and_load_is_computed_and_not_hit_again(server, pool):
    one, other = server(), server(miss_seconds=1e6)
    keys = keys_of(3)
    one.store(keys)
    assert other.look(keys) == 3
    pool.objects.clear()
    result = other.load(keys)
    assert (result.failed, result.errno) == ((0, 1, 2), errno.ENOENT)
    assert other.look(keys) == 0
    assert other.tier.counters["shared_lost_chunks"] == 3
    assert not other.tier.load_breaker.is_open


def test_a_chunk_is_there_only_with_every_ranks_object(server, pool):
    one = server()
    keys = keys_of(2)
    one.store(keys)
    two_ranks = server()
    two_ranks.tier.lookup._objects = [(0, 0), (1, 0)]
    assert two_ranks.look(keys) == 0


def test_reads_that_fail_open_the_breaker_and_heal(server):
    clock = Clock()
    one, other = server(), server(clock=clock, hit_seconds=1e9)
    keys = keys_of(2)
    one.store(keys)
    assert other.look(keys) == 2
    other.faults.error = errno.EIO
    for _ in range(3):
        assert other.load(keys).errno == errno.EIO
    assert other.tier.load_breaker.is_open
    assert other.tier.look(keys) == other.tier.look(keys).__class__(0, True)
    assert "loads failed" in other.tier.degraded()
    other.faults.error = 0
    clock.now += 100
    assert other.look(keys) == 2
    assert other.load(keys).failed == ()
    assert other.tier.degraded() is None


def test_a_read_that_hangs_fails_in_time_and_its_slots_are_not_used_again(server):
    one, other = server(), server(io_timeout=0.2)
    keys = keys_of(2)
    one.store(keys)
    assert other.look(keys) == 2
    other.faults.running.clear()
    result = other.load(keys)
    assert (result.failed, result.errno) == ((0, 1), errno.ETIMEDOUT)
    assert other.executor.in_use()["load_slots"] == 6
    other.faults.running.set()
    assert other.executor._backend.wait_idle(time.monotonic() + 30)
    assert other.right(keys) == [None, None]


def test_a_full_store_costs_the_write_alone(server, pool):
    pool.capacity_bytes = 0
    one = server()
    for _ in range(3):
        assert one.store(keys_of(1)).errno == errno.ENOSPC
    assert one.tier.store_breaker.is_open
    assert one.tier.wants(keys_of(1)) == []
    assert one.tier.in_use() == dict.fromkeys(one.tier.in_use(), 0)


@pytest.mark.parametrize(("write", "prompts"), [("always", 0), ("second_sight", 2), ("hot", 4)])
def test_chunks_are_written_once_they_were_seen_often_enough(server, write, prompts):
    one = server(write=write)
    keys = keys_of(3)
    for _ in range(prompts):
        assert one.tier.wants(keys) == []
        one.tier.note_prompt(keys)
    assert one.tier.wants(keys) == [0, 1, 2]
    one.store(keys)
    assert one.tier.wants(keys) == []


def test_who_notes_a_prompt_learns_how_much_of_it_can_be_worth_a_write(server):
    one, never, always = server(write="second_sight"), server(write="never"), server(write="always")
    keys = keys_of(9)
    assert one.tier.note_prompt(keys[:6]) == 0
    assert one.tier.note_prompt(keys) == 6, "what both begin with"
    assert one.tier.note_prompt([*keys[:3], b"another"]) == 3
    assert one.tier.note_prompt(keys) == 9
    assert one.tier.wants(keys) == [*range(9)]
    assert never.tier.note_prompt(keys) == 0
    assert always.tier.note_prompt(keys) > 1 << 30, "and what is answered"


def test_never_writes_nothing_and_still_loads(server):
    keys = keys_of(1)
    server().store(keys)
    one = server(write="never")
    one.tier.note_prompt(keys)
    one.tier.note_prompt(keys)
    assert one.tier.wants(keys_of(1, 7)) == []
    assert one.look(keys) == 1


def test_what_was_seen_there_is_not_written(server):
    keys = keys_of(2)
    server().store(keys)
    one = server()
    assert one.tier.wants(keys) == [0, 1]
    assert one.look(keys) == 2
    assert one.tier.wants(keys) == []


def test_no_more_is_under_way_than_is_allowed(server):
    one = server()
    one.tier.settings = SharedTierSettings(write="always", max_writing_bytes=2 * GEOMETRY.chunk_bytes)
    plan = one.tier.plan_store([(key, ((2 * n, 2 * n + 1),)) for n, key in enumerate(keys_of(3))])
    assert len(plan.transfers) == 2
    assert one.tier.plan_store([(b"more", ((6, 7),))]) is None
    assert one.tier.counters["shared_dropped_chunks"] == 2
    one.executor.store(plan)
    one.tier.complete_store(0, *one.results())
    assert one.tier.writing_bytes == 0


def test_a_chunk_is_under_way_once(server):
    """Two requests of one step end the same chunk, and another step ends it again."""
    one = server()
    one.tier.settings = SharedTierSettings(write="always")
    first, second, third = ((key, ((2 * n, 2 * n + 1),)) for n, key in enumerate(keys_of(3)))
    again = first[0], ((8, 9),)
    plan = one.tier.plan_store([first, again, second])
    assert list(plan.transfers.chunks) == [first, second]
    assert list(one.tier.plan_store([first, third, again]).transfers.chunks) == [third]
    assert one.tier.plan_store([second, third]) is None
    assert one.tier.counters["shared_dropped_chunks"] == 0


def test_every_rank_has_to_write_its_part(server):
    one = server()
    one.tier._ranks = 2
    keys = keys_of(2)
    one.fill(keys)
    plan = one.tier.plan_store([(key, ((2 * n, 2 * n + 1),)) for n, key in enumerate(keys)])
    one.executor.store(plan)
    (result,) = one.results()
    assert not one.tier.complete_store(0, result)
    assert not one.tier.complete_store(0, result)
    assert not one.tier.lookup.is_there(keys[0])
    broken = type(result)(result.plan_id, (result.checksums[0], None), errno=errno.EIO)
    assert one.tier.complete_store(1, broken)
    assert [one.tier.lookup.is_there(key) for key in keys] == [True, False]


def test_a_retired_tier_is_not_asked_again(server):
    keys = keys_of(1)
    one = server()
    one.store(keys)
    one.tier.retire("the weights have changed")
    assert one.look(keys) == 0
    assert one.tier.wants(keys_of(3)) == []
    assert "weights" in one.tier.degraded()


def test_a_late_load_counts_as_a_slow_one(server):
    one, other = server(), server(io_timeout=0.05)
    keys = keys_of(1)
    one.store(keys)
    other.faults.running.clear()
    other.load(keys)
    assert other.tier.break_even._load.samples == 1


def test_a_store_that_says_done_and_brings_nothing_is_not_believed(server, pool, monkeypatch):
    one, other = server(), server()
    keys = keys_of(2)
    one.store(keys)
    assert other.look(keys) == 2
    assert other.load(keys).failed == ()
    # What the first load has left in the slots and the headers would verify.
    monkeypatch.setattr(other.executor._backend._store, "get", lambda names, pieces: [0] * len(names))
    result = other.load(keys)
    assert (result.failed, result.errno) == ((0, 1), errno.EBADMSG)
    assert other.right(keys) == [None, None]


def test_what_was_loaded_is_not_written_back_and_what_was_lost_is(server, pool):
    clock = Clock()
    one, other = server(), server(clock=clock, write="second_sight")
    keys = keys_of(6)
    one.store(keys)
    for _ in range(2):
        other.tier.note_prompt(keys)
    assert other.look(keys) == 6
    assert other.load(keys).failed == ()
    clock.now += 100
    other.tier.lookup.forget()
    assert other.tier.wants(keys) == []
    other.tier.note_prompt([*keys, b"a later turn"])
    other.tier.note_prompt([*keys, b"a later turn"])
    assert other.tier.wants([*keys, b"a later turn"]) == [6]
    damage(pool, keys[3:4], 5000)
    assert other.look(keys) == 6
    assert other.load(keys).failed == (3,)
    assert other.tier.wants(keys) == [3]
    clock.now += 1000
    other.tier.lookup.forget()
    assert other.tier.wants(keys, start=2) == [2, 3, 4, 5]


def test_one_rank_that_reports_twice_does_not_speak_for_another(server):
    one, other = server(), server()
    keys = keys_of(2)
    one.store(keys)
    assert other.look(keys) == 2
    other.tier._load_ranks = 2
    plan = other.tier.plan_load([(key, ((2 * n, 2 * n + 1),)) for n, key in enumerate(keys)])
    other.executor.load(plan)
    (result,) = other.results()
    assert not other.tier.complete_load(0, result)
    assert not other.tier.complete_load(0, result)
    assert other.tier.pending_loads == 1
    assert other.tier.counters["shared_read_bytes"] == result.bytes_read
    assert other.tier.complete_load(1, result)
    assert other.tier.pending_loads == 0


def test_a_load_takes_as_long_as_its_slowest_rank(server):
    one, chunk = server(), GEOMETRY.chunk_tokens
    one.tier._load_ranks = 2
    for slow in (0, 1, 0, 1):
        plan = one.tier.plan_load([(keys_of(1)[0], ((0, 1),))])
        for rank in range(2):
            one.tier.complete_load(rank, LoadResult(plan.plan_id, seconds=1.0 if rank == slow else 0.1))
    assert one.tier.break_even.load_seconds(chunk) == pytest.approx(1.0)
    for _ in range(5):
        plan = one.tier.plan_load([(keys_of(1)[0], ((0, 1),))])
        one.tier.complete_load(0, LoadResult(plan.plan_id, seconds=0.001))
        one.tier.complete_load(1, LoadResult(plan.plan_id, (0,), errno.EIO))
    assert one.tier.break_even.load_seconds(chunk) == pytest.approx(1.0), "one that failed says nothing"


@pytest.mark.parametrize("write", ["always", "second_sight"])
def test_only_what_was_asked_about_is_wanted(server, write):
    one = server(write=write)
    keys = keys_of(9)
    for _ in range(2):
        one.tier.note_prompt(keys[:6])
    assert one.tier.wants(keys, start=2, stop=4) == [2, 3]
    assert one.tier.wants(keys, start=5, stop=8) == ([5, 6, 7] if write == "always" else [5])
    assert one.tier.wants(keys, start=4, stop=4) == []


def test_a_load_of_the_end_of_a_prompt_speaks_for_its_own_chunks_alone(server, pool):
    clock = Clock()
    one, other = server(), server(clock=clock, write="second_sight")
    keys = keys_of(6)
    one.store(keys)
    for _ in range(2):
        other.tier.note_prompt(keys)

    def load(wanted):
        plan = other.tier.plan_load([(key, ((2 * n, 2 * n + 1),)) for n, key in enumerate(wanted)], keys)
        other.executor.load(plan)
        (result,) = other.results()
        assert other.tier.complete_load(0, result)
        other.tier.lookup.forget()
        return result.failed

    assert load(keys[4:]) == ()
    assert other.tier.wants(keys) == [0, 1, 2, 3]
    assert load(keys) == ()
    damage(pool, keys[5:], 5000)
    assert load(keys[4:]) == (1,)
    assert other.tier.wants(keys) == [5], "what lies before it is held as ever"


def test_a_chunk_that_was_written_and_lost_is_written_again_and_memory_is_bounded(server, pool, monkeypatch):
    monkeypatch.setattr(shared_tier, "REMEMBERED", 4)
    one = server()
    keys = keys_of(6)
    one.store(keys)
    assert len(one.tier._written) == 4
    damage(pool, keys[5:], 5000)
    assert one.load(keys[4:]).failed == (1,)
    one.tier.lookup.forget()
    assert 5 in one.tier.wants(keys) and 4 not in one.tier.wants(keys)


def test_a_part_of_a_prompt_ends_where_its_window_is_there():
    full, window = CacheGroup((0, 1), 16, 4096), CacheGroup((2,), 16, 4096, window=20)
    geometry = Geometry(
        num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=4096, groups=(full, window)
    )
    pool, keys = MemoryPool(), keys_of(4)
    tier = SharedTier(geometry, MemorySharedStore(pool), "ab" * 16)
    try:
        for key, groups in zip(keys, ((0, 1), (0, 1), (0,))):
            for group in groups:
                pool.objects[ObjectNames("ab" * 16).name(0, group, key)] = b""
        for start, hit in ((0, 2), (1, 1), (2, 0)):
            deadline = time.monotonic() + 30
            while not (seen := tier.look(keys, start)).decided:
                assert time.monotonic() < deadline
            assert seen.chunks == hit, start
    finally:
        tier.close()
