# SPDX-License-Identifier: Apache-2.0
"""Clients that break rules in what they say, map, and put into queues. A good client sees nothing of it."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvmed_kit import MIB, PAGE, Daemon, RawClient, Refused, Rig, spawn, until

from tutti_runtime import nvmed
from tutti_runtime.nvmed import protocol
from tutti_runtime.nvmed.listener import Listener
from tutti_runtime.nvmed.protocol import Message

Daemons = Callable[..., Daemon]

ACCESS_DENIED = 0x286
TRANSFER_ERROR = 0x004
PRP_OFFSET = 0x013
INVALID_QUEUE = 0x101
DO_NOT_RETRY = 0x4000
READ, WRITE = 2, 1


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made: list[Daemon] = []

    def build(drive: dict[str, Any] | None = None, **keys: Any) -> Daemon:
        made.append(Daemon(tmp_path, drive or {}, keys))
        return made[-1]

    yield build
    for daemon in made:
        daemon.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("shared"))
    yield daemon
    daemon.stop()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@given(st.binary(max_size=600))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_message_end_the_connection(shared: Daemon, datagram: bytes) -> None:
    client = RawClient(shared.path, hello=False)
    client.send(datagram or b"\0")
    with pytest.raises((Refused, ConnectionResetError)):
        client.receive()
        client.receive()
    client.close()


@given(
    st.integers(0, 0xFFFF), st.binary(max_size=300), st.integers(0, 3), st.booleans(), st.integers(0, 0xFFFF)
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_messages_with_anything_in_them_never_stop_the_daemon(
    shared: Daemon, kind: int, payload: bytes, files: int, whole: bool, version: int
) -> None:
    """Half of them are requests that exist, with the length that they must have."""
    if whole:
        kind = kind % 7 + 1
        payload = payload.ljust(512, b"\xa5")[: protocol.PAYLOAD_BYTES[Message(kind)]]
        version = protocol.VERSION
    client = RawClient(shared.path, queues=1)
    made = [client.memfd(PAGE) for _ in range(files)]
    header = protocol.HEADER.pack(protocol.MAGIC, version, kind, 9, len(payload))
    client.send(header + payload, made)
    for file in made:
        os.close(file)
    try:
        client.receive()
    except (Refused, ConnectionResetError):
        pass
    client.close()
    shared.until_empty()


@given(
    st.integers(0, 255), st.integers(0, 1 << 32 - 1), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 48)
)
@settings(max_examples=150, deadline=None)
def test_admin_commands_with_anything_in_them_stay_the_clients_own(
    shared: Daemon, opcode: int, cdw10: int, cdw11: int, data: int
) -> None:
    other = RawClient(shared.path)
    client = RawClient(shared.path)
    client.admin(opcode, cdw10, cdw11, data, 1)
    client.admin(opcode % 10, other.ids[0] | cdw10 & 0xFFFF0000, cdw11, data, 1)
    other.make_queue()
    for kind in (0, 4):  # deletes
        assert client.admin(kind, other.ids[0]) == INVALID_QUEUE | DO_NOT_RETRY
    other.close()
    client.close()
    shared.until_empty()


def test_the_daemon_is_whole_after_all_that(shared: Daemon) -> None:
    rig = Rig(shared)
    rig.check(1)
    rig.close()
    shared.until_empty()
    del rig
    gc.collect()
    before = open_files()
    for _ in range(20):
        client = RawClient(shared.path)
        client.map(PAGE)
        client.close()
    del client
    shared.until_empty()
    gc.collect()  # mappings of the clients
    # The daemon, a thread of this process, ends its side of a connection after the answer has come: also
    # that of who asked for the status. What is lost stays lost, so waiting hides nothing.
    until(lambda: open_files() <= before)
    assert shared.controller()["resets"] == 0


def test_descriptors_that_are_no_steady_memory_are_refused(shared: Daemon) -> None:
    client = RawClient(shared.path)
    reader, writer = os.pipe()
    unsealed = client.memfd(PAGE, seals=0)
    small = client.memfd(PAGE)
    sparse = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.ftruncate(sparse, 1 << 40)
    fcntl.fcntl(sparse, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    plain = os.open(str(Path(shared.path).parent), os.O_RDONLY)
    for file, size, rule in (
        (reader, PAGE, "must be a memfd"),
        (plain, PAGE, "must be a memfd"),
        (unsealed, PAGE, "sealed against shrinking"),
        (small, 2 * PAGE, "inside of the file"),
        (small, 100, "whole pages"),
        (small, 0, "whole pages"),
        (sparse, 1 << 30, "must be allocated"),
    ):
        with pytest.raises(Refused, match=rule) as refused:
            client.ask(Message.MAP, struct.pack("<QQ", 0, size), [file])
        assert refused.value.error == errno.EINVAL
    with pytest.raises(Refused, match="whole pages inside"):
        client.ask(Message.MAP, struct.pack("<QQ", (1 << 64) - PAGE, 2 * PAGE), [small])
    for file in (reader, writer, unsealed, small, plain, sparse):
        os.close(file)
    client.close()


def test_the_state_page_cannot_be_written(shared: Daemon) -> None:
    client = RawClient(shared.path, hello=False)
    client.ask(Message.HELLO, struct.pack(f"<II{protocol.NAME_BYTES}s", 1, 0, b"disk0"))
    state = client.files[0]
    with pytest.raises(OSError, match=r"Permission|permitted|Bad file"):
        os.write(state, b"\xff")
    anew = os.open(f"/proc/self/fd/{state}", os.O_RDWR)  # root can; the seal holds all the same
    with pytest.raises(PermissionError):
        mmap.mmap(anew, PAGE)
    with pytest.raises(PermissionError):
        os.write(anew, b"\xff")
    os.close(anew)
    for file in client.files:
        os.close(file)
    client.close()


def test_another_version_is_told_which_one_is_spoken(shared: Daemon) -> None:
    client = RawClient(shared.path, hello=False)
    client.send(protocol.HEADER.pack(protocol.MAGIC, 7, Message.STATUS, 1, 0))
    with pytest.raises(Refused, match="version=7 is not spoken here, 1 is") as refused:
        client.receive()
    assert refused.value.error == errno.EPROTONOSUPPORT
    client.close()


def test_windows_under_a_queue_stay(shared: Daemon) -> None:
    client = RawClient(shared.path)
    client.make_queue()
    with pytest.raises(Refused, match="has queue"):
        client.ask(Message.UNMAP, struct.pack("<II", client.sq_window, 0))
    client.close()
    shared.until_empty()


def test_memory_of_another_client_is_out_of_reach(daemons: Daemons) -> None:
    daemon = daemons()
    victim, thief = RawClient(daemon.path), RawClient(daemon.path)
    _, where, secret = victim.map(PAGE)
    secret[:] = 7
    thief.make_queue()
    thief.put(WRITE, where, 0, 0, 8)  # a write to the drive reads memory
    assert thief.take() == TRANSFER_ERROR | DO_NOT_RETRY
    thief.put(READ, where, 0, 0, 8)
    assert thief.take() == TRANSFER_ERROR | DO_NOT_RETRY
    assert (secret == 7).all()
    victim.close()
    thief.close()


def test_blocks_that_were_not_given_are_out_of_reach(daemons: Daemons) -> None:
    grant = {"controller": "disk0", "nsid": 1, "first_lba": 2048, "blocks": 2048, "uid": os.geteuid()}
    daemon = daemons(ranges=[grant])
    rig = Rig(daemon, uri=daemon.uri(offset=MIB, size=MIB))
    rig.check(1)
    for uri in (daemon.uri(), daemon.uri(offset=0, size=PAGE), daemon.uri(offset=MIB, size=MIB + PAGE)):
        with pytest.raises(PermissionError, match="are not those that"):
            rig.runtime.open(uri)
    rig.close()
    client = RawClient(daemon.path)  # that asks no library
    client.make_queue()
    _, where, memory = client.map(PAGE)
    for slba, status in (
        (2047, ACCESS_DENIED),
        (4089, ACCESS_DENIED),
        (0, ACCESS_DENIED),
        (2048, 0),
        (4088, 0),
    ):
        memory[:] = 0xEE
        client.put(WRITE, where, 0, slba, 8)
        assert client.take() & ~DO_NOT_RETRY == status
    client.close()


def test_lists_that_run_in_a_circle_end(daemons: Daemons) -> None:
    daemon = daemons()
    client = RawClient(daemon.path)
    client.make_queue()
    _, where, memory = client.map(2 * PAGE)
    memory.view(np.uint64)[511] = where + PAGE - 8  # the last entry of a list page names itself
    client.put(READ, where, where + PAGE - 8, 0, 8 * 16)
    assert client.take() & ~DO_NOT_RETRY == PRP_OFFSET
    client.put(READ, where, 0, 0, 8)
    assert client.take() == 0
    client.close()


@pytest.mark.parametrize("value", [16, 1 << 31, 0xFFFFFFFF])
def test_doorbells_that_no_queue_has_are_not_carried(value: int, daemons: Daemons) -> None:
    daemon = daemons()
    good, client = Rig(daemon), RawClient(daemon.path)
    client.make_queue(16)
    client.ring(value)
    until(lambda: daemon.controller()["refused_doorbells"] >= 1)
    client.doorbells[2 * client.id + 1] = value
    until(lambda: daemon.controller()["refused_doorbells"] >= 2)
    client.doorbells[:] = 3  # those of everybody's queues, in this client's own page
    good.check(1)
    client.close()
    good.close()
    assert daemon.controller()["resets"] == 0


def test_a_queue_that_is_overrun_or_never_read_stops_alone(daemons: Daemons) -> None:
    daemon = daemons()
    good, client = Rig(daemon), RawClient(daemon.path)
    client.make_queue(16)
    _, where, _ = client.map(PAGE)
    for _ in range(200):  # takes no completion
        client.put(READ, where, 0, 0, 8)
        good.check(2)
    client.close()
    good.check(3)
    good.close()
    daemon.until_empty()
    assert daemon.controller()["resets"] == 0


def test_who_says_nothing_is_dropped_and_cannot_crowd_out(daemons: Daemons) -> None:
    daemon = daemons(lease_seconds=2.0)
    silent = [RawClient(daemon.path, hello=False) for _ in range(16)]
    with pytest.raises(Refused, match="have no lease yet"):
        RawClient(daemon.path)
    until(lambda: sum("no lease for" in line for line in daemon.lines) == 16)
    rig = Rig(daemon)
    rig.check(1)
    rig.close()
    for client in silent:
        client.close()


def test_who_takes_no_replies_is_dropped(daemons: Daemons) -> None:
    daemon = daemons()
    client = RawClient(daemon.path)
    header = protocol.HEADER.pack(protocol.MAGIC, protocol.VERSION, Message.STATUS, 1, 0)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            client.send(header)
    client.close()
    rig = Rig(daemon)
    rig.check(1)
    rig.close()


def test_other_users_are_refused(daemons: Daemons) -> None:
    daemon = daemons(uids=[os.geteuid() + 12345])
    with pytest.raises(PermissionError, match="is not in uids"):
        Rig(daemon)
    with pytest.raises(PermissionError, match="is not in uids"):
        daemon.status()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_users_have_blocks_and_rights_of_their_own() -> None:
    """Two users with a range each, and a third one that is none of the daemon's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    grants = [
        {"controller": "disk0", "nsid": 1, "first_lba": 2048 * i, "blocks": 2048, "uid": 70001 + i}
        for i in (0, 1)
    ]
    keys = {"uids": [70001, 70002], "gids": [], "group": 70000, "ranges": grants}
    daemon = Daemon(folder, settings=keys)
    code = """
import numpy.random, os, tutti_runtime as tr  # while all files can be read
from nvmed_kit import MIB, Rig
class Place: path = sys.argv[1]
os.setgroups([]); os.setgid(70000); os.setuid(int(sys.argv[2]))
own, other = int(sys.argv[3]) * MIB, (1 - int(sys.argv[3])) * MIB
uri = "nvme://disk0/1?size=1048576&offset="
try:
    rig = Rig(Place, uri=uri + str(own))
    rig.check(1, 0, MIB)
    try:
        rig.runtime.open(uri + str(other))
    except PermissionError:
        print("own blocks only")
except PermissionError as error:
    print("is not in uids" in str(error))
"""
    try:
        said = {}
        for uid, part in ((70001, 0), (70002, 1), (70003, 0)):
            client = spawn(code, daemon.path, uid, part)
            said[uid] = client.communicate(timeout=60)[0].strip()
        assert said == {70001: "own blocks only", 70002: "own blocks only", 70003: "True"}
    finally:
        daemon.stop()
        shutil.rmtree(folder)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="mode 0777"):
        Listener(str(folder / "s"))
    folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(PermissionError, match="not a symbolic link"):
        Listener(str(link / "s"))
    (folder / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="in the way"):
        Listener(str(folder / "s"))
    (folder / "s").unlink()
    (folder / "s").write_text("precious")
    with pytest.raises(PermissionError, match="in the way"):
        Listener(str(folder / "s"))
    assert (folder / "s").read_text() == "precious"
    with pytest.raises(ValueError, match="absolute path"):
        Listener("relative/s")


def test_one_daemon_listens_and_a_killed_ones_socket_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "tutti" / "s"
    first = Listener(str(path))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with pytest.raises(OSError, match=f"pid {os.getpid()}") as caught:
        Listener(str(path))
    assert caught.value.errno == errno.EADDRINUSE
    first.close()
    code = (
        "import os, sys; from tutti_runtime.nvmed.listener import Listener; kept = Listener(sys.argv[1]); "
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert path.is_socket()
    Listener(str(path)).close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"controller": []}, "controllers"),
        ({"controllers": []}, "one or more"),
        ({"controllers": [{"transport": "broker", "name": "a", "socket": "/x"}]}, "transport"),
        ({"max_clients": 0}, "max_clients=0"),
        ({"lease_seconds": True}, "lease_seconds=True"),
        ({"uids": [-1]}, "uids=-1"),
        ({"ranges": [{"controller": "disk9", "nsid": 1, "blocks": 1, "uid": 1}]}, "disk9"),
        ({"ranges": [{"controller": "disk0", "nsid": 1, "blocks": 1}]}, "one of 'uid' and 'gid'"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], rule: str) -> None:
    base = {"controllers": [{"transport": "soft", "name": "disk0", "memory_bytes": MIB}]}
    with pytest.raises(ValueError, match=rule):
        nvmed.BrokerSettings.of(base | change)


def test_who_only_asks_for_the_status_cannot_crowd_out(daemons: Daemons) -> None:
    daemon = daemons(lease_seconds=2.0)
    asking = [RawClient(daemon.path, hello=False) for _ in range(16)]

    def admitted() -> bool:
        for client in list(asking):
            try:
                client.ask(Message.STATUS)
            except (ConnectionResetError, BrokenPipeError):
                asking.remove(client)
                client.close()
        try:
            RawClient(daemon.path).close()
        except Refused:
            return False
        return True

    until(admitted)
    for client in asking:
        client.close()
