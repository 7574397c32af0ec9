# SPDX-License-Identifier: Apache-2.0
"""Targets outnumber descriptors: the oldest give theirs up, and get back the same file or an error."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loop_kit import MIB, Loops
from runtime_kit import KIB, PAGE, Setup, batch, open_files, request, run

import tutti_runtime as tr

LIMIT = 4
COUNT = 24


@pytest.fixture
def few(file_pair: tuple[str, str], make_setup: Callable[..., Setup]) -> Setup:
    """A runtime that keeps four descriptors."""
    return make_setup(file_pair, max_open_files=LIMIT)


def make_files(folder: Path, count: int, size: int = PAGE) -> list[Path]:
    paths = [folder / f"file-{i}" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i + 1]) * size)
    return paths


def read_all(setup: Setup, targets: list[int], memory: int) -> tr.Completion:
    rows = [request(tr.READ, memory, i * PAGE, target, 0, PAGE) for i, target in enumerate(targets)]
    return run(setup.runtime, batch(*rows))


def test_many_targets_on_few_descriptors(few: Setup) -> None:
    before = open_files()
    paths = make_files(few.folder, COUNT)
    targets = [result.target for result in few.runtime.open_batch([path.as_uri() for path in paths])]
    assert None not in targets
    assert open_files() <= before + LIMIT
    buffer, memory = few.memory(COUNT * PAGE)
    for _ in range(3):
        buffer.bytes[:] = 0
        done = read_all(few, targets, memory)  # type: ignore[arg-type]
        assert done.status.tolist() == [0] * COUNT
        assert buffer.bytes[::PAGE].tolist() == [i + 1 for i in range(COUNT)]
        assert open_files() <= before + LIMIT
    few.runtime.close_batch(targets)  # type: ignore[arg-type]
    assert open_files() == before


def test_descriptors_are_bounded_while_i_o_is_in_flight(few: Setup) -> None:
    before = open_files()
    paths = make_files(few.folder, COUNT, 256 * KIB)
    targets = [few.runtime.open(path.as_uri()) for path in paths]
    _, memory = few.memory(256 * KIB)
    most = 0
    over = threading.Event()

    def look() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, open_files())

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(5):
        rows = [request(tr.WRITE, memory, 0, target, 0, 256 * KIB) for target in targets]
        assert not run(few.runtime, batch(*rows)).status.any()
    over.set()
    watcher.join()
    assert before < most <= before + LIMIT


def test_writes_survive_their_descriptor(few: Setup) -> None:
    paths = make_files(few.folder, COUNT, 64 * KIB)
    targets = [few.runtime.open(path.as_uri()) for path in paths]
    buffer, memory = few.memory(64 * KIB)
    expected = buffer.fill_random(8)
    for target in targets:
        run(few.runtime, batch(request(tr.WRITE, memory, 0, target, 0, 64 * KIB)))
    flushes = [request(tr.FLUSH, 0, 0, target, 0, 0) for target in targets]
    assert not run(few.runtime, batch(*flushes)).status.any()
    for path in paths:
        assert path.read_bytes() == expected.tobytes()


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def made_anew(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(bytes(size))  # ext4 likes to give it the same inode number


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def shortened(path: Path) -> None:
    os.truncate(path, PAGE // 2)


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [Path.unlink, replaced, made_anew, linked, shortened, a_fifo])
def test_another_file_under_the_name_is_stale(few: Setup, change: Callable[[Path], None]) -> None:
    paths = make_files(few.folder, COUNT)
    targets = [few.runtime.open(path.as_uri()) for path in paths]
    buffer, memory = few.memory(COUNT * PAGE)
    change(paths[0])  # the first to have lost its descriptor
    buffer.bytes[:] = 0xA5
    done = read_all(few, targets, memory)
    assert done.status.tolist() == [errno.ESTALE] + [0] * (COUNT - 1)
    assert done.bytes.tolist() == [0] + [PAGE] * (COUNT - 1)
    assert set(buffer.bytes[:PAGE].tolist()) == {0xA5}
    few.runtime.close(targets[0])
    assert not read_all(few, targets[1:], memory).status.any()


def test_a_name_that_comes_back_is_good_again(few: Setup) -> None:
    paths = make_files(few.folder, COUNT)
    targets = [few.runtime.open(path.as_uri()) for path in paths]
    _, memory = few.memory(PAGE)
    away = paths[0].with_name("away")
    paths[0].rename(away)
    assert read_all(few, targets[:1], memory).status.tolist() == [errno.ESTALE]
    away.rename(paths[0])
    assert read_all(few, targets[:1], memory).status.tolist() == [0]


def test_striped_targets_share_the_descriptors(few: Setup) -> None:
    roots = [few.folder / str(i) for i in range(8)]
    for root in roots:
        root.mkdir()
        (root / "x").write_bytes(bytes(64 * KIB))
        (root / "y").write_bytes(bytes(64 * KIB))
    before = open_files()
    names = ",".join(str(root) for root in roots)
    targets = [few.runtime.open(f"striped://{name}?roots={names}&unit=4096") for name in ("x", "y")]
    buffer, memory = few.memory(512 * KIB)
    expected = buffer.fill_random(2)
    for target in targets:
        run(few.runtime, batch(request(tr.WRITE, memory, 0, target, 0, 512 * KIB)))
    buffer.bytes[:] = 0
    run(few.runtime, batch(request(tr.READ, memory, 0, targets[0], 0, 512 * KIB)))
    assert np.array_equal(buffer.bytes, expected)
    assert open_files() <= before + LIMIT


@pytest.mark.root
def test_a_device_keeps_its_descriptor(few: Setup, loops: Loops) -> None:
    device = loops.device(4 * MIB)
    target = few.runtime.open(f"raw://{device.path}")
    paths = make_files(few.folder, COUNT)
    others = [few.runtime.open(path.as_uri()) for path in paths]
    _, memory = few.memory(COUNT * PAGE)
    assert not read_all(few, others, memory).status.any()
    done = subprocess.run(["mkfs.ext4", "-q", str(device.path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0, "the device must still be held"
    assert read_all(few, [target], memory).status.tolist() == [0]


def test_many_threads_on_few_descriptors(few: Setup) -> None:
    paths = make_files(few.folder, COUNT)
    uris = [path.as_uri() for path in paths]
    targets = [few.runtime.open(uri) for uri in uris]
    buffer, memory = few.memory(4 * COUNT * PAGE)
    wrong: list[str] = []

    def work(place: int) -> None:
        for step in range(20):
            order = np.random.default_rng(place * 100 + step).permutation(COUNT)
            rows = [
                request(tr.READ, memory, (place * COUNT + i) * PAGE, targets[which], 0, PAGE)
                for i, which in enumerate(order)
            ]
            done = run(few.runtime, batch(*rows))
            found = buffer.bytes[place * COUNT * PAGE : (place + 1) * COUNT * PAGE : PAGE]
            if done.status.any() or found.tolist() != [which + 1 for which in order]:
                wrong.append(f"{place}/{step}: {done.status.tolist()}")
            few.runtime.close(few.runtime.open(uris[step]))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_default_leaves_the_process_room(tmp_path: Path) -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tr.make_file_runtime() as runtime:
        assert runtime.caps()["max_open_files"] == min(1024, soft // 4)
    with tr.make_file_runtime(max_open_files=7) as runtime:
        assert runtime.caps()["max_open_files"] == 7
