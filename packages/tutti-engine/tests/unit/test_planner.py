# SPDX-License-Identifier: Apache-2.0
"""What the planning side promises, with reports that come late, from several ranks, or say no."""

import errno

import pytest

from tutti_engine import Geometry, LoadResult, StoreResult, StoreSettled
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.planning.planner import Planner

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
SUM = b"s" * 16


class Journal:
    """Remembers what it is told; removals become durable only when ``settle`` is called."""

    def __init__(self):
        self.rows = {}
        self.waiting = []
        self.suspects = []
        self.counts = {}

    def put(self, record):
        self.rows[record.slot] = record

    def remove(self, slots, on_durable, *, suspect=False):
        self.suspects.extend(slots if suspect else ())
        self.waiting.append((list(slots), on_durable))

    def clear(self, on_durable):
        self.waiting.append((list(self.rows), on_durable))

    def flush(self, timeout):
        return not self.waiting

    def touch(self, keys):
        pass

    def add(self, name, delta):
        self.counts[name] = self.counts.get(name, 0) + delta

    def settle(self):
        for slots, on_durable in self.waiting:
            for slot in slots:
                self.rows.pop(slot, None)
            on_durable(slots)
        self.waiting.clear()


def candidates(*keys, first_block=0):
    return [(key, ((first_block + 2 * n, first_block + 2 * n + 1),)) for n, key in enumerate(keys)]


def stored(planner, *keys, ranks=1):
    plan = planner.plan_store(candidates(*keys))
    for rank in range(ranks):
        planner.complete_store(rank, StoreResult(plan.plan_id, (SUM,) * len(plan.transfers)))
    return plan


def test_a_chunk_is_a_hit_only_after_every_rank_made_it_durable():
    planner = Planner(GEOMETRY, range(8), ranks=3)
    plan = planner.plan_store(candidates(b"a"))
    for rank in (2, 0):
        assert not planner.complete_store(rank, StoreResult(plan.plan_id, (SUM,)))
        assert planner.lookup_prefix([b"a"]) == 0
    assert planner.complete_store(1, StoreResult(plan.plan_id, (SUM,)))
    assert planner.lookup_prefix([b"a"]) == 1
    assert planner.pending_stores == 0


def test_what_plans_hold_shows_until_they_are_reported():
    planner = Planner(GEOMETRY, range(8))
    stored(planner, b"a")
    assert not any(planner.in_use().values())
    load = planner.plan_load([(b"a", ((4, 5),))])
    store = planner.plan_store(candidates(b"b", b"c"))
    held = {name: count for name, count in planner.in_use().items() if count}
    assert held == {"load_plans": 1, "store_plans": 1, "pins": 1, "pending_chunks": 2}
    planner.complete_load(LoadResult(load.plan_id))
    planner.complete_store(0, StoreResult(store.plan_id, (SUM, None), unsettled=(1,)))
    assert {name: count for name, count in planner.in_use().items() if count} == {"quarantined_places": 1}
    planner.note_settled(0, StoreSettled(store.plan_id, (1,)))
    assert not any(planner.in_use().values())


def test_checksums_come_back_by_rank_whatever_the_order_of_the_reports():
    planner = Planner(GEOMETRY, range(8), ranks=2)
    plan = planner.plan_store(candidates(b"a"))
    planner.complete_store(1, StoreResult(plan.plan_id, (b"1" * 16,)))
    planner.complete_store(0, StoreResult(plan.plan_id, (b"0" * 16,)))
    load = planner.plan_load([(b"a", ((5, 6),))])
    assert load.transfers[0].checksums == (b"0" * 16, b"1" * 16)


def test_one_rank_that_failed_makes_it_a_miss_and_frees_the_place():
    planner = Planner(GEOMETRY, range(1), ranks=2)
    plan = planner.plan_store(candidates(b"a"))
    planner.complete_store(0, StoreResult(plan.plan_id, (SUM,)))
    planner.complete_store(1, StoreResult(plan.plan_id, (None,), errno=errno.EIO))
    assert planner.lookup_prefix([b"a"]) == 0
    assert planner.plan_store(candidates(b"b")).transfers[0].chunk_id == 0


def test_a_place_that_may_still_be_written_is_never_used_again():
    planner = Planner(GEOMETRY, range(1))
    plan = planner.plan_store(candidates(b"a"))
    planner.complete_store(0, StoreResult(plan.plan_id, (None,), unsettled=(0,), errno=errno.ETIMEDOUT))
    assert planner.plan_store(candidates(b"b")) is None
    assert planner.counters["quarantined_chunks"] == 1


def test_a_store_plan_with_holes_names_each_chunks_own_blocks():
    planner = Planner(GEOMETRY, range(8))
    stored(planner, b"b")
    plan = planner.plan_store([(b"a", ((7, 3),)), (b"b", ((9, 1),)), (b"a", ((0, 0),)), (b"c", ((4, 2),))])
    assert [(t.key, t.block_ids) for t in plan.transfers] == [(b"a", ((7, 3),)), (b"c", ((4, 2),))]


def test_a_chunk_under_way_is_not_stored_twice():
    planner = Planner(GEOMETRY, range(8))
    planner.plan_store(candidates(b"a"))
    assert planner.plan_store(candidates(b"a")) is None


def test_a_chunk_that_left_after_it_was_promised_stays_in_the_plan():
    planner = Planner(GEOMETRY, range(8))
    plan = planner.plan_load([(b"gone", ((1, 2),))])
    assert plan.transfers[0].chunk_id is None and plan.transfers[0].block_ids == ((1, 2),)
    assert planner.complete_load(LoadResult(plan.plan_id, (0,), errno.ENOENT))


def test_a_chunk_that_failed_to_load_on_one_rank_is_gone_once_all_reported():
    planner = Planner(GEOMETRY, range(8), ranks=2)
    stored(planner, b"a", b"b", ranks=2)
    plan = planner.plan_load([(b"a", ((1, 2),)), (b"b", ((3, 4),))])
    planner.complete_load(LoadResult(plan.plan_id))
    planner.complete_load(LoadResult(plan.plan_id, (1,), errno.EBADMSG))
    assert planner.lookup_prefix([b"a", b"b"]) == 1
    assert planner.pending_loads == 0
    assert planner.counters["load_failed_chunks"] == 1


def test_a_rank_that_reports_a_load_twice_does_not_speak_for_another():
    journal = Journal()
    planner = Planner(GEOMETRY, range(2), ranks=2, journal=journal)
    stored(planner, b"a", ranks=2)
    plan = planner.plan_load([(b"a", ((1, 2),))])
    assert not planner.complete_load(LoadResult(plan.plan_id, bytes_read=7), 1)
    assert not planner.complete_load(LoadResult(plan.plan_id, (0,), errno.EIO, bytes_read=7), 1)
    assert planner.pending_loads == planner.in_use()["pins"] == 1, "rank 0 still reads the place"
    assert planner.complete_load(LoadResult(plan.plan_id), 0)
    assert planner.pending_loads == planner.in_use()["pins"] == 0
    assert planner.counters["read_bytes"] == 7 and planner.lookup_prefix([b"a"]) == 1


def test_a_place_is_not_reused_while_a_load_reads_it():
    journal = Journal()
    planner = Planner(GEOMETRY, range(2), journal=journal)
    stored(planner, b"a")
    load = planner.plan_load([(b"a", ((1, 2),))])
    planner.reset()
    journal.settle()
    taken = planner.plan_store(candidates(b"b", b"c")).transfers
    assert load.transfers[0].chunk_id not in {t.chunk_id for t in taken}
    planner.complete_load(LoadResult(load.plan_id))
    journal.settle()
    assert planner.plan_store(candidates(b"d")).transfers[0].chunk_id == load.transfers[0].chunk_id


def test_a_place_is_reused_only_after_its_removal_is_durable():
    journal = Journal()
    planner = Planner(GEOMETRY, range(1), journal=journal)
    stored(planner, b"a")
    assert planner.plan_store(candidates(b"b")) is None, "the row of a is still on disk"
    assert planner.lookup_prefix([b"a"]) == 0
    journal.settle()
    assert stored(planner, b"b").transfers[0].chunk_id == 0
    assert [row.key for row in journal.rows.values()] == [b"b"]


def test_a_store_that_ends_after_a_reset_is_no_hit_and_gives_its_place_back():
    journal = Journal()
    planner = Planner(GEOMETRY, range(1), journal=journal)
    plan = planner.plan_store(candidates(b"a"))
    planner.reset()
    planner.complete_store(0, StoreResult(plan.plan_id, (SUM,)))
    assert planner.lookup_prefix([b"a"]) == 0 and not journal.rows
    assert planner.plan_store(candidates(b"b")) is not None


def test_a_load_that_fails_after_its_key_was_stored_anew_does_not_drop_the_new_chunk():
    planner = Planner(GEOMETRY, range(4))
    stored(planner, b"a")
    load = planner.plan_load([(b"a", ((1, 2),))])
    assert planner.reset()
    stored(planner, b"a")
    planner.complete_load(LoadResult(load.plan_id, (0,), errno.EBADMSG))
    assert planner.lookup_prefix([b"a"]) == 1


def test_residents_come_back_oldest_first():
    records = [Record(bytes([n]), n, n, (SUM,), last_used=100 - n) for n in range(3)]
    planner = Planner(GEOMETRY, range(3), records=records)
    assert planner.resident_chunks == 3
    planner.plan_store(candidates(b"new"))
    assert planner.lookup_prefix([b"\x02"]) == 0, "the least recently used one left"
    assert planner.lookup_prefix([b"\x00"]) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_store_that_keeps_failing_pauses_and_one_that_finds_no_room_does_not(code):
    planner = Planner(GEOMETRY, range(64))
    for n in range(10):
        plan = planner.plan_store(candidates(bytes([n])))
        planner.complete_store(0, StoreResult(plan.plan_id, (None,), errno=errno.ENOBUFS))
    for n in range(3):
        plan = planner.plan_store(candidates(bytes([n])))
        planner.complete_store(0, StoreResult(plan.plan_id, (None,), errno=code))
    assert planner.plan_store(candidates(b"x")) is None
    assert planner.counters["store_dropped_chunks"] == 10
    assert planner.counters["store_failed_chunks"] == 3


def test_damaged_chunks_do_not_pause_loading():
    planner = Planner(GEOMETRY, range(64))
    for n in range(10):
        stored(planner, bytes([n]))
        plan = planner.plan_load([(bytes([n]), ((1, 2),))])
        planner.complete_load(LoadResult(plan.plan_id, (0,), errno.EBADMSG))
    stored(planner, b"a")
    assert planner.lookup_prefix([b"a"]) == 1


def test_a_drive_that_fails_to_read_pauses_loading():
    planner = Planner(GEOMETRY, range(64))
    stored(planner, *(bytes([n]) for n in range(4)))
    for n in range(3):
        plan = planner.plan_load([(bytes([n]), ((1, 2),))])
        planner.complete_load(LoadResult(plan.plan_id, (0,), errno.EIO))
    assert planner.lookup_prefix([b"\x03"]) == 0


@pytest.mark.parametrize("what", ["checksums_of", "places_of", "touch"])
def test_a_load_that_cannot_be_planned_holds_nothing(what, monkeypatch):
    planner = Planner(GEOMETRY, range(4))
    stored(planner, b"a", b"b")
    monkeypatch.setattr(planner._index, what, lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        planner.plan_load(candidates(b"a", b"b"))
    assert not any(planner.in_use().values())


@pytest.mark.parametrize(
    ("what", "owner"),
    [("choose", "_gate"), ("put_back", "_gate"), ("make", "_room"), ("settle", "_room"), ("retire", "_room")],
)
def test_a_store_that_cannot_be_planned_holds_nothing(what, owner, monkeypatch):
    planner = Planner(GEOMETRY, range(4))
    stored(planner, b"a")
    with monkeypatch.context() as broken:
        broken.setattr(getattr(planner, owner), what, lambda *arguments, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            planner.plan_store(candidates(b"b", b"c"), [[b"a", b"b", b"c"]])
    assert not any(planner.in_use().values())
    stored(planner, b"b", b"c", b"d")
    assert planner.resident_chunks == 4


def test_reports_of_unknown_plans_are_ignored():
    planner = Planner(GEOMETRY, range(1))
    assert not planner.complete_store(0, StoreResult(99, (SUM,)))
    assert not planner.complete_load(LoadResult(99))


def test_a_place_that_was_written_late_comes_back_once_every_rank_says_so():
    planner = Planner(GEOMETRY, range(1), ranks=2)
    plan = planner.plan_store(candidates(b"a"))
    for rank in (0, 1):
        result = StoreResult(plan.plan_id, (None,), unsettled=(0,), errno=errno.ETIMEDOUT)
        planner.complete_store(rank, result)
    planner.note_settled(0, StoreSettled(plan.plan_id, (0,)))
    assert planner.plan_store(candidates(b"b")) is None
    planner.note_settled(1, StoreSettled(plan.plan_id, (0,)))
    assert planner.plan_store(candidates(b"b")).transfers[0].chunk_id == 0


def test_a_late_write_may_end_before_the_other_rank_has_reported():
    planner = Planner(GEOMETRY, range(1), ranks=2)
    plan = planner.plan_store(candidates(b"a"))
    failed = StoreResult(plan.plan_id, (None,), unsettled=(0,), errno=errno.ETIMEDOUT)
    planner.complete_store(0, failed)
    planner.note_settled(0, StoreSettled(plan.plan_id, (0,)))
    planner.complete_store(1, StoreResult(plan.plan_id, (SUM,)))
    assert planner.lookup_prefix([b"a"]) == 0
    assert planner.plan_store(candidates(b"b")) is not None


def test_removals_that_do_not_become_durable_empty_no_more_than_the_spare_places():
    journal = Journal()
    planner = Planner(GEOMETRY, range(64), journal=journal)
    for n in range(64):
        stored(planner, bytes([n]))
        journal.settle()
    resident = planner.resident_chunks
    for n in range(64, 164):
        planner.plan_store(candidates(bytes([n])))
    assert planner.resident_chunks >= resident - 16
    assert planner.counters["store_dropped_chunks"] > 0


def test_a_chunk_that_was_not_tried_stays():
    planner = Planner(GEOMETRY, range(8))
    stored(planner, b"a", b"b")
    plan = planner.plan_load(candidates(b"a", b"b"))
    planner.complete_load(LoadResult(plan.plan_id, (0, 1), errno.ETIMEDOUT, untried=(1,)))
    assert planner.lookup_prefix([b"b"]) == 1
    assert planner.lookup_prefix([b"a"]) == 0


def test_loads_that_were_not_tried_do_not_pause_loading():
    planner = Planner(GEOMETRY, range(8))
    stored(planner, b"a")
    for _ in range(5):
        plan = planner.plan_load(candidates(b"a"))
        planner.complete_load(LoadResult(plan.plan_id, (0,), errno.ECANCELED, untried=(0,)))
    assert planner.lookup_prefix([b"a"]) == 1


def test_a_reset_says_whether_it_is_durable_and_later_chunks_do_not_survive_a_restart():
    journal = Journal()
    planner = Planner(GEOMETRY, range(8), journal=journal)
    stored(planner, b"a")
    assert not planner.reset(timeout=0.0)
    journal.settle()
    assert planner.reset(timeout=0.0) is False, "it has to be said anew"
    journal.settle()
    stored(planner, b"b")
    assert planner.lookup_prefix([b"b"]) == 1
    assert journal.rows == {}


def test_the_heads_of_a_prompt_outlive_its_tails():
    planner = Planner(GEOMETRY, range(16))
    keys = [bytes([n]) for n in range(12)]
    for n, key in enumerate(keys):
        plan = planner.plan_store(candidates(key), [keys[: n + 1]])
        planner.complete_store(0, StoreResult(plan.plan_id, (SUM,)))
    for n in range(100, 108):
        stored(planner, bytes([n]))
    left = [key for key in keys if planner.lookup_prefix([key])]
    assert left == keys[: len(left)] and 0 < len(left) < 12


def test_a_journal_that_refuses_a_record_costs_the_restart_only():
    journal = Journal()

    def refuse(record):
        raise ValueError("no such record")

    journal.put = refuse
    planner = Planner(GEOMETRY, range(8), journal=journal)
    stored(planner, b"a", b"b")
    assert planner.lookup_prefix([b"a", b"b"]) == 2
    assert planner.pending_stores == 0


def test_a_clock_before_1970_is_no_reason_to_fail(monkeypatch):
    journal = Journal()
    planner = Planner(GEOMETRY, range(8), journal=journal)
    monkeypatch.setattr("time.time", lambda: -5.0)
    stored(planner, b"a")
    assert [row.last_used for row in journal.rows.values()] == [0]


def test_a_drive_that_lets_nothing_be_tried_pauses_loading_and_keeps_its_chunks():
    planner = Planner(GEOMETRY, range(8))
    stored(planner, b"a")
    for _ in range(3):
        plan = planner.plan_load(candidates(b"a"))
        planner.complete_load(LoadResult(plan.plan_id, (0,), errno.ETIMEDOUT, untried=(0,)))
    assert planner.lookup_prefix([b"a"]) == 0
    assert planner.resident_chunks == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_ranks_real_error_counts_beside_anothers_lack_of_room(order):
    planner = Planner(GEOMETRY, range(8), ranks=2)
    codes = (errno.ECANCELED, errno.EIO)
    for n in range(3):
        plan = planner.plan_store(candidates(bytes([n])))
        for rank in order:
            planner.complete_store(rank, StoreResult(plan.plan_id, (None,), errno=codes[rank]))
    assert planner.store_breaker.is_open
    assert planner.counters["store_failed_chunks"] == 3


def test_a_small_full_store_makes_room_for_as_much_as_was_wanted():
    journal = Journal()
    planner = Planner(GEOMETRY, range(256), journal=journal)
    taken = 0
    for n in range(40):
        keys = [bytes([n, m]) for m in range(64)]
        taken = len(stored(planner, *keys).transfers)
        journal.settle()
    assert taken == 64


class Stock:
    """Places in somebody else's hands."""

    def __init__(self, chunk_ids):
        self.free = list(chunk_ids)
        self.too_many = 0
        self.expected = 0
        self.returned = []

    def ready(self, wanted):
        given, self.free = self.free[:wanted], self.free[wanted:]
        return given

    def coming(self):
        return self.expected

    def take_excess(self):
        asked, self.too_many = self.too_many, 0
        return asked

    def let_go(self, chunk_ids):
        self.returned += chunk_ids


def test_places_come_from_whoever_has_them():
    stock = Stock([3])
    planner = Planner(GEOMETRY, range(8), places=stock)
    plan = planner.plan_store(candidates(b"a", b"b"))
    assert [transfer.chunk_id for transfer in plan.transfers] == [3]
    assert planner.counters["store_dropped_chunks"] == 1
    stock.free = [5]
    assert planner.plan_store(candidates(b"b")).transfers[0].chunk_id == 5


def test_nothing_is_evicted_for_what_comes_by_itself():
    journal, stock = Journal(), Stock(range(4))
    planner = Planner(GEOMETRY, range(8), journal=journal, places=stock)
    stored(planner, b"a", b"b", b"c", b"d")
    stock.expected = 8
    assert planner.plan_store(candidates(b"e")) is None
    assert planner.counters["evicted_chunks"] == 0
    stock.expected = 0
    planner.plan_store(candidates(b"f"))
    assert planner.counters["evicted_chunks"] > 0


def test_places_that_must_not_be_used_are_given_up_after_their_chunks_are_durably_gone():
    journal, stock = Journal(), Stock(range(5))
    planner = Planner(GEOMETRY, range(8), journal=journal, places=stock)
    stored(planner, b"a", b"b", b"c")
    stock.too_many = 4
    planner.settle_places()
    assert len(stock.returned) == 2, "those that were free"
    assert planner.resident_chunks == 1
    journal.settle()
    assert len(stock.returned) == 4
    assert planner.lookup_prefix([b"c"]) == 1, "the last one used stays"


def test_read_only_planner_loads_and_never_stores():
    record = Record(b"a", 3, 1, (SUM,), 1)
    planner = Planner(GEOMETRY, range(8), records=[record], read_only=True)
    assert planner.lookup_prefix([b"a"]) == 1
    assert planner.plan_store(candidates(b"b")) is None
    plan = planner.plan_load(candidates(b"a"))
    planner.complete_load(LoadResult(plan.plan_id, failed=(0,), errno=errno.EBADMSG, corrupt=(0,)))
    assert planner.lookup_prefix([b"a"]) == 0
    assert planner.plan_store(candidates(b"b")) is None


def test_chunk_that_does_not_verify_leaves_as_a_suspect():
    journal = Journal()
    planner = Planner(GEOMETRY, range(8), journal=journal)
    stored(planner, b"a", b"b")
    plan = planner.plan_load(candidates(b"a", b"b"))
    # The graver error of one chunk does not hide what is wrong with the other one.
    planner.complete_load(LoadResult(plan.plan_id, failed=(0, 1), errno=errno.EIO, corrupt=(0,)))
    suspects = [plan.transfers[0].chunk_id]
    assert journal.suspects == suspects, "an error of the drive says nothing about the place"
    assert planner.lookup_prefix([b"a"]) == planner.lookup_prefix([b"b"]) == 0
    assert planner.counters["corrupt_chunks"] == 1


def test_every_chunk_of_a_prompt_that_does_not_verify_is_a_suspect():
    # The loss of the first one takes the other along; its place is no better for that.
    journal = Journal()
    planner = Planner(GEOMETRY, range(8), journal=journal)
    keys = [b"a", b"b", b"c"]
    plan = planner.plan_store(candidates(*keys), [keys])
    planner.complete_store(0, StoreResult(plan.plan_id, (SUM,) * 3))
    plan = planner.plan_load(candidates(*keys))
    planner.complete_load(LoadResult(plan.plan_id, failed=(0, 1), errno=errno.EBADMSG, corrupt=(0, 1)))
    assert sorted(journal.suspects) == sorted(each.chunk_id for each in plan.transfers[:2])
    assert planner.counters["corrupt_chunks"] == 2 and planner.counters["lost_chunks"] == 3


def test_a_watcher_sees_each_chunk_come_and_go():
    planner = Planner(GEOMETRY, range(2), ranks=2)
    seen = []
    planner.watch(lambda key: seen.append(("+", key)), lambda key: seen.append(("-", key)))
    plan = planner.plan_store(candidates(b"a", b"b"))
    planner.complete_store(0, StoreResult(plan.plan_id, (SUM, SUM)))
    assert seen == [], "not before every rank has it"
    planner.complete_store(1, StoreResult(plan.plan_id, (SUM, None)))
    assert seen == [("+", b"a")], "what a rank did not store never comes"
    stored(planner, b"c", b"d", ranks=2)
    assert seen[1:] == [("-", b"a"), ("+", b"c"), ("+", b"d")], "evicted for room"
    load = planner.plan_load([(b"c", ((4, 5),))])
    planner.complete_load(LoadResult(load.plan_id, (0,), errno.EBADMSG, corrupt=(0,)))
    planner.complete_load(LoadResult(load.plan_id))
    assert seen[4:] == [("-", b"c")], "damaged"
    planner.reset()
    assert seen[5:] == [("-", b"d")]


def test_a_watcher_hears_what_was_resident_only_when_it_goes():
    planner = Planner(GEOMETRY, range(2), records=[Record(b"a", 0, 1, (SUM,), 0)])
    seen = []
    planner.watch(seen.append, seen.append)
    planner.plan_load([(b"a", ((4, 5),))])
    assert seen == []
    planner.reset()
    assert seen == [b"a"]


def test_what_was_stored_is_resident_or_was_counted_out():
    planner = Planner(GEOMETRY, range(4), records=[Record(b"r", 0, 1, (SUM,), 0)])
    stored(planner, b"a", b"b", b"c")
    stored(planner, b"d", b"e")
    load = planner.plan_load([(b"d", ((4, 5),))])
    planner.complete_load(LoadResult(load.plan_id, (0,), errno.EIO))
    plan = planner.plan_store(candidates(b"p", b"q"), [[b"p", b"q"]])
    planner.complete_store(0, StoreResult(plan.plan_id, (SUM, SUM)))
    load = planner.plan_load([(b"p", ((4, 5),))])
    planner.complete_load(LoadResult(load.plan_id, (0,), errno.EBADMSG, corrupt=(0,)))
    counters = planner.counters.snapshot()
    assert counters["lost_chunks"] == 3, "d, and p with q, which goes on from it"
    planner.reset()
    counters = planner.counters.snapshot()
    gone = sum(counters.get(f"{how}_chunks", 0) for how in ("evicted", "expired", "lost", "reset"))
    assert planner.resident_chunks == 0 and counters["evicted_chunks"] > 0 and counters["reset_chunks"] > 0
    assert 1 + counters["store_chunks"] == gone


def test_a_rank_that_reports_twice_does_not_speak_for_the_other():
    planner = Planner(GEOMETRY, range(8), ranks=2)
    plan = planner.plan_store(candidates(b"a"))
    assert not planner.complete_store(0, StoreResult(plan.plan_id, (SUM,)))
    assert not planner.complete_store(0, StoreResult(plan.plan_id, (SUM,)))
    assert planner.lookup_prefix([b"a"]) == 0
    assert planner.complete_store(1, StoreResult(plan.plan_id, (SUM,)))
    assert planner.lookup_prefix([b"a"]) == 1


def test_what_goes_on_from_a_store_that_failed_is_counted_out():
    planner = Planner(GEOMETRY, range(4))
    first = planner.plan_store(candidates(b"p"), [[b"p"]])
    second = planner.plan_store(candidates(b"q"), [[b"p", b"q"]])
    planner.complete_store(0, StoreResult(second.plan_id, (SUM,)))
    assert planner.resident_chunks == 1
    planner.complete_store(0, StoreResult(first.plan_id, (None,), errno=errno.EIO))
    counters = planner.counters.snapshot()
    assert (planner.resident_chunks, counters["store_chunks"], counters["lost_chunks"]) == (0, 1, 1)
