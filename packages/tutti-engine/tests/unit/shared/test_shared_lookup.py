# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of a shared store: it never waits, and forgets in time."""

import errno
import threading
import time

from shared_rig import GEOMETRY, Clock, keys_of

from tutti_engine import Geometry
from tutti_engine.cache_group import CacheGroup
from tutti_engine.shared.lookup import LookupSettings, Seen, SharedLookup
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.shared.prompt_tree import PromptTree
from tutti_engine.testing.shared_stores import Faults, MemoryPool, MemorySharedStore

NAMES = ObjectNames("ab" * 16)


class View:
    def __init__(self, geometry=GEOMETRY, parts=1, **settings):
        self.pool, self.faults, self.clock = MemoryPool(), Faults(), Clock()
        self.store = MemorySharedStore(self.pool, self.faults, threads=1)
        self.lookup = SharedLookup(
            self.store, NAMES, parts, geometry, LookupSettings(**settings), clock=self.clock
        )

    def put(self, keys, objects=((0, 0),)):
        for key in keys:
            for part, group in objects:
                self.pool.objects[NAMES.name(part, group, key)] = b""

    def until_decided(self, keys, *places):
        deadline = time.monotonic() + 30
        while not (seen := self.lookup.look(keys, *places)).decided:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return seen.chunks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.faults.running.set()
        self.lookup.close()
        self.store.shutdown()


def test_the_first_answer_is_that_nothing_is_known_yet():
    with View() as view:
        view.put(keys_of(3))
        view.faults.running.clear()
        for _ in range(3):
            assert view.lookup.look(keys_of(4)) == Seen(0, False)
        view.faults.running.set()
        assert view.until_decided(keys_of(4)) == 3
        assert view.store.calls["exists"] == 1


def test_verdicts_age():
    with View(hit_seconds=10, miss_seconds=5) as view:
        keys = keys_of(2)
        assert view.until_decided(keys) == 0
        view.put(keys)
        assert view.lookup.look(keys) == Seen(0, True)
        view.clock.now += 6
        assert view.until_decided(keys) == 2
        view.pool.objects.clear()
        assert view.lookup.look(keys) == Seen(2, True)
        view.clock.now += 11
        assert view.until_decided(keys) == 0


def test_a_long_prefix_is_asked_for_in_pieces_up_to_the_first_gap():
    with View() as view:
        keys = keys_of(5000)
        view.put(keys[:200])
        assert view.until_decided(keys) == 200
        assert view.lookup.counters["shared_lookup_names"] < 500
        view.put(keys)
        view.clock.now += 100
        assert view.until_decided(keys) == 5000


def test_a_store_that_fails_is_left_alone_for_a_while():
    with View() as view:
        view.put(keys_of(1))
        view.faults.error = errno.EIO
        assert view.until_decided(keys_of(1)) == 0
        assert view.lookup.counters["shared_lookup_errors"] == 3
        assert not view.lookup.is_available()
        view.faults.error = 0
        view.clock.now += 60
        assert view.until_decided(keys_of(1)) == 1
        assert view.lookup.is_available()


def test_a_question_that_hangs_holds_nobody_up():
    with View(call_seconds=1.0) as view:
        view.put(keys_of(1))
        view.faults.running.clear()
        assert not view.lookup.look(keys_of(1)).decided
        deadline = time.monotonic() + 30
        while view.lookup._call_began is None and time.monotonic() < deadline:
            time.sleep(0.001)
        view.clock.now += 2
        for _ in range(3):
            assert view.lookup.look(keys_of(1)) == Seen(0, True)
        assert view.lookup.counters["shared_lookup_hangs"] == 1
        view.faults.running.set()
        deadline = time.monotonic() + 30
        while view.lookup.look(keys_of(1)).chunks < 1:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_store_that_is_always_too_late_is_left_alone_as_well():
    with View(call_seconds=1.0, miss_seconds=1e9) as view:
        view.put(keys_of(9))
        exists = view.store.exists

        def late(names):
            found = exists(names)
            view.clock.now += 2
            return found

        view.store.exists = late
        deadline = time.monotonic() + 30
        while view.lookup.is_available():
            assert time.monotonic() < deadline
            view.lookup.look(keys_of(1))
            view.lookup.forget()
        assert view.lookup.counters["shared_lookup_errors"] == 0
        assert view.lookup.look(keys_of(1, 5)) == Seen(0, True)


def test_every_part_and_group_counts():
    full = CacheGroup((0, 1), 16, 4096)
    window = CacheGroup((2,), 16, 4096, window=20)
    geometry = Geometry(
        num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=4096, groups=(full, window)
    )
    with View(geometry, parts=2) as view:
        whole, no_window, one_part = keys_of(3)
        view.put([whole], [(part, group) for part in (0, 1) for group in (0, 1)])
        view.put([no_window], [(0, 0), (1, 0), (0, 1)])
        view.put([one_part], [(0, 0), (0, 1), (1, 1)])
        assert view.until_decided([whole, no_window, one_part]) == 2
        assert view.lookup.has_group(whole, 1)
        assert not view.lookup.has_group(no_window, 1)


def test_memory_is_bounded():
    with View(max_chunks=10) as view:
        view.lookup.note_there(keys_of(25))
        view.lookup.note_gone(keys_of(25, 100))
        assert len(view.lookup._there) == len(view.lookup._missing) == 10
        view.lookup.note_gone(keys_of(25))
        assert not view.lookup.is_there(keys_of(25)[-1])


def test_close_leaves_a_hanging_question_behind():
    view = View()
    view.faults.running.clear()
    view.lookup.look(keys_of(1))
    closed = threading.Thread(target=view.lookup.close, args=(0.01,))
    closed.start()
    closed.join(30)
    assert not closed.is_alive()
    view.faults.running.set()
    view.store.shutdown()


def test_a_removal_that_hangs_is_a_store_that_is_not_there():
    with View(call_seconds=1) as view:
        known, unknown = keys_of(1), keys_of(1, start=9)
        view.faults.running.clear()
        removing = threading.Event()
        remove = view.store.remove
        view.store.remove = lambda names: (removing.set(), remove(names))
        view.lookup.note_gone(known, damaged=True)
        assert removing.wait(30)
        assert view.lookup.look(unknown) == Seen(0, False)
        view.clock.now += 2
        assert view.lookup.look(unknown) == Seen(0, True), "nobody waits for it"
        assert view.lookup.counters["shared_lookup_hangs"] == 1
        view.faults.running.set()
        assert view.until_decided(unknown) == 0


def test_an_answer_that_is_no_sequence_does_not_end_the_thread():
    with View() as view:
        view.put(keys_of(2))
        exists = view.store.exists
        view.store.exists = lambda names: dict(zip(names, exists(names))).values()
        assert view.until_decided(keys_of(3)) == 2
        assert view.until_decided(keys_of(1, start=7)) == 0


def chained(count, *, fork=1 << 30):
    """Keys of a prompt that leaves another one's way at chunk ``fork``."""
    return [b"chunk %d of %d" % (n, n >= fork) for n in range(count)]


class Counting(dict):
    """Verdicts that count how often they are asked for."""

    asked = 0

    def get(self, *arguments):
        self.asked += 1
        return super().get(*arguments)


def counted(view):
    view.lookup._there = Counting(view.lookup._there)
    return view.lookup._there


def test_what_was_gone_through_is_not_gone_through_again():
    with View() as view:
        view.put(chained(3000))
        assert view.until_decided(chained(3000)) == 3000
        verdicts = counted(view)
        assert view.lookup.look(chained(3000)) == Seen(3000, True)
        assert view.lookup.look(chained(500)) == Seen(500, True)
        assert not view.lookup.look(chained(3000, fork=2500)).decided
        assert verdicts.asked <= 64, "those of the part that is new"


def test_a_part_of_a_prompt_is_answered_as_if_it_were_one():
    with View() as view:
        keys = chained(300)
        view.put(keys[:200])
        # The last three within what is answered as a whole by then.
        for start, stop in ((0, 90), (100, 150), (20, 120), (100, 250), (0, 300), (0, 50), (100, 130)):
            assert view.until_decided(keys, start, stop) == min(stop, 200) - start
        assert view.lookup.look(keys, 200, 300) == Seen(0, True)
        assert view.lookup.look(keys, 150, 150) == view.lookup.look(keys, 400) == Seen(0, True)
        keys[:] = []
        assert view.lookup.look(chained(300)[:200]) == Seen(200, True), "of a prompt that changed since"


def test_an_answer_does_not_outlive_the_loss_of_one_of_its_chunks():
    with View(miss_seconds=1e9) as view:
        keys = chained(300)
        view.put(keys)
        assert view.until_decided(keys) == 300
        view.lookup.note_gone(keys[200:201])
        assert view.lookup.look(keys) == Seen(200, True)
        view.lookup.note_read(keys)
        assert view.lookup.look(keys) == Seen(300, True)
        view.lookup._there.clear()
        view.lookup.note_gone(keys[100:101])
        assert view.lookup.look(keys).chunks == 0, "also of one without a verdict"


def test_a_loss_that_the_thread_sees_counts_as_well():
    with View() as view:
        keys = chained(100)
        view.put(keys)
        assert view.until_decided(keys) == 100
        del view.pool.objects[NAMES.name(0, 0, keys[50])]
        view.clock.now += 20
        view.lookup.note_read(keys[:40])
        view.lookup.note_read(keys[40:])
        view.clock.now += 15
        # The verdicts are out of date, the answers are not, until somebody else's question says more.
        assert view.lookup.look(keys) == Seen(100, True)
        assert view.until_decided(keys[45:]) == 5
        assert view.until_decided(keys) == 50


def test_answers_age_and_are_bounded():
    with View(hit_seconds=10) as view:
        view.lookup.note_read(chained(20))
        view.clock.now += 11
        assert not view.lookup.look(chained(20)).decided
        for number in range(200):
            view.lookup.note_read([b"%d" % number])
        assert len(view.lookup._answers) <= 64
        view.lookup.forget()
        assert view.lookup.look([b"199"]).chunks == 0


def test_many_damaged_objects_are_removed_some_at_a_time():
    with View() as view:
        keys, calls = keys_of(3000), []
        view.put(keys)
        remove = view.store.remove
        view.store.remove = lambda names: (calls.append(len(names)), remove(names))
        view.lookup.note_gone(keys, damaged=True)
        deadline = time.monotonic() + 30
        while view.pool.objects:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert sum(calls) == 3000 and max(calls) <= 1024


def test_what_is_let_go_is_taken_apart_by_the_thread_or_bounded():
    with View() as view:
        first = {b"a": 1}
        view.lookup.let_go(first)
        assert view.until_decided(keys_of(1)) == 0
        assert not first
        for _ in range(1000):
            view.lookup.let_go({b"a": 1})
        assert len(view.lookup._forgotten) <= 64


def until(reached):
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_is_let_go_needs_no_question_to_be_taken_apart():
    tree, gone = PromptTree(2, 3), []
    tree.note(chained(4))
    with View() as view:
        gone.append(tree._before)
        view.lookup.let_go(tree._before)
        until(lambda: not gone[0])


def test_little_waits_for_a_thread_that_hangs():
    with View() as view:
        view.faults.running.clear()
        view.lookup.look(keys_of(1))
        until(lambda: view.lookup._call_began is not None)
        for _ in range(10):
            view.lookup.let_go({b"a": 1})
            view.lookup.note_read([b"%d" % view.clock.now])
            view.clock.now += 1
        assert len(view.lookup._forgotten) <= 2, "each is a hundred thousand chunks"
        view.faults.running.set()
        until(lambda: not view.lookup._forgotten)


def test_an_answer_lasts_no_longer_than_what_it_was_put_together_from():
    with View(hit_seconds=10) as view:
        keys = chained(30)
        view.lookup.note_there(keys[10:])
        view.clock.now += 6
        view.lookup.note_read(keys[:10])
        assert view.lookup.look(keys) == Seen(30, True)
        view.clock.now += 5
        assert view.lookup.look(keys) == Seen(0, False), (
            "those behind are out of date: all is asked for again"
        )
    with View(hit_seconds=10) as view:
        view.lookup.note_read(keys[:10])
        view.clock.now += 6
        view.lookup.note_there(keys[10:])
        assert view.lookup.look(keys) == Seen(30, True)
        view.clock.now += 5
        assert view.lookup.look(keys) == Seen(0, False), "those before are"


def test_a_loss_during_a_question_voids_its_answer():
    with View() as view:
        keys = chained(3)
        view.put(keys)
        exists = view.store.exists

        def lost_meanwhile(names):
            found = exists(names)
            view.store.exists = exists
            view.lookup.forget()
            return found

        view.store.exists = lost_meanwhile
        view.lookup.look(keys)
        until(lambda: view.lookup._new_answers)
        view.lookup._there.clear()
        assert view.lookup.look(keys) == Seen(0, False)


def test_what_is_found_is_not_missing_any_more_and_is_bounded():
    with View(max_chunks=100, miss_seconds=5, hit_seconds=1) as view:
        keys = chained(40)
        assert view.until_decided(keys[3:]) == 0
        view.put(keys)
        assert view.until_decided(keys[:4]) == 4
        view.clock.now += 2
        assert not view.lookup.look(keys[3:]).decided, "it was there, nobody knows now"
        many = chained(3000)
        view.put(many)
        view.lookup.look(many)
        until(lambda: not view.lookup._asked)
        assert len(view.lookup._there) <= 100
