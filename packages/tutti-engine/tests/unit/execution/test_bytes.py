# SPDX-License-Identifier: Apache-2.0
"""What ends up in which page, and what never does."""

import errno
import time

import pytest

from tutti_engine import SKIP_BLOCK
from tutti_engine.testing.window import POISON


def test_chunks_come_back_into_other_blocks_bit_by_bit(rig):
    rig = rig()
    contents = rig.store_filled((7, (3, 1)), (8, (0, 5)), (2, (4, 6)))
    result = rig.load((2, (30, 31)), (7, (11, 10)))
    assert (result.failed, result.errno) == ((), 0)
    assert result.bytes_read == 2 * 3 * rig.geometry.segment_bytes
    assert [rig.content(b) for b in (30, 31, 11, 10)] == [contents[b] for b in (4, 6, 3, 1)]
    untouched = set(range(rig.blocks)) - {30, 31, 11, 10}
    assert all(rig.content(block) == rig.poison for block in untouched)


def test_nothing_is_copied_before_its_read_has_finished(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    rig.backend.hold = True
    rig.executor.load(rig.load_plan((0, (2, 3))))
    rig.backend.arrived.acquire()
    rig.backend.arrived.acquire()
    assert rig.content(2) == rig.poison and rig.executor.take_results() == []
    rig.backend.held[0].finish()
    assert rig.result().failed == ()
    assert rig.content(2)[0][:2] == bytes([1, 0])


def test_damaged_bytes_reach_no_page(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    damaged = bytearray(rig.backend.bytes[0, 1])
    damaged[100] ^= 1
    rig.backend.bytes[0, 1] = bytes(damaged)
    result = rig.load((0, (10, 11)), (1, (12, 13)))
    assert (result.failed, result.errno, result.corrupt) == ((0,), errno.EBADMSG, (0,))
    assert rig.executor.counters["corrupt_chunks"] == 1
    assert rig.content(10)[1] == bytes([POISON]) * rig.geometry.page_bytes
    assert rig.content(12) == contents[2]


def test_swapped_segments_are_noticed(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)), (1, (2, 3)))
    backend = rig.backend
    backend.bytes[0, 2], backend.bytes[1, 2] = backend.bytes[1, 2], backend.bytes[0, 2]
    assert rig.load((0, (10, 11)), (1, (12, 13))).failed == (0, 1)


def test_pages_may_be_reused_as_soon_as_store_returns(rig):
    rig = rig()
    contents = rig.fill(0), rig.fill(1)
    rig.backend.hold = True
    rig.executor.store(rig.store_plan((0, (0, 1))))
    rig.wipe()
    rig.backend.arrived.acquire()
    rig.backend.hold = False
    rig.backend.held[0].finish()
    rig.sums[0] = rig.result().checksums[0]
    assert rig.load((0, (20, 21))).failed == ()
    assert (rig.content(20), rig.content(21)) == contents


def test_blocks_that_the_server_owns_are_verified_and_not_written(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    assert rig.load((0, (SKIP_BLOCK, 9))).failed == ()
    assert rig.content(9) == contents[1]
    damaged = bytearray(rig.backend.bytes[0, 0])
    damaged[0] ^= 1
    rig.backend.bytes[0, 0] = bytes(damaged)
    assert rig.load((0, (SKIP_BLOCK, 12)), plan_id=3).failed == (0,)


def test_layers_can_be_loaded_and_stored_one_by_one(rig):
    rig = rig()
    contents = rig.fill(0), rig.fill(1)
    plan = rig.store_plan((0, (0, 1)))
    for layer in range(rig.geometry.num_layers):
        assert rig.executor.take_results() == []
        rig.executor.store(plan, (layer,))
    rig.sums[0] = rig.result().checksums[0]
    rig.wipe()
    load = rig.load_plan((0, (10, 11)))
    for layer in range(rig.geometry.num_layers):
        transfer = rig.executor.load(load, (layer,))
        assert transfer.wait(time.monotonic() + 30) and transfer.ok
        assert rig.content(10)[layer] == contents[0][layer]
    assert rig.result().failed == ()


def test_only_a_fraction_is_verified_when_that_is_asked_for(rig):
    rig = rig(verify=0.5)
    rig.store_filled((0, (0, 1)))
    damaged = bytearray(rig.backend.bytes[0, 0])
    damaged[0] ^= 1
    rig.backend.bytes[0, 0] = bytes(damaged)
    failed = [rig.load((0, (10, 11)), plan_id=plan_id).failed for plan_id in range(10, 16)]
    assert failed == 3 * [(), (0,)]


def test_a_mover_that_always_verifies_does_not_pretend_to_sample(rig):
    with pytest.raises(ValueError, match=r"verify=0.5.*'always'"):
        rig(verify=0.5, skips=False)


def test_blocks_shared_by_chunks_and_a_chunk_that_is_loaded_twice(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (1, 0)), (2, (0, 0)))
    result = rig.load((0, (10, 11)), (0, (12, 13)), (1, (14, 15)), (2, (16, 17)))
    assert result.failed == ()
    found = [rig.content(block) for block in range(10, 18)]
    assert found == [contents[block] for block in (0, 1, 0, 1, 1, 0, 0, 0)]


def test_two_stores_of_one_request_in_flight_keep_their_own_bytes(rig):
    rig = rig()
    contents = rig.fill(0), rig.fill(1), rig.fill(2), rig.fill(3)
    rig.backend.hold = True
    for plan_id, blocks in ((1, (0, 1)), (2, (2, 3))):
        rig.executor.store(rig.store_plan((plan_id, blocks), plan_id=plan_id))
    rig.wipe()
    rig.arrived(2)
    for handle in reversed(rig.backend.held):
        handle.finish()
    rig.let_go()
    for result in rig.until(lambda results: len(results) == 2):
        rig.sums[result.plan_id] = result.checksums[0]
    assert rig.load((1, (20, 21)), (2, (22, 23)), plan_id=9).failed == ()
    assert tuple(rig.content(block) for block in (20, 21, 22, 23)) == contents


def test_a_plan_is_under_way_until_its_last_byte_arrived(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    executor = rig.executor
    assert (executor.store_time.under_way, executor.load_time.under_way) == (0, 0)
    assert executor.store_time.seconds() > 0 and executor.load_time.seconds() == 0
    rig.backend.hold = True
    executor.load(rig.load_plan((0, (2, 3))))
    rig.arrived(2)
    assert executor.load_time.under_way == 1
    rig.let_go()
    rig.result()
    assert executor.load_time.under_way == 0 and executor.load_time.seconds() > 0
    assert executor.data_path == "ScriptedBackend", "a backend that names no path is one itself"
