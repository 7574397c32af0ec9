# SPDX-License-Identifier: Apache-2.0
"""What every storage backend has to do. Subclass ``BackendConformance`` in a test suite::

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path, self.num_chunks, self.num_layers, self.segment_bytes)

Needs pytest (``pip install 'tutti-engine[testing]'``).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from tutti_engine.backend import SegmentBatch, SegmentHandle, StorageBackend
from tutti_engine.plan import ChunkId
from tutti_engine.testing.fakes import (
    DelayedBackend,
    FailingBackend,
    PartialBackend,
    PoisoningBackend,
    ShortBackend,
    WrappedBackend,
)
from tutti_engine.testing.window import POISON, HostWindow

__all__ = ["BackendConformance", "Bench"]

PATIENCE = 30.0
"""Seconds after which a test says that a backend hangs. No test measures time."""

Segment = tuple[ChunkId, int]
"""Chunk id and layer."""


class Bench:
    """A bound backend with its window and a little vocabulary."""

    def __init__(self, backend: StorageBackend, num_chunks: int, num_layers: int, window: HostWindow) -> None:
        self.backend = backend
        self.num_layers = num_layers
        self.window = window
        self.ids = list(backend.chunk_ids(num_chunks))
        backend.bind_staging(window)

    @property
    def segments(self) -> list[Segment]:
        """All segments that there is room for."""
        return [(chunk, layer) for chunk in self.ids for layer in range(self.num_layers)]

    def fill(self, slot: int, seed: object) -> bytes:
        """Fill a slot with bytes that depend on ``seed`` alone and return them."""
        data = random.Random(repr(seed)).randbytes(self.window.slot_bytes)
        self.window.slot(slot)[:] = data
        return data

    def batch(self, segments: Sequence[Segment], slots: Sequence[int]) -> SegmentBatch:
        """Return a batch that pairs segments and slots."""
        return SegmentBatch([chunk for chunk, _ in segments], [layer for _, layer in segments], list(slots))

    def finish(self, handle: SegmentHandle) -> list[int]:
        """Wait for a handle and return its status, which must not change any more."""
        assert handle.wait(time.monotonic() + PATIENCE), "the batch did not finish"
        assert handle.poll()
        status = list(handle.status())
        assert list(handle.status()) == status
        return status

    def transfer(self, direction: str, segments: Sequence[Segment], slots: Sequence[int]) -> int:
        """Write or read segments, offering those that found no room again; return the number of rounds."""
        start = self.backend.write_segments if direction == "write" else self.backend.read_segments
        left = list(zip(segments, slots))
        rounds = 0
        while left:
            rounds += 1
            assert rounds <= 10 * len(segments) + 10, "rounds without progress"
            status = self.finish(start(self.batch([s for s, _ in left], [slot for _, slot in left])))
            assert len(status) == len(left)
            assert set(status) <= {0, errno.EAGAIN}, f"{direction} failed: {status}"
            left = [each for each, code in zip(left, status) if code == errno.EAGAIN]
        return rounds

    def store(self, segments: Sequence[Segment], generation: object = 0) -> dict[Segment, bytes]:
        """Write segments, as many at a time as the window has slots, and return their bytes."""
        written = {}
        for some in self._portions(segments):
            for slot, segment in enumerate(some):
                written[segment] = self.fill(slot, (segment, generation))
            self.transfer("write", some, range(len(some)))
        return written

    def load(self, segments: Sequence[Segment]) -> dict[Segment, bytes]:
        """Read segments into poisoned slots and return their bytes."""
        found = {}
        for some in self._portions(segments):
            self.poison()
            self.transfer("read", some, range(len(some)))
            for slot, segment in enumerate(some):
                found[segment] = bytes(self.window.slot(slot))
        return found

    def poison(self) -> None:
        """Overwrite the whole window."""
        self.window.memory[:] = bytes([POISON]) * self.window.nbytes

    def _portions(self, segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
        for start in range(0, len(segments), self.window.num_slots):
            yield segments[start : start + self.window.num_slots]


class BackendConformance:
    """The suite. Override ``backend`` and, where the sizes do not fit, the class attributes."""

    num_chunks = 6
    num_layers = 3
    segment_bytes = 8192
    num_slots = 12

    @pytest.fixture
    def backend(self) -> StorageBackend:
        """Return a new backend, not bound yet, with room for ``num_chunks`` of this shape."""
        raise NotImplementedError("override the fixture `backend`")

    @pytest.fixture
    def closing(self, backend: StorageBackend) -> Iterator[contextlib.ExitStack]:
        """Shuts everything down after the test, wrappers first."""
        with contextlib.ExitStack() as stack:
            stack.callback(backend.shutdown)
            yield stack

    @pytest.fixture
    def bench(self, backend: StorageBackend, closing: contextlib.ExitStack) -> Bench:
        """The backend, bound."""
        return self.bind(backend, closing)

    def bind(self, backend: StorageBackend, closing: contextlib.ExitStack) -> Bench:
        """Bind a backend, or a wrapper of one."""
        if isinstance(backend, WrappedBackend):
            closing.callback(backend.shutdown)
        window = HostWindow(self.num_slots, self.segment_bytes)
        return Bench(backend, self.num_chunks, self.num_layers, window)

    # Shape.

    def test_has_the_methods_of_the_interface(self, backend: StorageBackend, closing: object) -> None:
        assert isinstance(backend, StorageBackend)

    def test_chunk_ids_are_distinct_and_enough(self, backend: StorageBackend, closing: object) -> None:
        for count in (1, self.num_chunks):
            ids = backend.chunk_ids(count)
            assert len(ids) == len(set(ids)) == count

    @pytest.mark.parametrize("count", [0, -1, 1 << 60])
    def test_impossible_number_of_chunk_ids_is_refused(
        self, backend: StorageBackend, closing: object, count: int
    ) -> None:
        with pytest.raises(ValueError):
            backend.chunk_ids(count)

    def test_nothing_can_be_moved_before_a_window_is_bound(
        self, backend: StorageBackend, closing: object
    ) -> None:
        batch = SegmentBatch([backend.chunk_ids(1)[0]], [0], [0])
        for start in (backend.write_segments, backend.read_segments):
            with pytest.raises(RuntimeError):
                start(batch)

    def test_second_window_is_refused(self, bench: Bench) -> None:
        with pytest.raises(RuntimeError):
            bench.backend.bind_staging(HostWindow(self.num_slots, self.segment_bytes))
        assert bench.store(bench.segments[:1]) == bench.load(bench.segments[:1])

    def test_window_of_another_shape_is_refused(self, backend: StorageBackend, closing: object) -> None:
        with pytest.raises(ValueError):
            backend.bind_staging(HostWindow(self.num_slots, self.segment_bytes + 4096))

    # Bytes.

    def test_round_trip_of_every_segment(self, bench: Bench) -> None:
        assert bench.store(bench.segments) == bench.load(bench.segments)

    def test_order_of_writing_and_slots_does_not_matter(self, bench: Bench) -> None:
        segments = bench.segments
        random.Random(7).shuffle(segments)
        written = bench.store(segments)
        assert bench.load(bench.segments) == written
        assert bench.load(segments[::-1]) == written

    def test_overwriting_one_segment_leaves_the_others(self, bench: Bench) -> None:
        expected = bench.store(bench.segments)
        for segment in bench.segments[:: self.num_layers + 1]:
            expected |= bench.store([segment], "second")
            assert bench.load(bench.segments) == expected

    def test_reads_touch_only_their_slots_and_writes_none(self, bench: Bench) -> None:
        bench.store(bench.segments[:2])
        bench.poison()
        bench.transfer("read", bench.segments[:1], [3])
        data = bytes(bench.window.slot(3))
        before = bytes(bench.window.memory)
        assert before.count(POISON) >= (self.num_slots - 1) * self.segment_bytes
        for slot in range(self.num_slots):
            assert (set(bench.window.slot(slot)) == {POISON}) is (slot != 3)
        bench.transfer("write", bench.segments[1:2], [3])
        assert set(bench.window.slot(2)) == set(bench.window.slot(4)) == {POISON}
        assert bench.load(bench.segments[:2]) == dict.fromkeys(bench.segments[:2], data)

    def test_neighbours_in_storage_and_window_come_apart_again(self, bench: Bench) -> None:
        written = bench.store(bench.segments[: self.num_layers])
        orders = list(itertools.permutations(range(self.num_layers)))
        for layers, slots in [(order, orders[0]) for order in orders] + [
            (orders[0], order) for order in orders
        ]:
            bench.poison()
            segments = [(bench.ids[0], layer) for layer in layers]
            bench.transfer("read", segments, slots)
            found = {segment: bytes(bench.window.slot(slot)) for slot, segment in zip(slots, segments)}
            assert found == written

    def test_empty_batch_finishes(self, bench: Bench) -> None:
        assert bench.finish(bench.backend.write_segments(SegmentBatch([], [], []))) == []
        assert bench.finish(bench.backend.read_segments(SegmentBatch([], [], []))) == []

    # Bad batches.

    @pytest.mark.parametrize("bad", ["chunk", "layer below", "layer above", "slot below", "slot above"])
    def test_batch_with_one_foreign_number_starts_nothing(self, bench: Bench, bad: str) -> None:
        good = bench.segments[0]
        expected = bench.store([good])
        foreign = {
            "chunk": ((object(), 0), 1),
            "layer below": ((bench.ids[1], -1), 1),
            "layer above": ((bench.ids[1], self.num_layers), 1),
            "slot below": ((bench.ids[1], 0), -1),
            "slot above": ((bench.ids[1], 0), self.num_slots),
        }[bad]
        bench.fill(0, "must not be written")
        window = bytes(bench.window.memory)
        batch = bench.batch([good, foreign[0]], [0, foreign[1]])
        for start in (bench.backend.write_segments, bench.backend.read_segments):
            with pytest.raises(ValueError):
                start(batch)
        assert bench.backend.wait_idle(time.monotonic() + PATIENCE)
        assert bytes(bench.window.memory) == window
        assert bench.load([good]) == expected

    @pytest.mark.parametrize("chunk", [-1, 1 << 62, "chunk", None, 0.5, b"0", ()])
    def test_chunk_ids_that_were_never_given_out_are_refused(self, bench: Bench, chunk: ChunkId) -> None:
        with pytest.raises(ValueError):
            bench.backend.read_segments(SegmentBatch([chunk], [0], [0]))

    # Handles.

    def test_status_before_the_end_is_refused_or_final(self, bench: Bench) -> None:
        bench.fill(0, "early")
        handle = bench.backend.write_segments(bench.batch(bench.segments[:1], [0]))
        with contextlib.suppress(RuntimeError):
            assert len(handle.status()) == 1
        bench.finish(handle)

    def test_deadline_in_the_past_only_asks(self, bench: Bench) -> None:
        bench.fill(0, "past")
        handle = bench.backend.write_segments(bench.batch(bench.segments[:1], [0]))
        deadline = time.monotonic() + PATIENCE
        while not handle.wait(0.0):
            assert time.monotonic() < deadline
        assert handle.poll()

    def test_many_batches_in_flight_from_many_threads(self, bench: Bench) -> None:
        expected = bench.store(bench.segments[: self.num_slots])
        bench.poison()
        failures: list[BaseException] = []

        def load(slot: int) -> None:
            try:
                for _ in range(5):
                    bench.transfer("read", [bench.segments[slot]], [slot])
                    assert bytes(bench.window.slot(slot)) == expected[bench.segments[slot]]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=load, args=(slot,)) for slot in range(self.num_slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not failures

    def test_wait_idle_finishes_what_nobody_waited_for(self, bench: Bench) -> None:
        handles = []
        for slot in range(self.num_slots):
            bench.fill(slot, slot)
            handles.append(bench.backend.write_segments(bench.batch([bench.segments[slot]], [slot])))
        assert bench.backend.wait_idle(time.monotonic() + PATIENCE)
        assert all(handle.poll() for handle in handles)
        assert bench.backend.wait_idle(0.0)

    # End.

    def test_shutdown_twice_and_nothing_after_it(self, bench: Bench) -> None:
        bench.store(bench.segments[:1])
        bench.backend.shutdown()
        bench.backend.shutdown()
        with pytest.raises(RuntimeError):
            bench.backend.write_segments(bench.batch(bench.segments[:1], [0]))
        assert bench.backend.wait_idle(0.0)

    def test_shutdown_before_a_window_is_bound(self, backend: StorageBackend) -> None:
        backend.shutdown()
        backend.shutdown()

    def test_shutdown_under_load_ends_every_batch(self, bench: Bench) -> None:
        handles = []
        for slot in range(self.num_slots):
            bench.fill(slot, slot)
            handles.append(bench.backend.write_segments(bench.batch([bench.segments[slot]], [slot])))
        bench.backend.shutdown()
        for handle in handles:
            (status,) = bench.finish(handle)
            assert isinstance(status, int)

    # The same backend behind a layer that misbehaves: what an engine is tested with.

    @pytest.mark.parametrize("accept", [1, 2, 5])
    def test_segments_without_room_succeed_when_offered_again(
        self, backend: StorageBackend, closing: contextlib.ExitStack, accept: int
    ) -> None:
        bench = self.bind(PartialBackend(backend, accept), closing)
        some = bench.segments[:5]
        written = {segment: bench.fill(slot, segment) for slot, segment in enumerate(some)}
        rounds = bench.transfer("write", some, range(5))
        assert rounds >= -(-5 // accept)
        assert bench.load(some) == written

    def test_delayed_batch_takes_its_slots_until_it_is_finished(
        self, backend: StorageBackend, closing: contextlib.ExitStack
    ) -> None:
        delayed = DelayedBackend(backend)
        bench = self.bind(delayed, closing)
        bench.fill(0, "early")
        handle = delayed.write_segments(bench.batch(bench.segments[:1], [0]))
        assert not handle.poll()
        assert not handle.wait(time.monotonic())
        assert not delayed.wait_idle(time.monotonic())
        late = bench.fill(0, "late")
        delayed.polls = 1
        bench.finish(handle)
        assert bench.load(bench.segments[:1]) == {bench.segments[0]: late}, "slots are read when I/O runs"

    def test_failures_are_told_for_each_segment(
        self, backend: StorageBackend, closing: contextlib.ExitStack
    ) -> None:
        failing = FailingBackend(backend, errno.EIO, lambda direction, chunk, layer, slot: layer == 1)
        failing.failing = False
        bench = self.bind(failing, closing)
        segments = bench.segments[: 2 * self.num_layers]
        written = bench.store(segments)
        failing.failing = True
        bench.poison()
        status = bench.finish(failing.read_segments(bench.batch(segments, range(len(segments)))))
        for slot, segment in enumerate(segments):
            bad = segment[1] == 1
            # Room may be short on some backends; nothing but the chosen segments fails.
            assert status[slot] == errno.EIO if bad else status[slot] in (0, errno.EAGAIN)
            if status[slot] == 0:
                assert bytes(bench.window.slot(slot)) == written[segment]

    def test_short_transfers_are_errors(self, backend: StorageBackend, closing: contextlib.ExitStack) -> None:
        bench = self.bind(ShortBackend(backend), closing)
        data = bench.fill(0, "whole")
        assert bench.finish(bench.backend.write_segments(bench.batch(bench.segments[:1], [0]))) != [0]
        assert bytes(bench.window.slot(0)) == data
        assert bench.finish(bench.backend.read_segments(bench.batch(bench.segments[:1], [0]))) != [0]
        assert set(bench.window.slot(0)[self.segment_bytes // 2 :]) == {POISON}

    def test_unfinished_reads_show_poison(
        self, backend: StorageBackend, closing: contextlib.ExitStack
    ) -> None:
        poisoning = PoisoningBackend(DelayedBackend(backend, polls=2))
        bench = self.bind(poisoning, closing)
        written = bench.store(bench.segments[:2])
        bench.window.slot(0)[:] = bytes(self.segment_bytes)
        handle = poisoning.read_segments(bench.batch(bench.segments[:1], [0]))
        assert set(bench.window.slot(0)) == {POISON}
        if bench.finish(handle) == [0]:
            assert bytes(bench.window.slot(0)) == written[bench.segments[0]]
