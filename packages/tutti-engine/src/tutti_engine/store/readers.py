# SPDX-License-Identifier: Apache-2.0
"""Servers that only read a store: a shared lock that dies with them, so that nobody removes it under them.

The store's owner makes the file, since a reader writes nothing. Where it is missing (an earlier version's
store) or cannot be opened, readers go without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tutti_engine.errors import RootError, StoreBusyError

__all__ = ["READERS_NAME", "ReaderLock", "make_readers_file", "reader_of", "without_readers"]

READERS_NAME = "readers.lock"

LOOK_SECONDS = 0.5
"""Others lock the file for a moment to see whether somebody reads: only who has it for longer removes it."""

LOOK_PAUSE = 0.01

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def make_readers_file(directory: Path) -> None:
    """Make the file that readers lock. A store without it works all the same."""
    with contextlib.suppress(OSError):
        os.close(os.open(directory / READERS_NAME, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600))


class ReaderLock:
    """Says that this process reads a store, from construction until ``release`` or the process' end.

    Raises RootError when the store is being removed.
    """

    def __init__(self, directory: Path) -> None:
        self._pid = os.getpid()
        try:
            self._fd = os.open(directory / READERS_NAME, os.O_RDONLY | _FLAGS)
        except OSError:
            self._fd = -1
            return
        deadline = time.monotonic() + LOOK_SECONDS
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self.release()
                    raise RootError(f"{directory} is being removed; try again", path=directory) from None
                time.sleep(LOOK_PAUSE)
            except OSError:
                # A file system without locks.
                self.release()
                return

    @property
    def held(self) -> bool:
        """Whether others can see that this process reads."""
        return self._fd >= 0

    def release(self) -> None:
        """Read no more. Later calls do nothing."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        # Children that were forked meanwhile have it open as well. One of them does not speak for its parent.
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


@contextlib.contextmanager
def without_readers(directory: Path) -> Iterator[None]:
    """Let nobody begin to read a store. Raises StoreBusyError while somebody does."""
    try:
        descriptor = os.open(directory / READERS_NAME, os.O_RDONLY | _FLAGS)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = locked_by(descriptor)
            who = "a process" if pid is None else f"process {pid}"
            raise StoreBusyError(
                f"{directory} is read by {who}; stop it first", path=directory, pid=pid
            ) from None
        except OSError:
            # A file system without locks: readers have none either.
            pass
        yield
    finally:
        os.close(descriptor)


def reader_of(directory: Path) -> StoreBusyError | None:
    """Return what says who reads a store; None if nobody does, or nobody can tell."""
    try:
        with without_readers(directory):
            return None
    except StoreBusyError as error:
        return error


def locked_by(descriptor: int, locks: Path = Path("/proc/locks")) -> int | None:
    """Return a process that has a lock on a file; None when that cannot be told.

    Args:
        descriptor: the file, open.
        locks: the kernel's list, see proc_locks(5).
    """
    found = os.fstat(descriptor)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in locks.read_text().splitlines():
            fields = line.split()
            # Those that wait for a lock have an arrow in front.
            if fields[1] == "FLOCK" and fields[5] == wanted and int(fields[4]) > 0:
                return int(fields[4])
    return None
