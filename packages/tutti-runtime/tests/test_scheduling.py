# SPDX-License-Identifier: Apache-2.0
"""Reads before writes, per root, with a device whose speed is known."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_kit import KIB, PAGE, LoopMount, Setup, batch, faulty, make, pages, request, run

import tutti_runtime as tr
from tutti_runtime import _core

BLOCK = 64 * KIB
FOREVER = {"share": 0.0, "max_wait": 3600.0, "idle_after": 3600.0}


class Drive:
    """A runtime over a device that serves 16 MB/s, one operation after another."""

    def __init__(self, folder: Path, policy: tr.WritePolicy, name: str = "posix") -> None:
        self.control = _core.FaultControl({"bandwidth": 16e6})
        self.runtime = faulty(name, self.control, write_policy=policy.native(), queue_depth=4, threads=2)
        self.setup = Setup("posix", "off", folder, self.runtime)
        self.buffer, self.memory = self.setup.memory(16 * BLOCK)
        self.target = self.setup.target(16 * BLOCK)

    def start(self, direction: int, count: int, target: int | None = None) -> int:
        target = self.target if target is None else target
        rows = [request(direction, self.memory, i * BLOCK, target, i * BLOCK, BLOCK) for i in range(count)]
        result = self.runtime.submit(batch(*rows))
        assert result.accepted.all()
        assert result.handle is not None
        return result.handle

    def end(self) -> None:
        self.control.set_plan({})
        self.control.release()
        self.runtime.set_write_policy(tr.WritePolicy(share=1.0))
        assert self.runtime.shutdown(30)


@pytest.fixture(params=["posix", "uring"])
def drives(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    made: list[Drive] = []

    def build(**policy: float) -> Drive:
        made.append(Drive(tmp_path, tr.WritePolicy(**policy), request.param))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for drive in made:
        drive.end()


def test_reads_go_before_writes_that_came_earlier(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(**{**FOREVER, "share": 0.0})
    first = drive.start(tr.READ, 8)  # makes the root busy
    writes = drive.start(tr.WRITE, 8)
    reads = drive.start(tr.READ, 16)
    assert not drive.runtime.wait(reads, 30).status.any()
    assert not drive.runtime.wait(first, 30).status.any()
    assert not drive.runtime.poll(writes)
    assert drive.runtime.stats()["bytes_written"] == 0


def test_writes_run_once_reads_have_ended(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(share=0.0, max_wait=3600.0, idle_after=0.01)
    reads = drive.start(tr.READ, 4)
    writes = drive.start(tr.WRITE, 8)
    assert not drive.runtime.wait(writes, 30).status.any()
    assert drive.runtime.poll(reads)


def test_writes_are_not_starved(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(share=0.0, max_wait=0.02, idle_after=3600.0)
    drive.start(tr.READ, 1)
    writes = drive.start(tr.WRITE, 2)
    while not drive.runtime.poll(writes):
        drive.runtime.wait(drive.start(tr.READ, 4), 30)


@pytest.mark.parametrize("policy", [{"share": 0.0, "max_wait": 0.02}, {"share": 0.25, "max_wait": 3600.0}])
def test_writes_are_not_starved_by_more_reads_than_fit(drives, policy: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
    drive = drives(**policy, idle_after=3600.0)
    reads = [drive.start(tr.READ, 16) for _ in range(2)]
    writes = drive.start(tr.WRITE, 2)
    for _ in range(40):  # 2.6 seconds of reading, with places for four and never less than 16 waiting
        drive.runtime.wait(reads.pop(0), 30)
        if drive.runtime.poll(writes):
            break
        reads.append(drive.start(tr.READ, 16))
    assert drive.runtime.poll(writes)


def test_a_write_gets_a_place_where_there_is_only_one(tmp_path: Path) -> None:
    control = _core.FaultControl({"rules": [{"hang": True}]})
    policy = tr.WritePolicy(share=1.0, max_wait=3600.0, idle_after=3600.0)
    runtime = faulty("uring", control, write_policy=policy.native(), queue_depth=1)
    setup = Setup("uring", "off", tmp_path, runtime)
    _, memory = setup.memory(4 * PAGE)
    target = setup.target(4 * PAGE)
    reads = runtime.submit(batch(*[request(tr.READ, memory, 0, target, 0, PAGE)] * 6)).handle
    write = runtime.submit(batch(request(tr.WRITE, memory, 0, target, 0, PAGE))).handle
    assert reads is not None
    assert write is not None
    assert control.wait_held(1, 30)
    control.set_plan({"rules": [{"hang": True, "direction": "read", "skip": 2}]})
    control.release()
    assert not runtime.wait(write, 30).status.any()
    assert not runtime.poll(reads)
    control.set_plan({})
    control.release()
    assert not runtime.wait(reads, 30).status.any()
    assert runtime.shutdown(30)


def test_what_stood_behind_a_canceled_write_goes(tmp_path: Path) -> None:
    control = _core.FaultControl({"rules": [{"hang": True, "times": 1}]})
    policy = tr.WritePolicy(bytes_in_flight=2 * PAGE, idle_after=0.0)
    runtime = faulty("posix", control, write_policy=policy.native())
    setup = Setup("posix", "off", tmp_path, runtime)
    _, memory = setup.memory(4 * PAGE)
    target = setup.target(4 * PAGE)
    lengths = [PAGE, 2 * PAGE, PAGE]  # the first hangs, the second is too much beside it
    hung, large, small = (
        runtime.submit(batch(request(tr.WRITE, memory, 0, target, 0, n))).handle or 0 for n in lengths
    )
    runtime.cancel(large)
    assert runtime.wait(large, 30).status.tolist() == [errno.ECANCELED]
    assert not runtime.wait(small, 30).status.any()
    assert not runtime.poll(hung)
    control.release()
    assert not runtime.wait(hung, 30).status.any()
    assert runtime.shutdown(30)


def test_writes_earn_their_share_of_what_is_read(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(share=0.25, max_wait=3600.0, idle_after=3600.0)
    reads = [drive.start(tr.READ, 16) for _ in range(2)]
    writes = drive.start(tr.WRITE, 16)
    for handle in reads:
        drive.runtime.wait(handle, 30)
    drive.runtime.wait(drive.start(tr.READ, 1), 30)
    assert not drive.runtime.poll(writes)
    # 33 blocks were read: 8 may be written, of which the last ones may still be on their way.
    give_up = time.monotonic() + 30
    while drive.runtime.stats()["bytes_written"] < 4 * BLOCK and time.monotonic() < give_up:
        time.sleep(0.001)
    assert 4 * BLOCK <= drive.runtime.stats()["bytes_written"] <= 9 * BLOCK


def test_the_policy_can_change_while_writes_wait(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(**FOREVER)
    drive.runtime.wait(drive.start(tr.READ, 1), 30)
    writes = drive.start(tr.WRITE, 4)
    with pytest.raises(TimeoutError):
        drive.runtime.wait(writes, 0.05)
    drive.runtime.set_write_policy(tr.WritePolicy(idle_after=0.0))
    assert not drive.runtime.wait(writes, 30).status.any()


def test_a_rate_bounds_writes(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(rate=4 * BLOCK / 0.04)
    drive.control.set_plan({})
    begin = time.monotonic()
    drive.runtime.wait(drive.start(tr.WRITE, 9), 30)
    assert time.monotonic() - begin >= 0.08  # eight blocks' time passes before the ninth


def test_waiting_writes_can_be_canceled_and_time_out(drives) -> None:  # type: ignore[no-untyped-def]
    drive = drives(**FOREVER)
    drive.runtime.wait(drive.start(tr.READ, 1), 30)
    writes = drive.start(tr.WRITE, 4)
    drive.runtime.cancel(writes)
    assert drive.runtime.wait(writes, 30).status.tolist() == [errno.ECANCELED] * 4
    rows = batch(request(tr.WRITE, drive.memory, 0, drive.target, 0, BLOCK))
    handle = drive.runtime.submit(rows, timeout=0.01).handle
    assert handle is not None
    done = drive.runtime.wait(handle, 30)
    assert done.status.tolist() == [errno.ETIMEDOUT]
    assert not done.late.any()


def test_the_end_cancels_waiting_writes(tmp_path: Path) -> None:
    drive = Drive(tmp_path, tr.WritePolicy(**FOREVER))  # type: ignore[arg-type]
    drive.runtime.wait(drive.start(tr.READ, 1), 30)
    drive.start(tr.WRITE, 4)
    assert drive.runtime.shutdown(0.05)


@pytest.mark.root
@pytest.mark.parametrize("name", ["posix", "uring"])
def test_a_drive_that_hangs_stalls_no_other(name: str, tmp_path: Path, loop_mount: LoopMount) -> None:
    make(name, "off", tmp_path).shutdown()
    control = _core.FaultControl({})
    runtime = faulty(name, control, queue_depth=4, threads=2)
    slow = Setup("posix", "off", loop_mount.folder, runtime)
    fast = Setup("posix", "off", tmp_path, runtime)
    frozen, _ = pages(slow, tr.WRITE, 16)
    rows, data = pages(fast, tr.WRITE, 16)
    run(runtime, frozen)  # its blocks exist now
    control.set_plan({"rules": [{"target": "mounted", "hang": True}]})
    data[:] = 3
    held = runtime.submit(frozen)
    assert control.wait_held(4, 30)  # all that this root may have at once
    assert not run(runtime, rows).status.any()
    rows["direction"] = tr.READ
    data[:] = 0
    assert not run(runtime, rows).status.any()
    assert np.all(data[: 16 * PAGE] == 3)
    control.set_plan({})
    control.release()
    assert held.handle is not None
    assert not runtime.wait(held.handle, 30).status.any()
    assert runtime.shutdown(30)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"share": -0.1}, "share=-0.1"),
        ({"share": 1.5}, "share=1.5"),
        ({"share": "x"}, "share='x'"),
        ({"rate": 0}, "rate=0"),
        ({"idle_after": float("nan")}, "idle_after=nan"),
        ({"max_wait": 1e9}, "max_wait="),
        ({"bytes_in_flight": 0}, "bytes_in_flight=0"),
        ({"busy_bytes_in_flight": True}, "busy_bytes_in_flight=True"),
    ],
)
def test_a_bad_policy_names_the_field(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tr.WritePolicy(**fields)  # type: ignore[arg-type]


def test_only_a_policy_is_a_policy() -> None:
    with tr.make_memory_runtime() as runtime, pytest.raises(TypeError, match="WritePolicy"):
        runtime.set_write_policy({"share": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="write_policy="):
        tr.make_file_runtime(write_policy=7)  # type: ignore[arg-type]
