# SPDX-License-Identifier: Apache-2.0
"""The planner under its policies: who gets in, who goes, what comes through a restart."""

import pytest

from tutti_engine import Geometry, LoadResult, PolicySettings, StoreResult
from tutti_engine.planning.planner import Planner

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
SUM = b"s" * 16


class Clock:
    def __init__(self, now=1_000_000):
        self.now = now

    def __call__(self):
        return self.now


class Journal:
    def __init__(self):
        self.rows = {}
        self.touched = []

    def put(self, record):
        self.rows[record.slot] = record

    def remove(self, slots, on_durable, *, suspect=False):
        for slot in slots:
            self.rows.pop(slot, None)
        on_durable(slots)

    def touch(self, keys):
        self.touched.append(list(keys))

    def add(self, name, delta):
        pass


def planner(places=8, clock=None, journal=None, records=(), **settings):
    return Planner(
        GEOMETRY,
        range(places),
        policies=PolicySettings(**settings),
        clock=clock or Clock(),
        journal=journal,
        records=records,
    )


def serve(planner, *keys, tenant=None):
    """Serve one prompt; return how many of its chunks were hits."""
    hits = planner.lookup_prefix(keys)
    use = planner.note_prompt(keys, tenant)
    if hits:
        plan = planner.plan_load([(key, ((0, 1),)) for key in keys[:hits]], use)
        planner.complete_load(LoadResult(plan.plan_id))
    plan = planner.plan_store([(key, ((0, 1),)) for key in keys[hits:]], [keys], [use])
    if plan is not None:
        planner.complete_store(0, StoreResult(plan.plan_id, (SUM,) * len(plan.transfers)))
    return hits


def test_a_chunk_is_not_stored_without_the_one_before_it():
    planning = planner()
    prefix = [b"a", b"b", b"c"]
    use = planning.note_prompt(prefix)
    assert planning.plan_store([(b"b", ((0, 1),)), (b"c", ((2, 3),))], [prefix], [use]) is None
    assert planning.counters["refused_chunks"] == 2


def test_storing_does_not_evict_what_the_new_chunks_go_on_from():
    planning = planner(places=3, eviction="lru")
    serve(planning, b"a", b"b", b"c")
    serve(planning, b"a", b"b", b"c", b"d", b"e")
    assert planning.lookup_prefix([b"a", b"b", b"c"]) == 3
    assert planning.counters["evicted_chunks"] == 0


def test_second_sight_stores_a_prompt_that_comes_again():
    planning = planner(admission="second_sight")
    serve(planning, b"a", b"b")
    assert planning.resident_chunks == 0
    serve(planning, b"a", b"b")
    assert serve(planning, b"a", b"b") == 2
    assert planning.counters["refused_chunks"] == 2


def test_a_seen_prefix_is_stored_and_its_new_end_is_not():
    planning = planner(admission="second_sight")
    serve(planning, b"a", b"b")
    serve(planning, b"a", b"x")
    assert planning.lookup_prefix([b"a"]) == 1 and not planning.is_known(b"x")


def test_the_write_budget_ends_stores_and_fills_again():
    clock = Clock()
    chunk = GEOMETRY.chunk_bytes
    planning = planner(clock=clock, daily_write_bytes=8 * chunk)
    serve(planning, b"a", b"b", b"c", b"d")
    assert planning.resident_chunks == 2, "a quarter of the day's budget at once"
    assert planning.counters["over_budget_chunks"] == 2
    clock.now += 86_400 // 6
    serve(planning, b"a", b"b", b"c", b"d")
    assert planning.resident_chunks == 3


def test_a_restart_does_not_fill_the_write_budget():
    journal = Journal()
    serve(planner(journal=journal), b"a")
    planning = planner(journal=journal, records=list(journal.rows.values()), daily_write_bytes=8 * 16384 * 4)
    serve(planning, *(bytes([n]) for n in range(64)))
    assert planning.counters["over_budget_chunks"] > 0


def test_a_tenant_stays_within_its_quota_at_its_own_cost():
    planning = planner(places=8, tenant_quota=0.25, eviction="lru")
    serve(planning, b"x", b"y", tenant="quiet")
    for number in range(6):
        serve(planning, b"%d" % number, tenant="loud")
    assert planning.lookup_prefix([b"x", b"y"]) == 2
    assert planning.resident_chunks == 4
    assert planning.lookup_prefix([b"5"]) == planning.lookup_prefix([b"4"]) == 1
    serve(planning, *(b"long%d" % n for n in range(5)), tenant="loud")
    assert planning.counters["over_quota_chunks"] == 3


def test_a_quota_holds_over_a_restart():
    journal = Journal()
    serve(planner(journal=journal), b"a", b"b", tenant="loud")
    planning = planner(places=8, records=list(journal.rows.values()), tenant_quota=0.25)
    serve(planning, b"c", tenant="loud")
    assert planning.resident_chunks == 2


def test_ends_leave_before_starts_after_a_restart_too():
    journal, clock = Journal(), Clock()
    before = planner(places=8, journal=journal, clock=clock)
    serve(before, b"a", b"b")
    clock.now += 100
    serve(before, b"x")
    clock.now += 100
    serve(before, b"a", b"b", b"c", b"d")
    # What the catalogue makes of touches: the last use of all that was touched.
    rows = [
        row._replace(last_used=clock.now) if row.key in (b"a", b"b") else row for row in journal.rows.values()
    ]
    after = planner(places=8, records=rows, clock=clock)
    gone = []
    for _ in range(5):
        after._index.evict(1)
        gone += [k for k in (b"a", b"b", b"c", b"d", b"x") if not after.is_known(k) and k not in gone]
    assert gone == [b"x", b"d", b"c", b"b", b"a"]


def test_a_prompt_noted_touches_its_stored_prefix_in_the_journal():
    journal = Journal()
    planning = planner(journal=journal)
    serve(planning, b"a", b"b")
    planning.note_prompt([b"a", b"b", b"c"])
    assert journal.touched[-1] == [b"a", b"b"]


def test_chunks_expire_whether_or_not_they_are_asked_for():
    clock = Clock()
    planning = planner(clock=clock, ttl_seconds=60)
    serve(planning, b"a", b"b")
    clock.now += 61
    assert planning.lookup_prefix([b"a", b"b"]) == 0
    serve(planning, b"x")
    assert planning.resident_chunks == 1
    assert planning.counters["expired_chunks"] == 2


def test_a_kept_prefix_outlives_everything_else():
    planning = planner(places=4, eviction="lru")
    planning.keep_prefix([b"a", b"b"])
    serve(planning, b"a", b"b")
    for number in range(20):
        serve(planning, b"%d" % number)
    assert planning.lookup_prefix([b"a", b"b"]) == 2
    planning.let_prefix_go([b"a", b"b"])
    for number in range(20):
        serve(planning, b"%d" % number)
    assert planning.lookup_prefix([b"a", b"b"]) == 0


def test_no_more_than_half_of_the_places_can_be_kept():
    with pytest.raises(ValueError, match="cannot keep 5 more chunks beside 0: at most 4, half of all"):
        planner(places=8).keep_prefix([b"%d" % n for n in range(5)])


def test_a_prefix_that_is_kept_again_counts_once():
    planning = planner(places=8)
    for _ in range(3):
        planning.keep_prefix([b"a", b"b", b"c"])
    with pytest.raises(ValueError, match="cannot keep 2 more chunks beside 3"):
        planning.keep_prefix([b"a", b"x", b"y"])


def test_a_damaged_chunk_s_children_are_stored_again_with_it():
    import errno

    planning = planner()
    serve(planning, b"a", b"b", b"c")
    plan = planning.plan_load([(b"b", ((0, 1),))])
    planning.complete_load(LoadResult(plan.plan_id, (0,), errno.EBADMSG, corrupt=(0,)))
    assert planning.resident_chunks == 1
    assert serve(planning, b"a", b"b", b"c") == 1
    assert planning.lookup_prefix([b"a", b"b", b"c"]) == 3
