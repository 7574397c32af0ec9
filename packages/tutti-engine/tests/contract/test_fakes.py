# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator

import pytest

from tutti_engine.backend import StorageBackend
from tutti_engine.backends.memory import MemoryBackend
from tutti_engine.testing.conformance import Bench
from tutti_engine.testing.fakes import (
    DelayedBackend,
    FailingBackend,
    HangingBackend,
    PartialBackend,
    PoisoningBackend,
    ReorderingBackend,
    ShortBackend,
)
from tutti_engine.testing.window import POISON, HostWindow

SEGMENT = 4096
Setup = Callable[[StorageBackend], Bench]


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend(num_layers=2, segment_bytes=SEGMENT, num_chunks=4)


@pytest.fixture
def bind() -> Iterator[Setup]:
    made: list[Bench] = []

    def make(backend: StorageBackend) -> Bench:
        made.append(Bench(backend, 4, 2, HostWindow(8, SEGMENT)))
        return made[-1]

    yield make
    for bench in made:
        bench.backend.shutdown()


def test_delayed_starts_nothing_before_release(memory: MemoryBackend, bind: Setup) -> None:
    delayed = DelayedBackend(memory)
    bench = bind(delayed)
    first = delayed.read_segments(bench.batch(bench.segments[:1], [0]))
    second = delayed.read_segments(bench.batch(bench.segments[1:2], [1]))
    assert delayed.waiting == 2
    assert set(bench.window.slot(0)) == {POISON}
    with pytest.raises(RuntimeError):
        first.status()
    delayed.release(1)
    assert bench.finish(first) == [0]
    assert set(bench.window.slot(0)) == {0}
    assert not second.poll()
    assert set(bench.window.slot(1)) == {POISON}


def test_delayed_lets_go_after_so_many_polls(memory: MemoryBackend, bind: Setup) -> None:
    delayed = DelayedBackend(memory, polls=3)
    bench = bind(delayed)
    handle = delayed.read_segments(bench.batch(bench.segments[:1], [0]))
    assert [handle.poll(), handle.poll(), delayed.waiting] == [False, False, 1]
    handle.poll()
    assert delayed.waiting == 0
    assert bench.finish(handle) == [0]


def test_reordering_finishes_the_youngest_first(memory: MemoryBackend, bind: Setup) -> None:
    reordering = ReorderingBackend(memory)
    bench = bind(reordering)
    handles = [reordering.read_segments(bench.batch([bench.segments[slot]], [slot])) for slot in range(4)]
    assert bench.finish(handles[0]) == [0]
    assert reordering.wait_idle(time.monotonic() + 30)
    assert reordering.finished_order == handles[::-1]


def test_failing_keeps_the_others_and_leaves_rubbish(memory: MemoryBackend, bind: Setup) -> None:
    failing = FailingBackend(memory, errno.ENOSPC, lambda direction, chunk, layer, slot: slot == 1)
    bench = bind(failing)
    batch = bench.batch(bench.segments[:3], range(3))
    assert bench.finish(failing.read_segments(batch)) == [0, errno.ENOSPC, 0]
    assert set(bench.window.slot(1)) == {POISON}
    assert failing.failed == 1
    failing.failing = False
    assert bench.finish(failing.read_segments(batch)) == [0, 0, 0]


@pytest.mark.parametrize("accept", range(4))
def test_partial_accepts_the_first_and_does_nothing_of_the_rest(
    accept: int, memory: MemoryBackend, bind: Setup
) -> None:
    bench = bind(PartialBackend(memory, accept))
    status = bench.finish(bench.backend.read_segments(bench.batch(bench.segments[:3], range(3))))
    assert status == [0] * accept + [errno.EAGAIN] * (3 - accept)
    for slot in range(3):
        assert set(bench.window.slot(slot)) == ({0} if slot < accept else {POISON})


def test_short_moves_half_and_gives_the_slot_back_whole(memory: MemoryBackend, bind: Setup) -> None:
    short = ShortBackend(memory, lambda direction, chunk, layer, slot: layer == 1)
    bench = bind(short)
    whole, torn = bench.fill(0, "a"), bench.fill(1, "b")
    segments = bench.segments[:2]
    assert bench.finish(short.write_segments(bench.batch(segments, [0, 1]))) == [0, errno.EIO]
    assert bytes(bench.window.slot(1)) == torn
    bench.finish(memory.read_segments(bench.batch(segments, [2, 3])))
    assert bytes(bench.window.slot(2)) == whole
    assert bytes(bench.window.slot(3)) == torn[: SEGMENT // 2] + bytes([POISON]) * (SEGMENT // 2)


def test_hanging_hangs_and_its_shutdown_does_not(memory: MemoryBackend, bind: Setup) -> None:
    hanging = HangingBackend(memory)
    bench = bind(hanging)
    handle = hanging.read_segments(bench.batch(bench.segments[:1], [0]))
    assert not hanging.wait_idle(time.monotonic())
    hanging.shutdown()
    assert not handle.poll()
    assert set(bench.window.slot(0)) == {POISON}


def test_hanging_heals(memory: MemoryBackend, bind: Setup) -> None:
    hanging = HangingBackend(memory)
    bench = bind(hanging)
    handle = hanging.read_segments(bench.batch(bench.segments[:1], [0]))
    hanging.heal()
    assert bench.finish(handle) == [0]
    assert bench.finish(hanging.read_segments(bench.batch(bench.segments[:1], [1]))) == [0]


def test_poisoning_hides_even_an_instant_read(memory: MemoryBackend, bind: Setup) -> None:
    poisoning = PoisoningBackend(memory)
    bench = bind(poisoning)
    data = bench.fill(0, "a")
    assert bench.finish(poisoning.write_segments(bench.batch(bench.segments[:1], [0]))) == [0]
    assert set(bench.window.slot(0)) == {POISON}, "a written slot is worth nothing"
    handle = poisoning.read_segments(bench.batch(bench.segments[:1], [0]))
    assert set(bench.window.slot(0)) == {POISON}
    assert handle.poll()
    assert bytes(bench.window.slot(0)) == data
    bench.fill(0, "the owner goes on")
    assert handle.poll()
    assert set(bench.window.slot(0)) != {POISON}


def test_poisoning_keeps_the_slots_of_writes_that_may_be_tried_again(
    memory: MemoryBackend, bind: Setup
) -> None:
    bench = bind(PoisoningBackend(PartialBackend(memory, 1)))
    first, second = bench.fill(0, "a"), bench.fill(1, "b")
    bench.transfer("write", bench.segments[:2], [0, 1])
    assert bench.load(bench.segments[:2]) == dict(zip(bench.segments, (first, second)))
