# SPDX-License-Identifier: Apache-2.0
"""Clients of a broker: bytes, quotas, and what a client leaves when it ends, is killed, or falls silent."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvmed_kit import MIB, PAGE, SPACE, Daemon, RawClient, Refused, Rig, spawn, until
from runtime_kit import batch, request, run

import tutti_runtime as tr
from tutti_runtime import nvmed

Daemons = Callable[..., Daemon]

DRIVES: dict[str, dict[str, Any]] = {
    "plain": {},
    "4k-blocks": {"lba_bytes": 4096},
    "small-mdts": {"mdts_bytes": 16384},
    "scattered-sgl": {"sgl": True},
    "wide-doorbells": {"doorbell_stride": 4096},
    "slow": {"latency": 0.001, "max_entries": 8},
}

# Writes and reads at random in a part of its own, until the pipe ends; says so once it has begun.
WORKER = """
import numpy as np, select, tutti_runtime as tr
from tutti_runtime import nvmed
from runtime_kit import batch, request, run
path, part, queues = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
spec = {"transport": "broker", "name": "disk0", "socket": path}
runtime = tr.make_nvme_runtime(controllers=[spec], queues=queues, queue_entries=16)
size = 1 << 20
memory = nvmed.SharedMemory(2 * size)
handle = runtime.register_memory(memory.address, memory.size)
target = runtime.open(f"nvme://disk0/1?offset={part * size}&size={size}")
random = np.random.default_rng(part)
rounds = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    memory.bytes[:size] = random.integers(0, 256, size, dtype=np.uint8)
    for direction, place in ((tr.WRITE, 0), (tr.READ, size)):
        rows = [request(direction, handle, place + i * 65536, target, i * 65536, 65536) for i in range(16)]
        assert (run(runtime, batch(*rows)).status == 0).all()
    assert np.array_equal(memory.bytes[:size], memory.bytes[size:]), part
    rounds += 1
    if rounds == 1:
        print("works", flush=True)
print(rounds, flush=True)
assert runtime.shutdown(30)
"""


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made: list[Daemon] = []

    def build(drive: dict[str, Any] | None = None, **settings: Any) -> Daemon:
        made.append(Daemon(tmp_path, drive or {}, settings))
        return made[-1]

    yield build
    for daemon in made:
        daemon.control.heal()
        daemon.stop()


@pytest.mark.parametrize("drive", DRIVES)
def test_random_transfers_match_a_model(drive: str, daemons: Daemons) -> None:
    daemon = daemons(DRIVES[drive], queues_per_client=2)
    rig = Rig(daemon, size=4 * MIB, queues=2, queue_entries=16)
    random = np.random.default_rng(2)
    rig.memory.bytes[:] = random.integers(0, 256, 4 * MIB, dtype=np.uint8)
    disk = np.zeros(SPACE, dtype=np.uint8)
    for _ in range(8):
        shadow = rig.memory.bytes.copy()
        rows = []
        for slot, place in enumerate(random.permutation(16)[:8]):
            length = int(random.integers(1, 128)) * PAGE
            begin, at = slot * 512 * 1024, int(place) * MIB
            if random.integers(2):
                rows.append(request(tr.WRITE, rig.handle, begin, rig.target, at, length))
                disk[at : at + length] = shadow[begin : begin + length]
            else:
                rows.append(request(tr.READ, rig.handle, begin, rig.target, at, length))
                shadow[begin : begin + length] = disk[at : at + length]
        rows.append(request(tr.FLUSH, 0, 0, rig.target, 0, 0))
        assert (run(rig.runtime, batch(*rows)).status == 0).all()
        assert np.array_equal(rig.memory.bytes, shadow)
    rig.close()
    daemon.until_empty()
    assert daemon.control.violations() == []


def test_a_uri_alone_makes_a_runtime(daemons: Daemons) -> None:
    daemon = daemons()
    uri = daemon.uri(offset=MIB, size=MIB)
    runtime = tr.make_runtime(uri)
    assert runtime.open(uri)
    with pytest.raises(ValueError, match="is not where this runtime has 'disk0' from"):
        runtime.open("nvme://disk0/1?broker=/somewhere/else")
    assert runtime.shutdown(30)
    with pytest.raises(ValueError, match="to make a runtime of"):
        tr.make_runtime("nvme://disk0/1")


def test_memory_of_the_process_alone_is_refused(daemons: Daemons) -> None:
    rig = Rig(daemons())
    private = tr.HostMemory(MIB)
    with pytest.raises(ValueError, match=r"a broker reaches only shared memory.*nvmed\.SharedMemory"):
        rig.runtime.register_memory(private.address, MIB)
    rig.check(1)
    rig.close()


def test_processes_share_a_controller_and_some_are_killed(daemons: Daemons) -> None:
    """Killed while their commands are under way; the others never see a wrong byte.

    ``TUTTI_LONG_TESTS``: thirty times as often.
    """
    daemon = daemons({"latency": 0.002, "max_queues": 12}, max_clients=6)
    workers = [spawn(WORKER, daemon.path, part, 2) for part in range(6)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "works\n"
    random = np.random.default_rng(5)
    for _ in range(30 if os.environ.get("TUTTI_LONG_TESTS") else 1):
        victims = set(random.permutation(6)[:3])
        for part in victims:
            workers[part].kill()
            workers[part].communicate()
        until(lambda: daemon.controller()["clients"] == 3)
        for part in victims:  # their places are free again, and a part of the disk has a new owner
            workers[part] = spawn(WORKER, daemon.path, part, 2)
        for part in victims:
            assert workers[part].stdout.readline() == "works\n"
    for worker in workers:
        rounds, _ = worker.communicate("end\n", timeout=60)
        assert worker.returncode == 0 and int(rounds) >= 1
    daemon.until_empty()
    assert daemon.control.violations() == []
    assert daemon.controller()["resets"] == 0


def test_a_client_that_is_silent_loses_its_lease(daemons: Daemons) -> None:
    daemon = daemons(lease_seconds=3.0)  # nobody else is silent for as long, however busy the machine
    other = Rig(daemon)
    worker = spawn(WORKER, daemon.path, 3, 1)
    assert worker.stdout.readline() == "works\n"
    worker.send_signal(signal.SIGSTOP)
    until(lambda: daemon.status()["expired"] == 1)
    assert daemon.controller()["clients"] == 1
    other.check(1)
    worker.send_signal(signal.SIGCONT)
    assert worker.wait(60) == 1  # its next transfer failed: it did not go on as if nothing had been
    worker.communicate()
    other.check(2)
    other.close()
    assert daemon.control.violations() == []


def test_heartbeats_keep_an_idle_client(daemons: Daemons) -> None:
    daemon = daemons(lease_seconds=2.0)
    rig = Rig(daemon)
    begun = daemon.status()["up_seconds"]
    until(lambda: daemon.status()["up_seconds"] > begun + 5.0)
    rig.check(1)
    assert daemon.status()["expired"] == 0
    rig.close()


def test_a_stopped_daemon_is_a_specific_error_and_a_new_one_serves(daemons: Daemons) -> None:
    daemon = daemons()
    rig = Rig(daemon, retry_after=0.0)
    rig.check(1)
    daemon.stop()
    assert rig.move(tr.READ) == errno.ENODEV
    with pytest.raises(ConnectionRefusedError if Path(daemon.path).exists() else FileNotFoundError) as caught:
        Rig(daemon)
    assert "no tutti-nvmed answers" in str(caught.value)
    daemon.start()
    assert rig.move(tr.READ) == errno.ENODEV  # its lease was the other daemon's
    anew = Rig(daemon)
    anew.check(2)
    anew.close()
    rig.close()


def test_queues_beyond_the_quota_are_not_given(daemons: Daemons) -> None:
    daemon = daemons({"max_queues": 8}, max_clients=4)
    greedy = [RawClient(daemon.path, queues=64) for _ in range(3)]
    assert [len(client.ids) for client in greedy] == [2, 2, 2]
    assert len({number for client in greedy for number in client.ids}) == 6
    rig = Rig(daemon, queues=8)  # the last one has its share, whatever the others asked for
    rig.check(1)
    with pytest.raises(Refused, match="max_clients=4 clients already") as refused:
        RawClient(daemon.path)
    assert refused.value.error == errno.EBUSY
    greedy[0].close()
    until(lambda: daemon.controller()["clients"] == 3)
    RawClient(daemon.path).close()
    rig.close()


def test_one_user_cannot_take_all_places(daemons: Daemons) -> None:
    daemon = daemons(max_clients=4, clients_per_user=2)
    kept = [RawClient(daemon.path) for _ in range(2)]
    with pytest.raises(Refused, match="clients_per_user=2"):
        RawClient(daemon.path)
    for client in kept:
        client.close()


def test_a_controller_with_too_few_queues_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grants 4 queue pair"):
        Daemon(tmp_path, {"max_queues": 4}, {"max_clients": 8})


def test_windows_of_a_client_are_bounded(daemons: Daemons) -> None:
    daemon = daemons(window_bytes=MIB, windows=8)
    client = RawClient(daemon.path)
    window, _, _ = client.map(MIB)
    with pytest.raises(Refused, match="may share 1048576 bytes and has 1048576"):
        client.map(PAGE)
    client.ask(nvmed.protocol.Message.UNMAP, window.to_bytes(8, "little"))
    for _ in range(8):
        client.map(PAGE)
    with pytest.raises(Refused, match="8 windows at once"):
        client.map(PAGE)
    client.close()
