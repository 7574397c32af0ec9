# SPDX-License-Identifier: Apache-2.0
"""Bytes go where the requests say, on every data path."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runtime_kit import KIB, PAGE, Setup, batch, request, run

import tutti_runtime as tr

MIB = 1024 * KIB


def write_then_read(setup: Setup, writes: np.ndarray, reads: np.ndarray) -> None:
    assert not run(setup.runtime, writes).status.any()
    assert not run(setup.runtime, reads).status.any()


def test_written_bytes_come_back(setup: Setup) -> None:
    buffer, memory = setup.memory(MIB)
    target = setup.target(MIB)
    expected = buffer.fill_random(1)

    done = run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, 0, MIB)))
    assert done.status.tolist() == [0]
    assert done.bytes.tolist() == [MIB]

    buffer.bytes[:] = 0
    done = run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, MIB)))
    assert done.status.tolist() == [0]
    assert done.bytes.tolist() == [MIB]
    assert np.array_equal(buffer.bytes, expected)


@pytest.mark.parametrize("seed", range(4))
def test_scattered_requests_touch_only_their_own_ranges(setup: Setup, seed: int) -> None:
    """Random lengths, shuffled places in memory and in two targets, with gaps that must stay as they were."""
    rng = np.random.default_rng(seed)
    pages = 256
    buffer, memory = setup.memory(pages * PAGE)
    expected = buffer.fill_random(seed)
    targets = [setup.target(pages * PAGE), setup.target(pages * PAGE)]

    cuts = np.sort(rng.choice(np.arange(1, pages), size=40, replace=False))
    starts, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [pages]])
    order = rng.permutation(len(starts))
    places = np.zeros(len(starts), dtype=np.uint64)
    at = 0
    for index in order:  # packed in another order than in memory
        places[index] = at
        at += int(ends[index] - starts[index])
    used = order[: len(order) * 3 // 4]
    rows = [
        (int(starts[i]) * PAGE, targets[int(i) % 2], int(places[i]) * PAGE, int(ends[i] - starts[i]) * PAGE)
        for i in used
    ]
    write_then_read_all(setup, memory, buffer.bytes, rows, expected)


def write_then_read_all(
    setup: Setup, memory: int, view: np.ndarray, rows: list[tuple[int, int, int, int]], expected: np.ndarray
) -> None:
    assert not run(
        setup.runtime, batch(*[request(tr.WRITE, memory, m, t, o, n) for m, t, o, n in rows])
    ).status.any()
    view[:] = 0xA5
    done = run(setup.runtime, batch(*[request(tr.READ, memory, m, t, o, n) for m, t, o, n in rows]))
    assert not done.status.any()
    assert done.bytes.tolist() == [n for *_, n in rows]
    touched = np.zeros(view.size, dtype=bool)
    for m, _, _, n in rows:
        assert np.array_equal(view[m : m + n], expected[m : m + n])
        touched[m : m + n] = True
    assert (view[~touched] == 0xA5).all()


def test_more_requests_than_the_ring_or_the_pool_holds(
    pair: tuple[str, str], make_setup: Callable[..., Setup]
) -> None:
    setup = make_setup(pair, queue_depth=3, threads=2)
    count = 200
    buffer, memory = setup.memory(count * PAGE)
    target = setup.target(count * PAGE)
    expected = buffer.fill_random(7)
    rows = [(i * PAGE, target, (count - 1 - i) * PAGE, PAGE) for i in range(count)]
    write_then_read_all(setup, memory, buffer.bytes, rows, expected)


def test_a_hole_reads_as_zeros(setup: Setup) -> None:
    buffer, memory = setup.memory(64 * KIB)
    target = setup.target(64 * KIB)
    buffer.fill_random(3)
    assert not run(
        setup.runtime, batch(request(tr.WRITE, memory, 0, target, 16 * KIB, 16 * KIB))
    ).status.any()
    written = buffer.bytes[: 16 * KIB].copy()
    buffer.bytes[:] = 0xFF
    done = run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, 64 * KIB)))
    assert done.status.tolist() == [0]
    assert done.bytes.tolist() == [64 * KIB]
    assert not buffer.bytes[: 16 * KIB].any()
    assert np.array_equal(buffer.bytes[16 * KIB : 32 * KIB], written)
    assert not buffer.bytes[32 * KIB :].any()


def test_flush_and_its_rules(setup: Setup) -> None:
    buffer, memory = setup.memory(64 * KIB)
    target = setup.target(64 * KIB)
    buffer.fill_random(5)
    assert not run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, 0, 64 * KIB))).status.any()
    done = run(setup.runtime, batch(request(tr.FLUSH, 0, 0, target, 0, 0)))
    assert done.status.tolist() == [0]
    assert done.bytes.tolist() == [0]

    result = setup.runtime.submit(
        batch(
            request(tr.FLUSH, memory, 0, target, 0, 0),
            request(tr.FLUSH, 0, PAGE, target, 0, 0),
            request(tr.FLUSH, 0, 0, target, PAGE, 0),
            request(tr.FLUSH, 0, 0, target, 0, PAGE),
            request(tr.FLUSH, 0, 0, memory, 0, 0),
        )
    )
    assert result.handle is None
    assert result.errors.tolist() == [errno.EINVAL] * 4 + [errno.EBADF]


def test_a_read_only_target_takes_no_write(setup: Setup) -> None:
    _, memory = setup.memory(64 * KIB)
    target = setup.target(64 * KIB, writable=False)
    result = setup.runtime.submit(
        batch(request(tr.WRITE, memory, 0, target, 0, PAGE), request(tr.READ, memory, 0, target, 0, PAGE))
    )
    assert result.errors.tolist() == [errno.EACCES, 0]
    assert result.handle is not None
    assert setup.runtime.wait(result.handle, 30).status.tolist() == [0]


def test_closing_and_opening_finds_the_same_bytes(setup: Setup) -> None:
    buffer, memory = setup.memory(64 * KIB)
    uri = setup.uri(64 * KIB)
    expected = buffer.fill_random(11)
    target = setup.runtime.open(uri)
    assert not run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, 0, 64 * KIB))).status.any()
    setup.runtime.close(target)
    buffer.bytes[:] = 0
    target = setup.runtime.open(uri, writable=False)
    assert not run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, 64 * KIB))).status.any()
    assert np.array_equal(buffer.bytes, expected)


def test_the_file_holds_the_bytes(file_setup: Setup) -> None:
    """Seen without the runtime, so that two wrongs cannot make a round trip."""
    buffer, memory = file_setup.memory(128 * KIB)
    uri = file_setup.uri(256 * KIB)
    target = file_setup.runtime.open(uri)
    expected = buffer.fill_random(13)
    assert not run(
        file_setup.runtime,
        batch(
            request(tr.WRITE, memory, 64 * KIB, target, PAGE, 64 * KIB), request(tr.FLUSH, 0, 0, target, 0, 0)
        ),
    ).status.any()
    raw = next(file_setup.folder.glob("target-*")).read_bytes()
    assert len(raw) == 256 * KIB
    assert raw[PAGE : PAGE + 64 * KIB] == expected[64 * KIB :].tobytes()
    assert not any(raw[:PAGE])
    assert not any(raw[PAGE + 64 * KIB :])


def test_counters_add_up(setup: Setup) -> None:
    _, memory = setup.memory(64 * KIB)
    target = setup.target(64 * KIB)
    before = setup.runtime.stats()
    assert set(before.values()) == {0}
    run(setup.runtime, batch(*[request(tr.WRITE, memory, 0, target, i * PAGE, PAGE) for i in range(3)]))
    run(setup.runtime, batch(*[request(tr.READ, memory, i * PAGE, target, 0, PAGE) for i in range(2)]))
    assert setup.runtime.submit(batch(request(tr.READ, memory, 0, target, 1, PAGE))).handle is None
    after = setup.runtime.stats()
    moved = {
        "submitted": 6,
        "accepted": 5,
        "rejected": 1,
        "completed": 5,
        "bytes_read": 2 * PAGE,
        "bytes_written": 3 * PAGE,
    }
    assert {name: count for name, count in after.items() if count} == moved


def test_memory_of_more_than_one_registered_buffer(make_setup: Callable[..., Setup]) -> None:
    """The kernel registers at most 1 GiB as one buffer; requests before, across and behind that border."""
    free = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if int(free["MemAvailable"].split()[0]) < 4 * MIB:  # of KiB
        pytest.skip("pinning 1 GiB needs 4 GiB of free memory")
    setup = make_setup(("uring", "off"))
    border = 2**30
    buffer, memory = setup.memory(border + MIB)
    target = setup.target(MIB)
    edge = buffer.bytes[border - MIB // 2 : border + MIB // 2]
    edge[:] = np.random.default_rng(41).integers(0, 256, MIB, dtype=np.uint8)
    expected = edge.copy()
    cuts = [0, MIB // 4, MIB // 2 - PAGE, MIB // 2 + PAGE, MIB]
    rows = [
        (border - MIB // 2 + begin, target, begin, end - begin) for begin, end in itertools.pairwise(cuts)
    ]
    assert not run(
        setup.runtime, batch(*[request(tr.WRITE, memory, m, t, o, n) for m, t, o, n in rows])
    ).status.any()
    edge[:] = 0
    assert not run(
        setup.runtime, batch(*[request(tr.READ, memory, m, t, o, n) for m, t, o, n in rows])
    ).status.any()
    assert np.array_equal(edge, expected)
