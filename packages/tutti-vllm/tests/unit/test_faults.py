# SPDX-License-Identifier: Apache-2.0
"""The backend of the differential test does what its mix says, and hides what it did only where it should."""

import errno
import time

import pytest

from tutti_engine.backend import SegmentBatch
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.testing.window import HostWindow
from tutti_vllm.testing.faults import FaultMix, FaultyBackend

SEGMENT = 4096


class Bench:
    def __init__(self):
        self.mix = FaultMix()
        self.window = HostWindow(16, SEGMENT)
        self.memory = MemoryBackend(num_layers=2, segment_bytes=SEGMENT, num_chunks=4)
        self.backend = FaultyBackend(self.memory, lambda: self.mix, seed=4, hang_seconds=0.05)
        self.backend.bind_staging(self.window)

    def batch(self, first_slot):
        return SegmentBatch([0, 0, 1, 1, 2, 2, 3, 3], [0, 1] * 4, [first_slot + n for n in range(8)])

    def end(self, handle):
        assert handle.wait(time.monotonic() + 30)
        return list(handle.status())

    def store(self):
        for slot in range(8):
            self.window.slot(slot)[:] = bytes([slot + 1]) * SEGMENT
        return self.end(self.backend.write_segments(self.batch(0)))

    def load(self):
        for slot in range(8, 16):
            self.window.slot(slot)[:] = bytes(SEGMENT)
        statuses = self.end(self.backend.read_segments(self.batch(8)))
        right = [bytes(self.window.slot(8 + n)) == bytes([n + 1]) * SEGMENT for n in range(8)]
        return statuses, right


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.backend.shutdown()


def test_without_faults_bytes_come_back(bench):
    assert bench.store() == [0] * 8
    assert bench.load() == ([0] * 8, [True] * 8)


@pytest.mark.parametrize(
    ("kind", "code"), [("error", errno.EIO), ("full", errno.ENOSPC), ("short", errno.EIO)]
)
def test_some_segments_fail_and_say_so(bench, kind, code):
    bench.store()
    bench.mix = FaultMix(**{kind: 1.0})
    statuses, right = bench.load()
    assert set(statuses) == {0, code}
    assert all(ok == (status == 0) for status, ok in zip(statuses, right))


def test_what_is_not_accepted_may_be_tried_again(bench):
    bench.store()
    bench.mix = FaultMix(partial=1.0)
    statuses, right = bench.load()
    assert statuses == [0] + [errno.EAGAIN] * 7
    assert right[0]


def test_a_refused_batch_raises(bench):
    bench.mix = FaultMix(refused=1.0)
    with pytest.raises(RuntimeError, match="injected"):
        bench.store()


@pytest.mark.parametrize("direction", ["store", "load"])
def test_damage_is_not_told(bench, direction):
    bench.mix = FaultMix(corrupt=float(direction == "store"))
    assert bench.store() == [0] * 8
    assert all(bytes(bench.window.slot(n)) == bytes([n + 1]) * SEGMENT for n in range(8)), "slots are kept"
    bench.mix = FaultMix(corrupt=float(direction == "load"))
    statuses, right = bench.load()
    assert statuses == [0] * 8
    assert not all(right)


@pytest.mark.parametrize("kind", ["late", "hang"])
def test_late_batches_end_well(bench, kind):
    bench.mix = FaultMix(**{kind: 1.0})
    assert bench.store() == [0] * 8
    assert bench.load() == ([0] * 8, [True] * 8)


def test_a_shutdown_ends_what_hangs(bench):
    bench.backend._hang_seconds = 3600.0
    bench.mix = FaultMix(hang=1.0)
    handle = bench.backend.write_segments(bench.batch(0))
    assert not handle.poll()
    bench.backend.shutdown()
    assert handle.poll()
