# SPDX-License-Identifier: Apache-2.0
"""A controller that fails under a broker, and a daemon that is killed: what clients see of it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvmed_kit import MIB, PAGE, Daemon, RawClient, Refused, Rig, until
from runtime_kit import batch, request

import tutti_runtime as tr
from tutti_runtime import nvmed
from tutti_runtime.nvmed.protocol import Message

Daemons = Callable[..., Daemon]

DELETE_SQ = 0x00
INTERNAL_ERROR = 0x006


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made: list[Daemon] = []

    def build(drive: dict[str, Any] | None = None, **keys: Any) -> Daemon:
        made.append(Daemon(tmp_path, {"timeout_ms": 500} | (drive or {}), {"admin_timeout": 0.3} | keys))
        return made[-1]

    yield build
    for daemon in made:
        daemon.control.heal()
        daemon.stop()


@pytest.mark.parametrize("fault", ["fatal", "reset", "drop_completion", "wrong_phase", "bad_head"])
def test_clients_work_again_after_the_controller_failed(fault: str, daemons: Daemons) -> None:
    daemon = daemons()
    rigs = [Rig(daemon, command_timeout=0.3) for _ in range(2)]
    daemon.control.add({"fault": fault})
    for seed, rig in enumerate(rigs):
        rig.move(tr.WRITE)  # one of the two meets the fault; it may be sent again, or end with an error
        rig.check(seed, place=seed * MIB)
    for rig in rigs:
        rig.close()
    daemon.until_empty()


def test_a_device_that_is_gone_ends_items_and_comes_back(daemons: Daemons) -> None:
    daemon = daemons()
    rigs = [Rig(daemon, retry_after=0.0) for _ in range(2)]
    daemon.control.add({"fault": "unplug"})
    assert rigs[0].move(tr.WRITE) == errno.ENODEV
    assert rigs[1].move(tr.WRITE) == errno.ENODEV
    assert not daemon.controller()["up"]
    daemon.control.heal()
    for seed, rig in enumerate(rigs):
        until(lambda rig=rig: rig.move(tr.WRITE) == 0)
        rig.check(seed)
        rig.close()
    daemon.until_empty()


def test_a_lease_outlives_a_reset_that_takes_longer_than_an_answer_may(daemons: Daemons) -> None:
    """The daemon waits for CSTS.RDY meanwhile, for up to CAP.TO."""
    daemon = daemons({"timeout_ms": 1000})
    spec = {"transport": "broker", "name": "disk0", "socket": daemon.path, "answer_timeout": 0.4}
    runtime = tr.make_nvme_runtime(controllers=[spec], command_timeout=0.3, retry_after=0.0)
    memory = nvmed.SharedMemory(PAGE)
    handle = runtime.register_memory(memory.address, PAGE)
    target = runtime.open(daemon.uri())

    def write() -> int:
        submitted = runtime.submit(batch(request(tr.WRITE, handle, 0, target, 0, PAGE)), timeout=20.0)
        assert submitted.handle is not None
        return int(runtime.wait(submitted.handle, 60).status[0])

    daemon.control.add({"fault": "stuck"})
    assert write() != 0
    until(lambda: any("does not answer" in line for line in daemon.lines))
    daemon.control.heal()
    until(lambda: write() == 0)
    assert daemon.controller()["clients"] == 1
    assert runtime.shutdown(60)


def test_a_client_that_dies_on_a_stuck_controller_is_cut_off_with_it(daemons: Daemons) -> None:
    """Its queue cannot be deleted, nor the controller be reset: bus master enable is what is left."""
    daemon = daemons()
    other = Rig(daemon, retry_after=0.0, command_timeout=0.3)
    client = RawClient(daemon.path)
    client.make_queue()
    _, where, memory = client.map(PAGE)
    daemon.control.add({"fault": "stuck"})
    client.put(2, where, 0, 0, 8)
    assert daemon.control.wait_faults(1, 30)
    client.close()
    until(lambda: not daemon.controller()["up"])
    assert daemon.controller()["stranded"] == 0
    memory[:] = 5
    assert other.move(tr.WRITE) != 0
    daemon.control.heal()
    until(lambda: other.move(tr.WRITE) == 0)
    other.check(1)
    other.close()
    daemon.until_empty()
    assert (memory == 5).all()  # what was under way did not run later


def test_a_queue_that_cannot_be_deleted_costs_a_reset(daemons: Daemons) -> None:
    daemon = daemons()
    other = Rig(daemon)
    client = RawClient(daemon.path)
    client.make_queue()
    daemon.control.add({"fault": "status", "admin": True, "opcode": DELETE_SQ, "status": INTERNAL_ERROR})
    client.close()
    until(lambda: daemon.controller()["clients"] == 1)
    assert daemon.controller()["resets"] == 1
    other.check(1)
    other.close()
    daemon.until_empty()
    assert daemon.control.violations() == []


def test_commands_under_way_end_before_their_memory_goes(daemons: Daemons) -> None:
    """Commands of a client that ended are not carried out afterwards: the strict controller would tell."""
    daemon = daemons({"latency": 0.2})
    for _ in range(5):
        client = RawClient(daemon.path)
        client.make_queue()
        _, where, _ = client.map(PAGE)
        for _ in range(10):
            client.put(2, where, 0, 0, 8)
        until(lambda: daemon.control.counters()["commands"] % 10 == 0 < daemon.control.counters()["commands"])
        client.close()
        daemon.until_empty()
    assert daemon.control.counters()["reads"] == 0
    assert daemon.control.violations() == []


def start_daemon(folder: Path, **drive: Any) -> tuple[subprocess.Popen[str], str]:
    path = str(folder / "tutti" / "s")
    spec = {"transport": "soft", "name": "disk0", "image": str(folder / "image")} | drive
    (folder / "image").touch()
    os.truncate(folder / "image", 16 * MIB)
    (folder / "settings.json").write_text(json.dumps({"socket": path, "controllers": [spec]}))
    command = [sys.executable, "-m", "tutti_runtime.nvmed", "--config", str(folder / "settings.json")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "listening on" in process.stderr.readline()
    return process, path


def end(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    _, _ = process.communicate(timeout=60)
    return process.returncode


def test_a_killed_daemon_ends_what_is_under_way_and_another_takes_over(tmp_path: Path) -> None:
    process, path = start_daemon(tmp_path, latency=30.0)
    spec = {"transport": "broker", "name": "disk0", "socket": path}
    runtime = tr.make_nvme_runtime(controllers=[spec], command_timeout=300.0)
    memory = nvmed.SharedMemory(MIB)
    handle = runtime.register_memory(memory.address, MIB)
    target = runtime.open(f"nvme://disk0/1?broker={path}")
    rows = [request(tr.READ, handle, i * PAGE, target, i * PAGE, PAGE) for i in range(64)]
    submitted = runtime.submit(batch(*rows), timeout=600)
    assert submitted.handle is not None
    killer = threading.Thread(target=end, args=(process, signal.SIGKILL))
    killer.start()
    done = runtime.wait(submitted.handle, 60)
    killer.join()
    assert set(done.status.tolist()) == {errno.ENODEV}
    with pytest.raises(ConnectionRefusedError, match="no tutti-nvmed answers"):
        tr.make_nvme_runtime(controllers=[spec])
    assert runtime.shutdown(30)
    process, path = start_daemon(tmp_path)
    anew = tr.make_runtime(f"nvme://disk0/1?broker={path}")
    assert anew.shutdown(30)
    assert end(process, signal.SIGTERM) == 0
    assert not Path(path).exists()


def test_a_daemon_that_hangs_keeps_items_late_and_their_memory(tmp_path: Path) -> None:
    """Nobody knows what the device does. Once the daemon goes on, it ends the lease, and the items end."""
    process, path = start_daemon(tmp_path, timeout_ms=500)  # a client waits for resets, too
    spec = {"transport": "broker", "name": "disk0", "socket": path, "answer_timeout": 0.2}
    runtime = tr.make_nvme_runtime(controllers=[spec], command_timeout=0.2, retry_after=0.0)
    memory = nvmed.SharedMemory(MIB)
    handle = runtime.register_memory(memory.address, MIB)
    target = runtime.open(f"nvme://disk0/1?broker={path}")
    process.send_signal(signal.SIGSTOP)
    read = batch(request(tr.READ, handle, 0, target, 0, PAGE))
    submitted = runtime.submit(read, timeout=600)
    assert submitted.handle is not None
    with pytest.raises(TimeoutError):
        runtime.wait(submitted.handle, 4.0)
    process.send_signal(signal.SIGCONT)
    assert runtime.wait(submitted.handle, 60).status.tolist() == [errno.ETIMEDOUT]
    submitted = runtime.submit(read, timeout=600)
    assert submitted.handle is not None
    assert runtime.wait(submitted.handle, 60).status.tolist() == [errno.ENODEV]
    assert runtime.shutdown(30)
    anew = tr.make_nvme_runtime(controllers=[spec | {"answer_timeout": 10.0}])
    assert anew.shutdown(30)
    assert end(process, signal.SIGTERM) == 0


def test_a_daemon_without_descriptors_ends_no_lease_and_takes_clients_later(tmp_path: Path) -> None:
    path = str(tmp_path / "tutti" / "s")
    values = {
        "socket": path,
        "lease_seconds": 3600,
        "controllers": [{"transport": "soft", "name": "disk0", "memory_bytes": MIB}],
    }
    (tmp_path / "settings.json").write_text(json.dumps(values))
    arguments = [sys.executable, "-m", "tutti_runtime.nvmed", "--config", str(tmp_path / "settings.json")]
    command = ["bash", "-c", 'ulimit -n 40 && exec "$@"', "bash", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and "listening on" in process.stderr.readline()
    good = RawClient(path)
    good.make_queue()
    others = [RawClient(path, hello=False) for _ in range(40)]  # as many as it has, the rest in its backlog
    until(lambda: len(list(Path(f"/proc/{process.pid}/fd").iterdir())) == 40)
    with pytest.raises(Refused, match="no free descriptor") as refused:
        good.map(PAGE)
    assert refused.value.error == errno.EMFILE
    for other in others:
        other.close()
    good.ask(Message.BEAT)
    RawClient(path).close()
    good.map(PAGE)
    good.close()
    assert end(process, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("change", "rule"),
    [({"socket": "s"}, "absolute path"), ({"socket": "/" + "s" * 107}, "107"), ({"name": "n" * 208}, "208")],
)
def test_what_no_client_could_use_is_no_setting(change: dict[str, str], rule: str) -> None:
    spec = {"transport": "soft", "name": change.get("name", "disk0"), "memory_bytes": MIB}
    with pytest.raises(ValueError, match=rule):
        nvmed.BrokerSettings.of({"controllers": [spec], "socket": change.get("socket", "/run/s")})


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tutti_runtime.nvmed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_line(tmp_path: Path) -> None:
    process, path = start_daemon(tmp_path)
    client = RawClient(path)
    told = run_cli("--status", "--json", "--socket", path)
    status = json.loads(told.stdout)
    assert told.returncode == 0 and status["pid"] == process.pid
    assert status["clients"][0]["pid"] == os.getpid() and status["controllers"][0]["name"] == "disk0"
    told = run_cli("--status", "--socket", path)
    assert "1 client(s)" in told.stdout and "disk0: Tutti soft controller" in told.stdout
    again = run_cli("--config", str(tmp_path / "settings.json"))
    assert again.returncode == 1 and again.stderr.count("\n") == 1
    assert f"another tutti-nvmed (pid {process.pid}) listens here" in again.stderr
    assert run_cli("--check", str(tmp_path / "settings.json")).returncode == 0
    (tmp_path / "bad.json").write_text('{"controllers": [], "lease": 3}')
    bad = run_cli("--check", str(tmp_path / "bad.json"))
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "lease" in bad.stderr
    client.close()
    assert end(process, signal.SIGTERM) == 0
    gone = run_cli("--status", "--socket", path)
    assert gone.returncode == 1 and gone.stderr.count("\n") == 1 and "no tutti-nvmed answers" in gone.stderr
