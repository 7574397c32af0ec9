# SPDX-License-Identifier: Apache-2.0
"""What every shared store has to do. Subclass ``SharedStoreConformance`` in a test suite::

    class TestMyStore(SharedStoreConformance):
        @pytest.fixture
        def stores(self, my_server):
            return MyStore(my_server), MyStore(my_server)

Needs pytest (``pip install 'tutti-engine[testing]'``).
"""

from __future__ import annotations

import errno
import random
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest

from tutti_engine.shared.store import ObjectBatch, ObjectHandle, SharedStore
from tutti_engine.testing.window import POISON, HostWindow

__all__ = ["SharedBench", "SharedStoreConformance"]

PATIENCE = 60.0
"""Seconds after which a test says that a store hangs. No test measures time."""


class SharedBench:
    """A bound store with its windows and a little vocabulary."""

    def __init__(self, store: SharedStore, num_slots: int, segment_bytes: int, header_bytes: int) -> None:
        self.store = store
        self.window = HostWindow(num_slots, segment_bytes)
        self.headers = HostWindow(num_slots, header_bytes)
        store.bind_staging(self.window, self.headers)

    def fill(self, slot: int, segments: int, seed: object) -> tuple[bytes, bytes]:
        """Fill an object's memory with bytes that depend on ``seed`` alone; return header and body."""
        chance = random.Random(repr(seed))
        self.headers.slot(slot)[:] = head = chance.randbytes(self.headers.slot_bytes)
        body = chance.randbytes(segments * self.window.slot_bytes)
        self._body(slot, segments)[:] = body
        return head, body

    def clear(self) -> None:
        """Poison both windows."""
        self.window.memory[:] = bytes([POISON]) * self.window.nbytes
        self.headers.memory[:] = bytes([POISON]) * self.headers.nbytes

    def seen(self, slot: int, segments: int) -> tuple[bytes, bytes]:
        """Return what an object's memory holds."""
        return bytes(self.headers.slot(slot)), bytes(self._body(slot, segments))

    def finish(self, handle: ObjectHandle) -> list[int]:
        """Wait for a handle and return its status, which must not change any more."""
        assert handle.wait(time.monotonic() + PATIENCE), "the batch did not finish"
        assert handle.poll()
        status = list(handle.status())
        assert list(handle.status()) == status
        return status

    def write(self, names: Sequence[str], slots: Sequence[int], segments: int) -> list[int]:
        """Write a batch; return its status."""
        return self.finish(self.store.write_objects(ObjectBatch(names, slots, segments)))

    def read(self, names: Sequence[str], slots: Sequence[int], segments: int) -> list[int]:
        """Read a batch; return its status."""
        return self.finish(self.store.read_objects(ObjectBatch(names, slots, segments)))

    def _body(self, slot: int, segments: int) -> memoryview:
        size = self.window.slot_bytes
        return self.window.memory[slot * size : (slot + segments) * size]


class SharedStoreConformance:
    """The suite. ``stores`` are two clients of one store, neither of them bound."""

    num_slots = 24
    segment_bytes = 8192
    header_bytes = 4096

    @pytest.fixture
    def stores(self) -> tuple[SharedStore, SharedStore]:
        """Return two clients of one store."""
        raise NotImplementedError("a suite returns the stores that it is about")

    @pytest.fixture
    def benches(self, stores: tuple[SharedStore, SharedStore]) -> Iterator[tuple[SharedBench, SharedBench]]:
        """Return both clients, bound."""
        one, other = (
            SharedBench(store, self.num_slots, self.segment_bytes, self.header_bytes) for store in stores
        )
        yield one, other
        for store in stores:
            store.shutdown()

    @staticmethod
    def names(count: int) -> list[str]:
        """Return names that nobody has used before."""
        return [f"tutti-test/{uuid.uuid4().hex}/{number}.0/ab" for number in range(count)]

    def test_what_one_client_wrote_another_reads(self, benches: tuple[SharedBench, SharedBench]) -> None:
        one, other = benches
        names, slots = self.names(5), [0, 3, 6, 9, 20]
        wrote = [one.fill(slot, 3, name) for name, slot in zip(names, slots)]
        assert one.write(names, slots, 3) == [0] * 5
        assert list(other.store.exists(names)) == [True] * 5
        other.clear()
        target = [21, 0, 12, 3, 9]
        assert other.read(names, target, 3) == [0] * 5
        assert [other.seen(slot, 3) for slot in target] == wrote

    def test_reads_touch_no_other_slot(self, benches: tuple[SharedBench, SharedBench]) -> None:
        one, other = benches
        (name,) = self.names(1)
        one.fill(4, 2, name)
        one.write([name], [4], 2)
        other.clear()
        assert other.read([name], [8], 2) == [0]
        poison = {bytes([POISON])}
        for slot in {*range(self.num_slots)} - {8, 9}:
            head, body = other.seen(slot, 1)
            assert {head[:1], body[:1], head[-1:], body[-1:]} == poison

    def test_objects_that_nobody_wrote_are_not_there(self, benches: tuple[SharedBench, SharedBench]) -> None:
        one, other = benches
        there, gone, never = self.names(3)
        for name in (there, gone):
            one.fill(0, 1, name)
            one.write([name], [0], 1)
        wrote = one.fill(0, 1, there)
        one.store.remove([gone, never])
        assert list(other.store.exists([never, there, gone])) == [False, True, False]
        assert other.read([never, there, gone], [1, 2, 3], 1) == [errno.ENOENT, 0, errno.ENOENT]
        assert other.seen(2, 1) == wrote

    def test_an_object_that_is_there_stays_as_it_is(self, benches: tuple[SharedBench, SharedBench]) -> None:
        one, other = benches
        (name,) = self.names(1)
        first = one.fill(0, 1, "first")
        assert one.write([name], [0], 1) == [0]
        other.fill(0, 1, "second")
        assert other.write([name], [0], 1) == [0]
        assert one.read([name], [5], 1) == [0]
        assert one.seen(5, 1) == first

    def test_an_object_of_another_size_is_no_hit(self, benches: tuple[SharedBench, SharedBench]) -> None:
        one, other = benches
        names = self.names(2)
        one.fill(0, 2, "two")
        assert one.write(names, [0, 0], 2) == [0, 0]
        assert set(other.read(names[:1], [0], 1) + other.read(names[1:], [0], 3)) <= {
            errno.EBADMSG,
            errno.ENOENT,
            errno.EIO,
        }

    def test_bad_slots_are_refused_before_anything_is_written(
        self, benches: tuple[SharedBench, SharedBench]
    ) -> None:
        one, _ = benches
        names = self.names(2)
        with pytest.raises(ValueError):
            one.store.write_objects(ObjectBatch(names, [0, self.num_slots - 1], 2))
        with pytest.raises(ValueError):
            one.store.read_objects(ObjectBatch(names, [0, -1], 1))
        assert list(one.store.exists(names)) == [False, False]

    def test_memory_is_bound_once_and_before_anything_moves(
        self, stores: tuple[SharedStore, SharedStore]
    ) -> None:
        one, other = stores
        assert list(one.exists(self.names(1))) == [False]
        with pytest.raises(RuntimeError):
            one.read_objects(ObjectBatch(self.names(1), [0], 1))
        bench = SharedBench(other, 4, self.segment_bytes, self.header_bytes)
        with pytest.raises(RuntimeError):
            other.bind_staging(bench.window, bench.headers)
        one.shutdown()
        other.shutdown()

    def test_an_empty_batch_is_finished(self, benches: tuple[SharedBench, SharedBench]) -> None:
        one, _ = benches
        assert one.write([], [], 1) == one.read([], [], 1) == list(one.store.exists([])) == []

    def test_it_idles_when_all_has_ended_and_shuts_down_twice(
        self, benches: tuple[SharedBench, SharedBench]
    ) -> None:
        one, _ = benches
        names = self.names(20)
        handle = one.store.write_objects(ObjectBatch(names, [0] * 20, 1))
        assert one.store.wait_idle(time.monotonic() + PATIENCE)
        assert handle.poll()
        one.store.shutdown()
        one.store.shutdown()
