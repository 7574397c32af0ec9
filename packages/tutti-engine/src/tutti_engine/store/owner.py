# SPDX-License-Identifier: Apache-2.0
"""One owner a store: a lock that dies with its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tutti_engine.errors import RootError, StoreBusyError

__all__ = ["LOCK_NAME", "Owner", "OwnerLock", "read_owner"]

LOCK_NAME = "owner.lock"

LOOK_SECONDS = 0.5
"""Others lock the file for a moment to see whether it is owned: only who has it for longer is an owner."""

LOOK_PAUSE = 0.01

OWNER_BYTES = 4096
"""Bytes that are read of what an owner wrote."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What the last owner of a directory wrote down about itself.

    Attributes:
        pid: its process, None when that cannot be read.
        since: when it took the directory, its local time, empty when that cannot be read.
        host: its machine's name, empty when that cannot be read.
    """

    pid: int | None = None
    since: str = ""
    host: str = ""

    @classmethod
    def parse(cls, text: bytes) -> Owner:
        """Read what ``OwnerLock`` wrote; what is not like that counts as not said."""
        try:
            found = json.loads(text)
            pid, since, host = found["pid"], found.get("since"), found.get("host")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls()
        return cls(
            pid if isinstance(pid, int) else None,
            since if isinstance(since, str) and len(since) == len("2000-01-01 00:00:00") else "",
            host if isinstance(host, str) else "",
        )


def read_owner(directory: Path | str) -> Owner:
    """Return who had a directory last, without a lock: it says nothing about whether somebody has it now."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(Path(directory) / LOCK_NAME, flags)
    except OSError:
        return Owner()
    try:
        return Owner.parse(os.pread(descriptor, OWNER_BYTES, 0))
    except OSError:
        return Owner()
    finally:
        os.close(descriptor)


def process_start_ticks() -> int:
    """Return when this process started, in clock ticks since boot: tells a pid from its later namesake."""
    stat = Path("/proc/self/stat").read_text()
    # The command's name may hold blanks and brackets; fields are counted from its closing bracket.
    return int(stat.rpartition(")")[2].split()[19])


class OwnerLock:
    """Exclusive ownership of a directory, held from construction until ``release`` or the process' end.

    The kernel drops the lock with its process, so one left by a crashed owner is taken over silently. A child
    made by ``os.fork`` does not own the store: its copy of the descriptor is closed, so that it cannot keep
    the lock alive beyond its parent. (Forks that bypass Python's hooks are not seen.)

    Raises StoreBusyError, naming the owner's pid, when a running process has the lock, and RootError when the
    lock file cannot be opened.
    """

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory) / LOCK_NAME
        self._fd = -1
        # First of all: a child that is forked meanwhile must not keep the lock either.
        _held.add(self)
        deadline = time.monotonic() + LOOK_SECONDS
        while not self._try():
            if time.monotonic() >= deadline:
                pid, since = self._read_owner()
                self.release()
                who = "another process" if pid is None else f"process {pid}"
                raise StoreBusyError(
                    f"{self.path.parent} is in use by {who}{since}; stop it, give this server another root or"
                    " let it only read",
                    path=self.path,
                    pid=pid,
                )
            self.release()
            time.sleep(LOOK_PAUSE)

    def _try(self) -> bool:
        """Open the file and lock it; return whether it is locked and still the one at the path."""
        self._fd = self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self.current:
                # Somebody removed the store, and let go of the lock only then.
                return False
            self._write_owner()
        except BlockingIOError:
            return False
        except OSError as error:
            self.release()
            raise RootError(
                f"cannot lock {self.path}: {error.strerror}", path=self.path, errno=error.errno
            ) from error
        return True

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise RootError(
                f"cannot open {self.path}: {reason}", path=self.path, errno=error.errno
            ) from error

    def _write_owner(self) -> None:
        owner = {
            "pid": os.getpid(),
            "started": process_start_ticks(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "host": socket.gethostname(),
        }
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(owner).encode(), 0)

    def _read_owner(self) -> tuple[int | None, str]:
        """Return the owner's pid and a remark since when it has the store, as far as that can be read."""
        try:
            owner = Owner.parse(os.pread(self._fd, OWNER_BYTES, 0))
        except OSError:
            return None, ""
        return owner.pid, f" since {owner.since}" if owner.since else ""

    @property
    def held(self) -> bool:
        """Whether this object still owns the store."""
        return self._fd >= 0

    @property
    def current(self) -> bool:
        """Whether this object still owns the store and its lock is the one that others find at the path.

        False once the directory was deleted, moved or replaced: somebody else may own what is there now.
        """
        if not self.held:
            return False
        mine = os.fstat(self._fd)
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        """Give the store up.

        The file stays: removing it would race with the next owner. Later calls do nothing.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _forget_in_child(self) -> None:
        self.release()

    def __enter__(self) -> OwnerLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for lock in list(_held):
        lock._forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)
