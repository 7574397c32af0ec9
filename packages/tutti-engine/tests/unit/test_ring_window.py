# SPDX-License-Identifier: Apache-2.0
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.errors import GeometryError
from tutti_engine.execution.ring_window import RingWindow, SlotBank


def test_window_is_aligned_and_its_slots_are_its_memory():
    window = RingWindow(4096, 3, 2)
    assert window.address % 65536 == 0 and window.nbytes % 65536 == 0
    window.slot(4)[:] = b"\x07" * 4096
    assert bytes(window.memory[4 * 4096 : 5 * 4096]) == b"\x07" * 4096
    with pytest.raises(GeometryError, match="slot 5"):
        window.slot(5)


def test_banks_do_not_share_slots():
    window = RingWindow(4096, 3, 2)
    loads = [window.loads.acquire(1, 0.0) for _ in range(3)]
    stores = [window.stores.acquire(1, 0.0) for _ in range(2)]
    assert sorted(loads + stores) == list(range(5))
    assert window.loads.acquire(1, 0.0) is None


@given(st.lists(st.integers(0, 11), unique=True), st.integers(1, 5), st.integers(0, 6))
def test_runs_that_are_free_now_are_taken_together(busy, count, runs):
    bank = SlotBank(10, 12)
    for _ in range(12):
        bank.acquire(1, 0.0)
    for slot in set(range(12)) - set(busy):
        bank.release(10 + slot, 1)
    taken = bank.acquire_free(count, runs)
    slots = [slot for first in taken for slot in range(first, first + count)]
    assert len(set(slots)) == len(slots) and not {slot - 10 for slot in slots} & set(busy)
    assert bank.busy == len(busy) + len(slots) and len(taken) <= runs
    if len(taken) < runs:
        assert bank.acquire(count, 0.0) is None, "one more was free"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 30)), max_size=80))
def test_a_slot_is_never_given_out_twice(steps):
    bank = SlotBank(10, 12)
    taken: list[tuple[int, int]] = []
    for take, count, pick in steps:
        if take:
            slot = bank.acquire(count, 0.0)
            if slot is not None:
                run = set(range(slot, slot + count))
                assert run <= set(range(10, 22))
                assert not any(run & set(range(s, s + c)) for s, c in taken)
                taken.append((slot, count))
        elif taken:
            bank.release(*taken.pop(pick % len(taken)))
    assert bank.busy == sum(count for _, count in taken)


def test_release_of_a_free_slot_is_refused():
    bank = SlotBank(0, 4)
    slot = bank.acquire(2, 0.0)
    bank.release(slot, 2)
    with pytest.raises(GeometryError, match="not all taken"):
        bank.release(slot, 2)


def test_a_run_larger_than_the_bank_is_refused_at_once():
    with pytest.raises(GeometryError, match="5 slots"):
        SlotBank(0, 4).acquire(5, time.monotonic() + 60)
    with pytest.raises(GeometryError, match="5 slots"):
        SlotBank(0, 4).acquire_free(5, 1)


def test_waiting_for_room_ends_with_the_release():
    bank = SlotBank(0, 1)
    slot = bank.acquire(1, 0.0)
    threading.Timer(0.05, bank.release, (slot, 1)).start()
    assert bank.acquire(1, time.monotonic() + 30) == slot


def test_the_lowest_free_run_is_taken_so_that_idle_memory_stays_untouched():
    bank = SlotBank(0, 100)
    for _ in range(5):
        assert bank.acquire(3, 0.0) == 0
        bank.release(0, 3)


def test_memory_that_was_given_back_is_no_longer_the_process_s():
    def resident_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))

    window = RingWindow(64 * 1024, 256, 256)
    window.memory[:] = b"\x01" * window.nbytes
    full = resident_kib()

    window.give_back()

    assert full - resident_kib() > window.nbytes // 1024 * 3 // 4
    assert bytes(window.slot(0)) == bytes(window.slot_bytes)


def test_the_window_is_private_and_begins_where_a_huge_page_can():
    window = RingWindow(64 * 1024, 32, 32)
    mapping = next(
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= window.address < int(line.split("-")[1].split()[0], 16)
    )

    assert window.address % (2 * 1024 * 1024) == 0
    assert mapping.split()[1].endswith("p")
