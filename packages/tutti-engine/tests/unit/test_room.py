# SPDX-License-Identifier: Apache-2.0
"""Room is made ahead of need, between two marks, by whoever calls; and places go back while nobody plans."""

from __future__ import annotations

import threading

from tutti_engine import Geometry, StoreResult
from tutti_engine.planning.planner import Planner
from tutti_engine.planning.upkeep import Upkeep

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=4096)
SUM = b"s" * 16
CAPACITY = 1024
LOW, HIGH = 32, 48


class Journal:
    """Makes removals durable at once, unless it is held."""

    def __init__(self):
        self.held = False
        self.waiting = []

    def put(self, record):
        pass

    def remove(self, slots, on_durable, *, suspect=False):
        self.waiting.append((slots, on_durable))
        if not self.held:
            self.settle()

    def settle(self):
        waiting, self.waiting = self.waiting, []
        for slots, on_durable in waiting:
            on_durable(slots)

    def touch(self, keys):
        pass

    def add(self, name, delta):
        pass


def store(planner, first, count):
    keys = [number.to_bytes(8, "big") for number in range(first, first + count)]
    plan = planner.plan_store([(key, ((0, 1),)) for key in keys])
    if plan is None:
        return 0
    planner.complete_store(0, StoreResult(plan.plan_id, (SUM,) * len(plan.transfers)))
    return len(plan.transfers)


def filled(journal):
    """Return a planner whose places are all used."""
    planner = Planner(GEOMETRY, range(CAPACITY), journal=journal)
    planner.leave_room_to(lambda: None)
    for first in range(0, CAPACITY, 8):
        store(planner, first, 8)
    assert planner.resident_chunks == CAPACITY and not planner.counters["evicted_chunks"]
    return planner


def kept_up(planner):
    """Keep up until nothing is left to do; return what went in each piece."""
    pieces, before = [], planner.counters["evicted_chunks"]
    while planner.keep_up():
        pieces.append(planner.counters["evicted_chunks"] - before - sum(pieces))
    return pieces


def test_below_the_low_mark_chunks_go_in_pieces_until_the_high_one_and_between_them_nothing_goes():
    planner = filled(Journal())
    pieces = kept_up(planner)
    assert sum(pieces) == HIGH and max(pieces) <= 32
    assert kept_up(planner) == []
    assert store(planner, 5000, HIGH - LOW) == HIGH - LOW
    assert kept_up(planner) == [], "at the low mark, not below it"
    assert store(planner, 6000, 1) == 1
    assert sum(kept_up(planner)) == HIGH - LOW + 1


def test_plans_evict_nothing_where_it_went_ahead_and_wake_who_does_it():
    planner, calls = filled(Journal()), []
    planner.leave_room_to(lambda: calls.append(1))
    kept_up(planner)
    evicted = planner.counters["evicted_chunks"]
    assert store(planner, 7000, 16) == 16 and not calls
    assert store(planner, 8000, 16) == 16 and calls
    assert planner.counters["evicted_chunks"] == evicted


def test_plans_make_room_for_the_next_ones_where_nobody_does_it_ahead():
    planner = filled(Journal())
    planner.leave_room_to(None)
    assert store(planner, 7000, 8) == 0, "removals have to be durable first"
    assert store(planner, 7000, 8) == 8
    assert planner.counters["evicted_chunks"] >= LOW


def test_removals_that_are_not_durable_count_and_no_more_goes_for_them():
    journal = Journal()
    planner = filled(journal)
    journal.held = True
    assert sum(kept_up(planner)) == HIGH
    assert kept_up(planner) == []
    assert store(planner, 7000, 8) == 0
    assert kept_up(planner) == []


def test_a_new_chunk_has_to_be_worth_more_than_the_next_to_go_also_while_there_is_room():
    planner = filled(Journal())
    kept_up(planner)
    assert planner._room.is_full(8)


def test_nothing_goes_ahead_in_a_small_store_or_one_that_is_only_read():
    planner = Planner(GEOMETRY, range(8), journal=Journal())
    planner.leave_room_to(lambda: None)
    for number in range(8):
        store(planner, number, 1)
    resident = planner.resident_chunks
    assert not planner.keep_up() and planner.resident_chunks == resident
    assert not Planner(GEOMETRY, range(CAPACITY), journal=Journal(), read_only=True).keep_up()


class Stock:
    """Places that somebody asks back while nobody plans anything."""

    def __init__(self, count):
        self.free = list(range(count))
        self.asked = 0
        self.returned = threading.Event()

    def ready(self, wanted):
        given, self.free = self.free[:wanted], self.free[wanted:]
        return given

    def coming(self):
        return 0

    def take_excess(self):
        asked, self.asked = self.asked, 0
        return asked

    def let_go(self, chunk_ids):
        if chunk_ids:
            self.returned.set()


def test_places_that_are_asked_back_go_while_the_server_is_idle():
    stock = Stock(16)
    planner = Planner(GEOMETRY, range(16), journal=Journal(), places=stock)
    store(planner, 0, 8)
    upkeep = Upkeep(planner, interval=0.01)
    assert planner.resident_chunks == 8
    stock.asked = 12
    assert stock.returned.wait(30)
    upkeep.close()
    assert planner.resident_chunks < 8


def test_planning_and_upkeep_side_by_side_never_give_a_place_twice():
    planner = filled(Journal())
    upkeep = Upkeep(planner, interval=0.001)
    open_plans = []
    for round_ in range(150):
        keys = [(10_000 + 16 * round_ + n).to_bytes(8, "big") for n in range(16)]
        plan = planner.plan_store([(key, ((0, 1),)) for key in keys])
        if plan is not None:
            open_plans.append(plan)
        in_flight = [transfer.chunk_id for each in open_plans for transfer in each.transfers]
        assert len(set(in_flight)) == len(in_flight)
        assert planner.resident_chunks + len(in_flight) <= CAPACITY
        if len(open_plans) > 3:
            done = open_plans.pop(0)
            planner.complete_store(0, StoreResult(done.plan_id, (SUM,) * len(done.transfers)))
    upkeep.close()
