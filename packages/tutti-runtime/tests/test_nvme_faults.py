# SPDX-License-Identifier: Apache-2.0
"""A drive that misbehaves costs its own items, within a deadline, and nothing after them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from nvme_kit import MIB, PAGE, SoftRig

import tutti_runtime as tr

Rigs = Callable[..., SoftRig]
READ_OPCODE = 2
UNRECOVERED_READ = 0x281
LBA_OF_PAGE = PAGE // 512


@pytest.fixture(params=["host", "device"])
def rigs(request: pytest.FixtureRequest) -> Iterator[Rigs]:
    made: list[SoftRig] = []

    def build(drive: dict[str, Any] | None = None, **settings: Any) -> SoftRig:
        fast = {"command_timeout": 0.5, "admin_timeout": 2.0, "retry_after": 0.01, "queue_entries": 32}
        made.append(SoftRig({"timeout_ms": 500, **(drive or {})}, {**fast, **settings}, 1, request.param))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def written(rig: SoftRig) -> tuple[int, int, np.ndarray]:
    """A target whose first pages hold known bytes, and memory of which every byte is something else."""
    buffer, memory = rig.memory(seed=1)
    target = rig.runtime.open("nvme://disk0/1")
    while (rig.move(tr.WRITE, memory, target, count=16).status != 0).any():
        pass  # on a busy machine a drive can be late without a fault
    wanted = buffer.bytes[: 16 * PAGE].copy()
    buffer.bytes[:] = 0xEE
    return memory, target, wanted


def reads_again(rig: SoftRig, memory: int, target: int, wanted: np.ndarray, tries: int = 1) -> None:
    for _ in range(tries):
        done = rig.move(tr.READ, memory, target, count=16)
        if (done.status == 0).all():
            break
    assert (done.status == 0).all()
    assert np.array_equal(rig._kept[0].bytes[: 16 * PAGE], wanted)


STAYS_AWAY = ["drop_completion", "late_completion", "wrong_phase", "bad_head"]


@pytest.mark.parametrize("fault", STAYS_AWAY)
def test_a_write_whose_completion_stays_away_fails_alone(fault: str, rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    rig._kept[0].bytes[: 16 * PAGE] = wanted
    rig.control.fail(fault, skip=5, delay=1000.0 if fault == "late_completion" else 0.0)
    done = rig.move(tr.WRITE, memory, target, count=16)
    failed = np.flatnonzero(done.status)
    assert len(failed) >= 1
    assert set(done.status[failed]) == {errno.ETIMEDOUT}
    # A wrong phase hides all completions behind it; no other fault touches another item.
    assert fault == "wrong_phase" or len(failed) == 1
    assert (done.bytes[failed] == 0).all()
    assert (done.bytes[done.status == 0] == PAGE).all()
    rig._kept[0].bytes[:] = 0xEE
    reads_again(rig, memory, target, wanted)


@pytest.mark.parametrize("fault", STAYS_AWAY)
def test_a_read_whose_completion_stays_away_is_sent_once_more(fault: str, rigs: Rigs) -> None:
    rig = rigs(queues=2)
    memory, target, wanted = written(rig)
    rig.control.fail(fault, skip=5, delay=1000.0 if fault == "late_completion" else 0.0)
    done = rig.move(tr.READ, memory, target, count=16)
    # What comes back when it is aborted has had its chance: the queue is not to blame.
    aborted = fault == "late_completion" and rig.execution == "host"
    assert set(done.status) == ({0, errno.ETIMEDOUT} if aborted else {0})
    good = np.repeat(done.status == 0, PAGE)
    assert np.array_equal(rig._kept[0].bytes[: 16 * PAGE][good], wanted[good])
    assert rig.control.counters()["queues_deleted"] == (0 if aborted else 1)
    reads_again(rig, memory, target, wanted)


def test_a_read_that_is_lost_again_and_again_fails(rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    at = 5 * LBA_OF_PAGE
    rig.control.fail("drop_completion", first_lba=at, last_lba=at, times=0)
    done = rig.move(tr.READ, memory, target, count=16)
    assert list(np.flatnonzero(done.status)) == [5]
    assert done.status[5] == errno.ETIMEDOUT and done.bytes[5] == 0
    rig.control.heal()
    reads_again(rig, memory, target, wanted)


def test_a_read_beyond_its_deadline_is_not_sent_again(rigs: Rigs) -> None:
    rig = rigs()
    memory, target, _ = written(rig)
    rig.control.fail("drop_completion")
    done = rig.move(tr.READ, memory, target, count=1, timeout=0.25)  # half of what a command may take
    assert done.status[0] == errno.ETIMEDOUT
    assert done.late_handle is not None
    assert rig.runtime.wait(done.late_handle, 20).status[0] == errno.ETIMEDOUT
    assert rig.control.counters()["reads"] == 1


def test_commands_behind_a_lost_one_are_sent_again(rigs: Rigs) -> None:
    """A queue that must be made anew takes others down with it: all run again."""
    rig = rigs({"latency": 0.03})
    memory, target, wanted = written(rig)
    rig.control.fail("drop_completion")
    lost = rig.submit(batch_of(memory, target, [0]))
    assert rig.control.wait_faults(1, 20)
    late: list[int] = []
    while not rig.runtime.poll(lost):  # something is always under way when the queue is made anew
        late += list(rig.run(batch_of(memory, target, range(1, 16))).status)
    assert rig.runtime.wait(lost, 20).status[0] == 0
    assert set(late) <= {0}
    assert rig.control.counters()["queues_deleted"] == 1
    reads_again(rig, memory, target, wanted)


def batch_of(memory: int, target: int, pages: Any) -> np.ndarray:
    rows = [(tr.READ, 0, memory, i * PAGE, target, i * PAGE, PAGE) for i in pages]
    return np.array(rows, dtype=tr.REQUEST_DTYPE)


def test_a_lost_doorbell_costs_what_it_announced(rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    rig._kept[0].bytes[: 16 * PAGE] = wanted
    rig.control.fail("ignore_doorbell")
    done = rig.move(tr.WRITE, memory, target, count=1)
    assert done.status[0] == errno.ETIMEDOUT
    reads_again(rig, memory, target, wanted)


def test_an_error_status_is_its_items_own(rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    rig.control.fail(
        "status", status=UNRECOVERED_READ, first_lba=3 * LBA_OF_PAGE, last_lba=3 * LBA_OF_PAGE, times=0
    )
    done = rig.move(tr.READ, memory, target, count=16)
    assert list(np.flatnonzero(done.status)) == [3]
    assert done.status[3] == errno.ENODATA
    assert (rig._kept[0].bytes[3 * PAGE : 4 * PAGE] == 0xEE).all()  # no byte of a failed read arrived
    rig.control.heal()
    reads_again(rig, memory, target, wanted)


def test_bytes_before_the_failure_are_told(rigs: Rigs) -> None:
    """An item of eight commands whose fourth fails has moved what the first three did, and says so."""
    rig = rigs({"mdts_bytes": 8192})
    memory, target, _ = written(rig)
    rig.control.fail("status", status=UNRECOVERED_READ, first_lba=6 * LBA_OF_PAGE, last_lba=6 * LBA_OF_PAGE)
    done = rig.move(tr.READ, memory, target, count=1, length=16 * PAGE)
    assert done.status[0] == errno.ENODATA
    assert done.bytes[0] == 6 * PAGE


@pytest.mark.parametrize("fault", ["duplicate_completion", "stray_completion", "reorder"])
def test_completions_that_are_odd_but_complete_cost_nothing(fault: str, rigs: Rigs) -> None:
    rig = rigs({"latency": 0.001})
    memory, target, wanted = written(rig)
    rig.control.fail(fault, times=0, every=4, hold=2, delay=0.002)
    for _ in range(10):
        reads_again(rig, memory, target, wanted)
        rig._kept[0].bytes[:] = 0xEE


@pytest.mark.parametrize("fault", ["fatal", "reset"])
def test_a_controller_that_fails_is_reset_and_goes_on(fault: str, rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    rig.control.fail(fault, skip=4)
    done = rig.move(tr.READ, memory, target, count=16)
    assert (done.status == 0).all()  # what was under way was sent again
    assert np.array_equal(rig._kept[0].bytes[: 16 * PAGE], wanted)
    assert rig.control.counters()["enables"] == 2
    assert any("reset" in text for text in rig.runtime._core.notices())


def test_a_command_that_always_kills_the_controller_ends(rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    rig.control.fail("fatal", first_lba=0, last_lba=0, times=0)
    done = rig.move(tr.READ, memory, target, count=1)
    assert done.status[0] == errno.EIO
    rig.control.heal()
    reads_again(rig, memory, target, wanted)


def test_an_unplugged_drive_fails_at_once_and_comes_back(rigs: Rigs) -> None:
    rig = rigs()
    memory, target, wanted = written(rig)
    rig.control.fail("unplug", skip=4)
    done = rig.move(tr.READ, memory, target, count=16)
    failed = done.status[done.status != 0]
    assert set(failed) == {errno.ENODEV} and len(failed) >= 12
    assert rig.move(tr.READ, memory, target, count=2).status[0] == errno.ENODEV
    rig.control.heal()
    reads_again(rig, memory, target, wanted, tries=10000)


def test_a_stuck_drive_is_cut_off_and_comes_back(rigs: Rigs) -> None:
    rig = rigs(admin_timeout=0.3)
    memory, target, wanted = written(rig)
    rig.control.fail("stuck", skip=4)
    done = rig.move(tr.READ, memory, target, count=16)
    failed = done.status[done.status != 0]
    assert set(failed) <= {errno.ETIMEDOUT, errno.EIO} and len(failed) >= 12
    assert not done.late.any()  # nothing of it can still reach the memory
    rig.control.heal()
    reads_again(rig, memory, target, wanted, tries=10000)


def test_the_items_deadline_comes_before_the_drives(rigs: Rigs) -> None:
    rig = rigs(command_timeout=30.0)
    memory, target, wanted = written(rig)
    rig.control.fail("late_completion", delay=2.0)
    done = rig.move(tr.READ, memory, target, count=1, timeout=1.0)
    assert done.status[0] == errno.ETIMEDOUT
    assert done.late[0]
    assert done.late_handle is not None
    assert rig.runtime.wait(done.late_handle, 20).status[0] == 0
    reads_again(rig, memory, target, wanted)


def test_other_drives_do_not_notice() -> None:
    rig = SoftRig(
        {"timeout_ms": 500}, {"command_timeout": 0.5, "admin_timeout": 2.0, "retry_after": 0.01}, count=2
    )
    _, memory = rig.memory(seed=2)
    bad, good = (rig.runtime.open(f"nvme://disk{i}/1") for i in range(2))
    rig.controls[0].fail("unplug")
    assert rig.move(tr.WRITE, memory, bad).status[0] == errno.ENODEV
    assert (rig.move(tr.WRITE, memory, good, count=16).status == 0).all()
    rig.close()


def test_a_failing_shard_fails_the_striped_item() -> None:
    rig = SoftRig({}, {}, count=2)
    _, memory = rig.memory(seed=2)
    target = rig.runtime.open(f"striped://t?roots=nvme://disk0/1,nvme://disk1/1&unit=65536&size={MIB}")
    rig.controls[1].fail("status", status=0x280)
    done = rig.move(tr.WRITE, memory, target, length=256 * 1024)
    assert done.status[0] == errno.EIO
    assert done.bytes[0] == 65536
    assert rig.move(tr.WRITE, memory, target, length=256 * 1024).status[0] == 0
    rig.close()


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_of_faults_ends_and_heals(seed: int, rigs: Rigs) -> None:
    rig = rigs({"latency": 0.0002}, queues=2, command_timeout=0.2)
    memory, target, wanted = written(rig)
    random = np.random.default_rng(seed)
    kinds = [
        "drop_completion",
        "late_completion",
        "reorder",
        "wrong_phase",
        "stray_completion",
        "bad_head",
        "fatal",
    ]
    kinds += ["reset", "duplicate_completion", "ignore_doorbell"]
    for _ in range(3):
        for kind in random.choice(kinds, 2, replace=False):
            rig.control.fail(str(kind), skip=int(random.integers(0, 20)), delay=0.01, hold=1)
        done = rig.move(tr.READ, memory, target, count=16)
        read = rig._kept[0].bytes[: 16 * PAGE].reshape(16, PAGE)
        good = done.status == 0
        assert (read[good] == wanted.reshape(16, PAGE)[good]).all()
        rig.control.heal()
    reads_again(rig, memory, target, wanted, tries=100)
