# SPDX-License-Identifier: Apache-2.0
"""Reads, writes and backends that fail."""

import errno

import pytest

from tutti_engine import Geometry
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.execution.executor import Executor
from tutti_engine.movers.plain import PlainMover

GEOMETRY = Geometry(num_layers=3, block_tokens=16, blocks_per_chunk=2, page_bytes=3000)


def test_a_read_error_fails_its_chunk_and_no_other(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    rig.backend.verdict = lambda what, chunk_id, layer: errno.EIO if (chunk_id, layer) == (0, 2) else 0
    result = rig.load((0, (10, 11)), (1, (12, 13)))
    assert (result.failed, result.errno) == ((0,), errno.EIO)
    assert rig.content(13) == contents[3]


def test_a_write_error_on_one_layer_makes_the_chunk_not_durable(rig):
    rig = rig()
    rig.backend.verdict = lambda what, chunk_id, layer: errno.ENOSPC if (chunk_id, layer) == (1, 0) else 0
    for block in range(4):
        rig.fill(block)
    result = rig.store((0, (0, 1)), (1, (2, 3)))
    assert result.checksums[0] is not None and result.checksums[1] is None
    assert (result.errno, result.unsettled) == (errno.ENOSPC, ())
    assert result.bytes_written == 3 * rig.geometry.segment_bytes


def test_a_lost_chunk_fails_without_a_read(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    result = rig.load((None, (4, 5)), (0, (6, 7)))
    assert (result.failed, result.errno) == ((0,), errno.ENOENT)
    assert rig.content(6) == contents[0]


def test_a_backend_that_raises_ends_the_plan_and_not_the_thread(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))

    def refuse(batch):
        raise ValueError("no such chunk")

    good, rig.backend.read_segments = rig.backend.read_segments, refuse
    assert rig.load((0, (4, 5))).failed == (0,)
    rig.backend.read_segments = good
    assert rig.load((0, (4, 5)), plan_id=3).failed == ()
    assert rig.content(4) == contents[0]


def test_a_backend_whose_handles_break_costs_its_plan_and_not_the_thread(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)))
    good = rig.backend.read_segments

    class Broken:
        def poll(self):
            raise RuntimeError("broken")

        wait = status = lambda self, *arguments: self.poll()

    rig.backend.read_segments = lambda batch: Broken()
    assert rig.load((0, (4, 5))).errno == errno.EIO
    rig.backend.read_segments = good
    assert rig.load((0, (6, 7)), plan_id=3).failed == ()
    assert rig.content(6) == contents[0]
    # What such a handle may still write to is never used again.
    assert rig.busy_slots() == rig.geometry.num_layers
    rig.executor._keeper._lost.pop().release()


def test_a_backend_that_miscounts_its_statuses_is_not_believed(rig):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    read = rig.backend.read_segments

    def short(batch):
        handle = read(batch)
        handle._statuses = handle._statuses[:-1]
        return handle

    rig.backend.read_segments = short
    assert rig.load((0, (4, 5)), (1, (6, 7))).failed == (0, 1)
    assert rig.content(4) == rig.content(6) == rig.poison
    rig.backend.read_segments = read
    assert rig.load((0, (4, 5)), plan_id=3).failed == () and rig.content(4) == contents[0]


def test_a_mover_that_raises_fails_its_plan_alone(rig):
    rig = rig()
    rig.store_filled((0, (0, 1)))
    result = rig.load((0, (0, 1000)))
    assert (result.failed, result.errno) == ((0,), errno.EIO)
    assert rig.load((0, (4, 5)), plan_id=3).failed == ()
    result = rig.store((1, (2, 1000)), plan_id=4)
    assert (result.checksums, result.errno) == ((None,), errno.EIO)


@pytest.mark.parametrize("version", [0, 3, None, True, "2"])
def test_a_backend_of_another_spi_version_is_refused(version):
    backend = MemoryBackend(num_layers=3, segment_bytes=GEOMETRY.segment_bytes, num_chunks=1)
    backend.spi_version = version
    with pytest.raises(
        ValueError, match=r"'MemoryBackend' was written for version .* this engine speaks 1, 2"
    ):
        Executor(GEOMETRY, backend, PlainMover(GEOMETRY, []))


@pytest.mark.parametrize(
    "options",
    [{"lookahead": -1}, {"write_depth": 0}, {"max_queued_loads": 0}, {"io_timeout": -1}, {"verify": 1.5},
     {"verify": "never"}, {"verify": True}],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(rig, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        rig(**options)


@pytest.mark.parametrize("layer", range(GEOMETRY.num_layers))
@pytest.mark.parametrize("one_by_one", [False, True])
def test_any_single_layer_that_fails_fails_its_chunk_alone(rig, layer, one_by_one):
    rig = rig()
    contents = rig.store_filled((0, (0, 1)), (1, (2, 3)))
    rig.backend.verdict = lambda what, chunk_id, number: errno.EIO if (chunk_id, number) == (0, layer) else 0
    plan = rig.load_plan((0, (10, 11)), (1, (12, 13)))
    for layers in [(number,) for number in range(3)] if one_by_one else [None]:
        rig.executor.load(plan, layers)
    assert rig.result().failed == (0,)
    assert rig.content(12) == contents[2]
    plan = rig.store_plan((0, (0, 1)), (1, (2, 3)), plan_id=5)
    for layers in [(number,) for number in range(3)] if one_by_one else [None]:
        rig.executor.store(plan, layers)
    assert [sums is None for sums in rig.result().checksums] == [True, False]
