# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tutti_engine.errors import RootError, StoreBusyError
from tutti_engine.store.owner import LOCK_NAME, OwnerLock

HOLD = """
import sys
from tutti_engine.store.owner import OwnerLock
lock = OwnerLock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def start_owner(directory: Path) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    return owner


def test_second_owner_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    try:
        with pytest.raises(
            StoreBusyError, match=rf"process {owner.pid} since \d{{4}}-.*; .*another root"
        ) as caught:
            OwnerLock(tmp_path)
        assert caught.value.pid == owner.pid
    finally:
        owner.communicate("", timeout=10)


def test_lock_of_a_killed_owner_is_taken_over(tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=10)
    with OwnerLock(tmp_path):
        assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()


def test_second_owner_in_the_same_process_is_refused_until_release(tmp_path: Path) -> None:
    first = OwnerLock(tmp_path)
    with pytest.raises(StoreBusyError) as caught:
        OwnerLock(tmp_path)
    assert caught.value.pid == os.getpid()
    first.release()
    first.release()
    assert not first.held
    OwnerLock(tmp_path).release()


def test_forked_child_neither_owns_nor_keeps_the_store(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path)
    gate_read, gate_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(answer_write, b"1" if lock.held else b"0")
        os.close(gate_write)
        os.read(gate_read, 1)
        os._exit(0)
    try:
        assert os.read(answer_read, 1) == b"0"
        with pytest.raises(StoreBusyError):
            OwnerLock(tmp_path)
        lock.release()
        OwnerLock(tmp_path).release()  # the child lives on and must not hold it
    finally:
        os.write(gate_write, b"x")
        os.waitpid(child, 0)
        for fd in (gate_read, gate_write, answer_read, answer_write):
            os.close(fd)


def test_lock_file_is_private_and_names_its_owner(tmp_path: Path) -> None:
    with OwnerLock(tmp_path):
        path = tmp_path / LOCK_NAME
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        owner = json.loads(path.read_text())
        assert owner["pid"] == os.getpid()
        assert owner["started"] > 0
        assert owner["host"]


def test_link_as_lock_file_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to(target)
    with pytest.raises(RootError, match="symbolic link"):
        OwnerLock(tmp_path)
    assert target.read_text() == "precious"


def test_missing_directory_keeps_errno(tmp_path: Path) -> None:
    with pytest.raises(RootError) as caught:
        OwnerLock(tmp_path / "none")
    assert caught.value.errno == 2


@pytest.mark.parametrize("renewed", [False, True])
def test_lock_in_a_deleted_directory_is_no_longer_current(tmp_path: Path, renewed: bool) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    lock = OwnerLock(directory)
    assert lock.current
    shutil.rmtree(directory)
    if renewed:
        directory.mkdir()
        OwnerLock(directory).release()
    assert lock.held
    assert not lock.current
    lock.release()
    assert not lock.current


def test_a_look_at_the_lock_is_not_taken_for_an_owner(tmp_path: Path) -> None:
    OwnerLock(tmp_path).release()
    looking, looked = threading.Event(), threading.Event()

    def look() -> None:
        with (tmp_path / LOCK_NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            looking.set()
            looked.wait(0.1)

    thread = threading.Thread(target=look)
    thread.start()
    assert looking.wait(10)
    OwnerLock(tmp_path).release()
    thread.join()


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = fcntl.flock, tmp_path / LOCK_NAME

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        # Between opening and locking somebody removes the store.
        path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with OwnerLock(tmp_path) as lock:
        assert lock.current
