# SPDX-License-Identifier: Apache-2.0
"""The index against a plain model of what it promises."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tutti_engine.chunk_index import ChunkIndex, Entry

KEYS = [bytes([n]) for n in range(12)]
keys = st.sampled_from(KEYS)


def store(index: ChunkIndex, key: bytes) -> Entry:
    entry = index.reserve(key)
    assert entry is not None
    assert index.commit(entry, (b"sum",))
    return entry


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
    assert [entry.key for entry in index.take_leaving()] == [b"c"]
    index.evict(1)
    assert [entry.key for entry in index.take_leaving()] == [b"b"]


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


class IndexMachine(RuleBasedStateMachine):
    """Every place is always in exactly one state, and nothing is answered that was not committed."""

    @initialize(places=st.integers(1, 6))
    def start(self, places):
        self.places = places
        self.index = ChunkIndex(range(places))
        self.pending: list[Entry] = []
        self.stored: dict[bytes, Entry] = {}
        self.pinned: list[Entry] = []
        self.unread_leavers: list[Entry] = []
        self.lost: set[int] = set()

    @rule(key=keys)
    def reserve(self, key):
        entry = self.index.reserve(key)
        if entry is not None:
            assert key not in self.stored
            self.pending.append(entry)

    @rule(pick=st.integers(0, 99))
    def commit(self, pick):
        if self.pending:
            entry = self.pending.pop(pick % len(self.pending))
            if self.index.commit(entry, (b"x",)):
                self.stored[entry.key] = entry
            else:
                assert not entry.resident
                self.index.abort(entry, reusable=True)

    @rule(pick=st.integers(0, 99), quiet=st.booleans())
    def abort(self, pick, quiet):
        if self.pending:
            entry = self.pending.pop(pick % len(self.pending))
            self.index.abort(entry, reusable=quiet)
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

    @rule(key=keys)
    def drop(self, key):
        if key in self.stored:
            self.index.drop(self.stored.pop(key))

    @rule(count=st.integers(0, 3))
    def evict(self, count):
        self.index.evict(count)
        self.stored = {k: e for k, e in self.stored.items() if e.resident}

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
    def every_place_is_in_one_state(self):
        busy = {e.chunk_id for e in self.stored.values()} | {e.chunk_id for e in self.pending}
        busy |= {e.chunk_id for e in self.pinned} | self.lost
        assert self.index.free + len(busy) <= self.places
        assert len({e.chunk_id for e in self.pending}) == len(self.pending)
        assert not set(self.index._free) & busy


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndexMachine = IndexMachine.TestCase
