# SPDX-License-Identifier: Apache-2.0
"""What a device submits, played by threads: nothing else differs, and where it fails the CPU goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from nvme_kit import MIB, PAGE, SoftRig
from runtime_kit import Buffer, batch, request

import tutti_runtime as tr
from tutti_runtime import nvme_layers
from tutti_runtime.testing import SoftNvmeControl

Rigs = Callable[..., SoftRig]
SOFT = {"transport": "soft", "name": "a", "memory_bytes": MIB}


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    made: list[SoftRig] = []

    def build(drive: dict[str, Any] | None = None, *, count: int = 1, **settings: Any) -> SoftRig:
        made.append(SoftRig({"timeout_ms": 500, **(drive or {})}, settings, count, "device"))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def test_without_a_device_it_is_refused_with_the_reason() -> None:
    for settings, words in (
        ({}, "doorbells|CUDA compiler|its tests on one"),
        ({"device_executor": "none"}, '"none"'),
    ):
        with tr.make_nvme_runtime(controllers=[SOFT], **settings) as runtime:
            caps = runtime.caps()
            assert caps["device_execution"] is False
            assert caps["features_unused"]["device_execution"]
            with pytest.raises(ValueError, match=words):
                runtime.submit(np.zeros(1, tr.REQUEST_DTYPE), execution="device")
            assert runtime.stats()["submitted"] == 0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"device_executor": "tpu"}, ValueError, "device_executor='tpu'"),
        ({"device_executor": "cpu", "device_queues": 0}, ValueError, "device_queues=0"),
        ({"device_executor": "cuda", "device_blocks": 9}, ValueError, "device_blocks=9"),
        ({"device_executor": "cuda"}, ValueError, "no doorbells that a GPU"),
        ({"device_executor": "cpu", "controllers": [{**SOFT, "max_queues": 1}]}, ValueError, "grants one"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tr.make_nvme_runtime(**{"controllers": [SOFT], **settings})
    assert isinstance(nvme_layers.missing_kernel(), str)


def test_one_batch_has_targets_of_every_kind_on_several_drives(rigs: Rigs) -> None:
    rig = rigs(count=3)
    caps = rig.runtime.caps()
    assert caps["device_execution"] is True and "6 teams" in caps["features_used"]["device_execution"]
    buffer, memory = rig.memory(4 * MIB, seed=5)
    wanted = buffer.bytes.copy()
    half = "size=1048576&unit=16384"
    targets = [
        rig.runtime.open(f"striped://a?roots=nvme://disk0/1,nvme://disk1/1&{half}"),
        rig.runtime.open(f"striped://b?roots=nvme://disk2/1,nvme://disk0/1&{half}&offset={2 * MIB}"),
        rig.runtime.open(f"nvme://disk1/1?offset={4 * MIB}&size={MIB}"),
    ]
    for direction in (tr.WRITE, tr.READ):
        rows = [
            request(direction, memory, (3 * i + t) * 65536, targets[t], i * 65536, 65536)
            for i in range(16)
            for t in range(3)
        ]
        rows.append(request(tr.FLUSH, 0, 0, targets[0], 0, 0))
        assert (rig.run(batch(*rows)).status == 0).all()
        if direction == tr.WRITE:
            buffer.bytes[:] = 0
    assert np.array_equal(buffer.bytes[: 48 * 65536], wanted[: 48 * 65536])
    # One owner for each controller: one admin queue, the host's I/O queue, and those of the teams.
    assert all(control.counters()["enables"] == 1 for control in rig.controls)
    assert [control.counters()["queues_made"] for control in rig.controls] == [3, 3, 3]


def test_accepted_and_rejected_are_those_of_the_host(rigs: Rigs) -> None:
    rig = rigs()
    _, memory = rig.memory(seed=1)
    target = rig.runtime.open("nvme://disk0/1", writable=False)
    rows = batch(
        request(tr.READ, memory, 0, target, 0, PAGE),
        request(tr.WRITE, memory, 0, target, 0, PAGE),
        request(tr.READ, memory, 0, target, 100, PAGE),
        request(tr.READ, memory + 1, 0, target, 0, PAGE),
        request(tr.READ, memory, 0, target, 1 << 40, PAGE),
    )
    results = [rig.runtime.submit(rows, execution=each) for each in ("host", "device")]
    assert list(results[0].errors) == list(results[1].errors)
    assert results[1].errors[0] == 0 and (results[1].errors[1:] != 0).all()
    for each in results:
        assert each.handle is not None
        done = rig.runtime.wait(each.handle, 20)
        assert (list(done.status), list(done.bytes)) == ([0], [PAGE])


def test_targets_and_memory_come_and_go(rigs: Rigs) -> None:
    """Slots of the tables are used again by others, and never say what they were."""
    rig = rigs()
    for round_ in range(40):
        buffer, memory = rig.memory(seed=round_)
        wanted = buffer.bytes[:PAGE].copy()
        target = rig.runtime.open(f"nvme://disk0/1?offset={round_ * 64 * PAGE}&size={64 * PAGE}")
        assert (rig.move(tr.WRITE, memory, target).status == 0).all()
        buffer.bytes[:] = 0
        assert (rig.move(tr.READ, memory, target).status == 0).all()
        assert np.array_equal(buffer.bytes[:PAGE], wanted)
        rig.runtime.close(target)
        rig.runtime.unregister_memory(memory)


def test_a_lost_command_holds_nothing_else_up(rigs: Rigs) -> None:
    """Others end long before the lost one's time is over: the CPU takes what comes behind it."""
    rig = rigs(command_timeout=8.0, device_queues=1)
    _, memory = rig.memory(seed=1)
    target = rig.runtime.open("nvme://disk0/1")
    rig.control.fail("drop_completion")
    lost = rig.submit(batch(request(tr.WRITE, memory, 0, target, 0, PAGE)), timeout=60)
    assert rig.control.wait_faults(1, 20)
    others = [request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(1, 9)]
    assert (rig.runtime.wait(rig.submit(batch(*others), timeout=6), 20).status == 0).all()
    assert not rig.runtime.poll(lost)
    assert rig.runtime.wait(lost, 60).status[0] == errno.ETIMEDOUT
    assert rig.runtime.caps()["device_execution"] is True


def test_the_item_that_is_lost_has_its_own_deadline(rigs: Rigs) -> None:
    rig = rigs(command_timeout=1.0)
    _, memory = rig.memory(seed=1)
    target = rig.runtime.open("nvme://disk0/1")
    rig.control.fail("drop_completion", first_lba=0, last_lba=0)
    rows = batch(*(request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(16)))
    done = rig.runtime.wait(rig.submit(rows, timeout=0.5), 20)
    assert done.status[0] == errno.ETIMEDOUT and (done.status[1:] == 0).all()
    assert done.late[0] and done.late_handle is not None
    assert rig.runtime.wait(done.late_handle, 20).status[0] == errno.ETIMEDOUT


def test_what_waits_is_canceled(rigs: Rigs) -> None:
    rig = rigs({"latency": 0.05}, window_commands=2, queue_entries=2)
    buffer, memory = rig.memory(seed=1)
    target = rig.runtime.open("nvme://disk0/1")
    buffer.bytes[:] = 0xA5
    handle = rig.submit(
        batch(*(request(tr.READ, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(64)))
    )
    rig.runtime.cancel(handle)
    done = rig.runtime.wait(handle, 20)
    assert set(done.status) <= {0, errno.ECANCELED}
    canceled = buffer.bytes[: 64 * PAGE].reshape(-1, PAGE)[done.status == errno.ECANCELED]
    assert len(canceled) > 0 and (canceled == 0xA5).all()


def test_a_device_that_loses_commands_is_given_up_and_says_so(rigs: Rigs) -> None:
    """The drive answers the CPU's queue and not the teams': reads still come, and the CPU stays at it."""
    rig = rigs(command_timeout=0.3)
    buffer, memory = rig.memory(seed=1)
    wanted = buffer.bytes[:PAGE].copy()
    target = rig.runtime.open("nvme://disk0/1")
    assert (rig.move(tr.WRITE, memory, target).status == 0).all()
    for _ in range(3):
        buffer.bytes[:] = 0
        rig.control.fail("drop_completion")
        assert (rig.move(tr.READ, memory, target).status == 0).all()
        assert np.array_equal(buffer.bytes[:PAGE], wanted)
    caps = rig.runtime.caps()
    assert caps["device_execution"] is False
    assert "3 times in a row" in caps["stepped_down"]
    assert caps["features_unused"]["device_execution"] == caps["stepped_down"]
    assert rig.runtime.stats()["step_downs"] == 1
    before = rig.control.counters()["queues_deleted"]
    buffer.bytes[:] = 0
    assert (rig.move(tr.READ, memory, target).status == 0).all()  # execution="device" is still taken
    assert np.array_equal(buffer.bytes[:PAGE], wanted)
    assert rig.control.counters()["queues_deleted"] == before


def test_a_device_that_works_again_is_not_given_up(rigs: Rigs) -> None:
    rig = rigs(command_timeout=0.3)
    _, memory = rig.memory(seed=1)
    target = rig.runtime.open("nvme://disk0/1")
    for _ in range(4):
        rig.control.fail("drop_completion")
        assert (rig.move(tr.READ, memory, target).status == 0).all()
        assert (rig.move(tr.READ, memory, target).status == 0).all()
    assert rig.runtime.caps()["device_execution"] is True


def test_the_hosts_recovery_halts_the_teams(rigs: Rigs) -> None:
    """A controller that fails under both is reset once, and what was under way on all queues runs again."""
    rig = rigs({"latency": 0.002}, command_timeout=5.0)
    buffer, memory = rig.memory(seed=2)
    wanted = buffer.bytes.copy()
    target = rig.runtime.open("nvme://disk0/1")
    assert (rig.move(tr.WRITE, memory, target, count=128, timeout=60).status == 0).all()
    for fault in ("fatal", "reset"):
        buffer.bytes[:] = 0
        enables = rig.control.counters()["enables"]
        rows = [request(tr.READ, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(128)]
        rig.control.fail(fault, skip=40)
        by_host = rig.runtime.submit(batch(*rows[::2]), timeout=60)
        by_device = rig.submit(batch(*rows[1::2]), timeout=60)
        assert by_host.handle is not None
        for handle in (by_host.handle, by_device):
            assert (rig.runtime.wait(handle, 60).status == 0).all()
        assert np.array_equal(buffer.bytes[: 128 * PAGE], wanted[: 128 * PAGE])
        assert rig.control.counters()["enables"] == enables + 1
    assert rig.runtime.caps()["device_execution"] is True


def test_shutdown_ends_what_a_device_has() -> None:
    control = SoftNvmeControl()
    spec = {**SOFT, "control": control, "latency": 0.01}
    runtime = tr.make_nvme_runtime(controllers=[spec], device_executor="cpu")
    buffer = Buffer(MIB)
    memory = runtime.register_memory(buffer.address, MIB)
    target = runtime.open("nvme://a/1")
    rows = batch(*(request(tr.WRITE, memory, i * PAGE, target, i * PAGE, PAGE) for i in range(64)))
    assert runtime.submit(rows, execution="device").handle is not None
    assert runtime.shutdown(30)
    assert control.counters()["writes"] == 64
    assert control.violations() == []
