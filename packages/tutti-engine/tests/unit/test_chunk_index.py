# SPDX-License-Identifier: Apache-2.0
"""The index against a plain model of what it promises, under every policy."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tutti_engine.planning.chunk_index import ChunkIndex, Entry
from tutti_engine.policies.settings import EVICTIONS

KEYS = [bytes([n]) for n in range(12)]
keys = st.sampled_from(KEYS)


def store(index: ChunkIndex, key: bytes, parent: bytes | None = None) -> Entry:
    entry = index.reserve(key, parent)
    assert entry is not None
    assert index.commit(entry, (b"8 bytes.",))
    return entry


def left(index: ChunkIndex) -> list[bytes]:
    return [entry.key for entry in index.take_leaving()]


def test_a_pending_store_is_no_hit():
    index = ChunkIndex(range(2))
    entry = index.reserve(b"a")
    assert b"a" in index and index.lookup_prefix([b"a"]) == 0
    index.commit(entry, ())
    assert index.lookup_prefix([b"a", b"b"]) == 1


def test_lookup_stops_at_the_first_hole():
    index = ChunkIndex(range(3))
    for key in (b"a", b"c"):
        store(index, key)
    assert index.lookup_prefix([b"a", b"b", b"c"]) == 1


def test_tails_leave_before_heads():
    index = ChunkIndex(range(3))
    for key in (b"a", b"b", b"c"):
        store(index, key)
    index.touch([b"a", b"b", b"c"])
    index.evict(1)
    assert left(index) == [b"c"]
    index.evict(1)
    assert left(index) == [b"b"]


@pytest.mark.parametrize("policy", EVICTIONS)
def test_no_chunk_stays_without_the_one_that_it_goes_on_from(policy):
    index = ChunkIndex(range(4), policy=EVICTIONS[policy]())
    for key, parent in ((b"a", None), (b"b", b"a"), (b"c", b"b"), (b"d", b"b")):
        store(index, key, parent)
    index.touch([b"c"])
    for _ in range(4):
        index.evict(1)
        stored = [key for key in (b"a", b"b", b"c", b"d") if index.get(key)]
        assert index.lookup_prefix(stored[:2]) == len(stored[:2]), "a head left before its tail"
        assert not stored or stored[0] == b"a"
    assert len(index) == 0


def test_a_damaged_chunk_takes_along_what_goes_on_from_it():
    index = ChunkIndex(range(5))
    entries = {key: store(index, key, parent) for key, parent in ((b"a", None), (b"b", b"a"), (b"c", b"b"))}
    store(index, b"x")
    pending = index.reserve(b"d", b"c")
    assert index.drop(entries[b"b"]) == 2
    assert sorted(left(index)) == [b"b", b"c"]
    assert index.lookup_prefix([b"a"]) == index.lookup_prefix([b"x"]) == 1
    assert not index.commit(pending, (b"8 bytes.",)), "what it goes on from is gone"


def test_a_new_chunk_cannot_go_on_from_one_that_is_gone():
    with pytest.raises(ValueError, match="62 cannot be kept without 61, which is gone"):
        ChunkIndex(range(2)).reserve(b"b", b"a")


def test_the_checksums_of_a_chunk_are_those_of_its_last_filling():
    index = ChunkIndex(range(1))
    store(index, b"a")
    index.evict(1)
    index.give_back([entry.chunk_id for entry in index.take_leaving()])
    entry = index.reserve(b"b")
    index.commit(entry, (b"other 8.",))
    assert index.checksums(entry) == (b"other 8.",)


def test_places_may_have_any_names():
    index = ChunkIndex(["near", "far"])
    assert {store(index, b"a").chunk_id, store(index, b"b").chunk_id} == {"near", "far"}
    index.evict(1)
    index.give_back([entry.chunk_id for entry in index.take_leaving()])
    assert index.free == 1


def test_an_old_entry_does_not_speak_for_the_place_s_next_chunk():
    index = ChunkIndex(range(1))
    old = store(index, b"a")
    index.evict(1)
    index.give_back([entry.chunk_id for entry in index.take_leaving()])
    new = store(index, b"a")
    assert not index.holds(old) and index.holds(new)
    assert index.drop(old) == 0
    assert index.lookup_prefix([b"a"]) == 1


def test_a_pinned_chunk_keeps_its_place_until_the_last_reader_is_gone():
    index = ChunkIndex(range(1))
    entry = store(index, b"a")
    index.pin(entry)
    index.pin(entry)
    assert index.evict(1) == 0
    index.drop(entry)
    assert index.lookup_prefix([b"a"]) == 0
    assert index.take_leaving() == []
    index.unpin(entry)
    assert index.take_leaving() == []
    index.unpin(entry)
    assert index.take_leaving() == [entry]


class Clock:
    def __init__(self, now=1000):
        self.now = now

    def __call__(self):
        return self.now


def test_a_chunk_that_is_too_old_is_no_hit_and_goes():
    clock = Clock()
    index = ChunkIndex(range(4), ttl_seconds=60, clock=clock)
    store(index, b"a")
    store(index, b"b", b"a")
    clock.now += 40
    index.begin([b"a"])
    clock.now += 40
    assert index.lookup_prefix([b"a", b"b"]) == 1
    assert index.expire() == 1
    assert left(index) == [b"b"]
    clock.now += 40
    assert index.lookup_prefix([b"a"]) == 0
    assert index.expire() == 1
    assert len(index) == 0


def test_a_chunk_stored_late_is_as_old_as_the_prompt_that_it_belongs_to():
    clock = Clock()
    index = ChunkIndex(range(4), ttl_seconds=60, clock=clock)
    store(index, b"a")
    clock.now += 50
    store(index, b"b", b"a")
    clock.now += 20
    assert index.lookup_prefix([b"a", b"b"]) == 0, "its start is too old"


@pytest.mark.parametrize("now", [-5, 0, 10, 2**40])
def test_a_clock_that_goes_astray_costs_no_chunk_that_fits(now):
    clock = Clock()
    index = ChunkIndex(range(2), ttl_seconds=2**31, clock=clock)
    store(index, b"a")
    clock.now = now
    index.begin([b"a", b"b"])
    store(index, b"b", b"a")
    clock.now = 1000
    assert index.lookup_prefix([b"a", b"b"]) == 2


def test_kept_chunks_stay_until_they_are_let_go():
    clock = Clock()
    index = ChunkIndex(range(3), ttl_seconds=10, clock=clock)
    index.keep([b"a", b"b"])
    store(index, b"a")
    store(index, b"b", b"a")
    store(index, b"c", b"b")
    clock.now += 100
    assert index.evict(3) == 1
    assert index.expire() == 0
    assert index.lookup_prefix([b"a", b"b", b"c"]) == 2
    index.let_go([b"a", b"b"])
    assert index.lookup_prefix([b"a"]) == 0, "now it is too old"
    assert index.evict(3) == 2


def test_a_tenant_above_its_quota_gives_its_own_chunks():
    index = ChunkIndex(range(8), quota_chunks=2)
    for key in (b"a", b"b", b"c"):
        use = index.begin([key], tenant=7 if key != b"c" else 0)
        entry = index.reserve(key, use=use)
        index.commit(entry, (b"8 bytes.",))
    index.begin([b"a"], tenant=7)
    assert index.evict_excess(7, 1) == (1, 1)
    assert left(index) == [b"b"], "its least recently used one"
    assert index.evict_excess(9, 2) == (0, 2)
    assert index.evict_excess(0, 100) == (0, 100)
    assert index.evict_excess(7, 5) == (1, 2), "never more than its quota"


class IndexMachine(RuleBasedStateMachine):
    """Every place is always in exactly one state, and nothing is answered that was not committed."""

    @initialize(
        places=st.integers(1, 6), policy=st.sampled_from(sorted(EVICTIONS)), quota=st.none() | st.just(3)
    )
    def start(self, places, policy, quota):
        self.places = places
        self.index = ChunkIndex(range(places), policy=EVICTIONS[policy](), quota_chunks=quota)
        self.parents: dict[bytes, bytes] = {}
        self.pending: list[Entry] = []
        self.stored: dict[bytes, Entry] = {}
        self.pinned: list[Entry] = []
        self.unread_leavers: list[Entry] = []
        self.lost: set[int] = set()

    @rule(key=keys, parent=st.none() | keys, tenant=st.integers(0, 2))
    def reserve(self, key, parent, tenant):
        if parent == key or parent not in self.index:
            parent = None
        use = self.index.begin([*([] if parent is None else [parent]), key], tenant)
        entry = self.index.reserve(key, parent, use)
        if entry is not None:
            assert key not in self.stored
            self.pending.append(entry)
            self.parents[key] = parent

    @rule(path=st.lists(keys, unique=True, max_size=4))
    def use(self, path):
        # A prompt's keys are chained: only what went on from each other can come together.
        path = [key for n, key in enumerate(path) if not n or self.parents.get(key) == path[n - 1]]
        self.index.begin(path)

    @rule(tenant=st.integers(1, 2))
    def shrink_tenant(self, tenant):
        self.index.evict_excess(tenant, 1)
        self.forget()

    @rule(pick=st.integers(0, 99))
    def commit(self, pick):
        if self.pending:
            entry = self.pending.pop(pick % len(self.pending))
            if self.index.commit(entry, (b"8 bytes.",)):
                self.stored[entry.key] = entry
            else:
                assert self.index.get(entry.key) != entry
                self.index.abort(entry, reusable=True)

    @rule(pick=st.integers(0, 99), quiet=st.booleans())
    def abort(self, pick, quiet):
        if self.pending:
            entry = self.pending.pop(pick % len(self.pending))
            self.index.abort(entry, reusable=quiet)
            self.forget()
            if not quiet:
                self.lost.add(entry.chunk_id)

    @rule(key=keys)
    def pin(self, key):
        entry = self.index.get(key)
        assert (entry is not None) == (key in self.stored)
        if entry is not None:
            self.index.pin(entry)
            self.pinned.append(entry)

    @rule(pick=st.integers(0, 99))
    def unpin(self, pick):
        if self.pinned:
            self.index.unpin(self.pinned.pop(pick % len(self.pinned)))

    @rule(path=st.lists(keys, max_size=4), count=st.integers(0, 2))
    def pin_many(self, path, count):
        pinned = self.index.pin_all(path)
        entries = [self.index.entry_at(pinned, position) for position in range(len(path))]
        assert entries == [self.stored.get(key) for key in path]
        assert self.index.missing(path) == [n for n, key in enumerate(path) if key not in self.index]
        self.index.evict(count)
        self.index.unpin_all(pinned)
        self.forget()
        assert all(self.index.holds(entry) for entry in entries if entry is not None), "it went while read"

    @rule(path=st.lists(keys, min_size=1, max_size=4), pick=st.integers(0, 99), cut=st.integers(0, 4))
    def look_up_again(self, path, pick, cut):
        for change in (lambda: None, lambda: self.commit(pick), lambda: self.drop(path[0]), self.clear):
            change()
            for each in (path, path[:cut], path):
                hits = next((n for n, key in enumerate(each) if key not in self.stored), len(each))
                assert self.index.lookup_prefix(each) == hits

    @rule(key=keys)
    def drop(self, key):
        if key in self.stored:
            self.index.drop(self.stored.pop(key))
            self.forget()

    @rule(count=st.integers(0, 3))
    def evict(self, count):
        self.index.evict(count)
        self.forget()

    def forget(self):
        self.stored = {key: entry for key, entry in self.stored.items() if self.index.holds(entry)}

    @rule()
    def clear(self):
        self.index.clear()
        self.stored.clear()

    @rule()
    def recycle(self):
        leaving = self.index.take_leaving()
        assert not any(entry in self.pinned for entry in leaving), "a place left while it was read"
        self.index.give_back([entry.chunk_id for entry in leaving])

    @invariant()
    def hits_are_what_was_committed(self):
        for key in KEYS:
            assert self.index.lookup_prefix([key]) == (key in self.stored)

    @invariant()
    def nobody_is_without_a_parent(self):
        for key in self.stored:
            assert self.parents[key] is None or self.parents[key] in self.index

    @invariant()
    def every_place_is_in_one_state(self):
        busy = {e.chunk_id for e in self.stored.values()} | {e.chunk_id for e in self.pending}
        busy |= {e.chunk_id for e in self.pinned} | self.lost
        assert self.index.free + len(busy) <= self.places
        assert len({e.chunk_id for e in self.pending}) == len(self.pending)
        assert not set(self.index._free) & busy


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndexMachine = IndexMachine.TestCase
