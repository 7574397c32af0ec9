# SPDX-License-Identifier: Apache-2.0
"""Shared stores for tests: in this process's memory, and in a directory that processes share.

Both misbehave on request. ``Faults`` is the switchboard of a store in memory; a store in a directory obeys
files of that directory, so that a test can cut the stores of other processes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tutti_engine.shared.blocking_store import BlockingStore

__all__ = ["DirectoryStore", "Faults", "MemoryPool", "MemorySharedStore"]

Pieces = Sequence[tuple[memoryview, memoryview]]


@dataclass
class Faults:
    """What goes wrong with one client of a store, until it is set back.

    Attributes:
        delay: seconds that each call takes longer.
        error: errno that every call fails with, 0 for none.
        cut_until: ``time.monotonic()`` until which every call fails with ``ECONNREFUSED``.
        lose: whether objects that were seen are gone when they are read.
        running: cleared, calls hang until it is set again.
    """

    delay: float = 0.0
    error: int = 0
    cut_until: float = 0.0
    lose: bool = False
    running: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.running.set()

    def meet(self) -> None:
        """Wait or raise OSError, as is asked for."""
        self.running.wait()
        if self.delay:
            time.sleep(self.delay)
        code = errno.ECONNREFUSED if time.monotonic() < self.cut_until else self.error
        if code:
            raise OSError(code, os.strerror(code))


class MemoryPool:
    """Objects of any number of clients in this process."""

    def __init__(self, capacity_bytes: int = 1 << 62) -> None:
        self.capacity_bytes = capacity_bytes
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(map(len, self.objects.values()))


class MemorySharedStore(BlockingStore):
    """One client of a pool."""

    data_path = "memory"

    def __init__(self, pool: MemoryPool, faults: Faults | None = None, *, threads: int = 4) -> None:
        super().__init__(threads=threads)
        self.pool = pool
        self.faults = Faults() if faults is None else faults
        self.calls: dict[str, int] = {"exists": 0, "put": 0, "get": 0}

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        """Look."""
        self.calls["exists"] += 1
        self.faults.meet()
        with self.pool.lock:
            return [name in self.pool.objects for name in names]

    def remove(self, names: Sequence[str]) -> None:
        """Forget objects."""
        self.faults.meet()
        with self.pool.lock:
            for name in names:
                self.pool.objects.pop(name, None)

    def put(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Copy objects to the pool."""
        self.calls["put"] += len(names)
        self.faults.meet()
        statuses = []
        for name, (header, body) in zip(names, pieces):
            with self.pool.lock:
                room = self.pool.capacity_bytes - self.pool.used_bytes
                full = name not in self.pool.objects and len(header) + len(body) > room
                if not full:
                    self.pool.objects.setdefault(name, bytes(header) + bytes(body))
            statuses.append(errno.ENOSPC if full else 0)
        return statuses

    def get(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Copy objects from the pool."""
        self.calls["get"] += len(names)
        self.faults.meet()
        statuses = []
        for name, (header, body) in zip(names, pieces):
            with self.pool.lock:
                data = None if self.faults.lose else self.pool.objects.get(name)
            statuses.append(copy_object(data, header, body))
        return statuses


def copy_object(data: bytes | None, header: memoryview, body: memoryview) -> int:
    """Copy an object's bytes to its pieces; return its status."""
    if data is None:
        return errno.ENOENT
    if len(data) != len(header) + len(body):
        return errno.EBADMSG
    header[:] = data[: len(header)]
    body[:] = data[len(header) :]
    return 0


class DirectoryStore(BlockingStore):
    """Objects as files of a directory, seen by all processes of a machine. It never evicts: for tests.

    While the directory has a file ``cut`` every call fails, while it has one ``hang`` every call waits, while
    it has one ``full`` no object is written, and one ``slow`` holds the seconds that each call takes longer.

    Args:
        path: the directory, made if it is not there.
        capacity_bytes: from when on there is no room.
    """

    data_path = "directory"

    def __init__(self, path: str | os.PathLike[str], capacity_bytes: int = 1 << 62) -> None:
        super().__init__()
        self.path = Path(path)
        self.capacity_bytes = capacity_bytes
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        """Look."""
        self._meet()
        return [self._file(name).exists() for name in names]

    def remove(self, names: Sequence[str]) -> None:
        """Forget objects."""
        self._meet()
        for name in names:
            self._file(name).unlink(missing_ok=True)

    def put(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Write files that appear whole."""
        self._meet()
        return [self._put(name, header, body) for name, (header, body) in zip(names, pieces)]

    def get(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Read files."""
        self._meet()
        statuses = []
        for name, (header, body) in zip(names, pieces):
            try:
                data: bytes | None = self._file(name).read_bytes()
            except FileNotFoundError:
                data = None
            statuses.append(copy_object(data, header, body))
        return statuses

    def _put(self, name: str, header: memoryview, body: memoryview) -> int:
        target = self._file(name)
        if target.exists():
            return 0
        if (self.path / "full").exists() or self._used() + len(header) + len(body) > self.capacity_bytes:
            return errno.ENOSPC
        part = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}.part")
        with part.open("wb") as file:
            file.write(header)
            file.write(body)
        part.replace(target)
        return 0

    def _used(self) -> int:
        if self.capacity_bytes >= 1 << 62:
            return 0
        return sum(each.stat().st_size for each in self.path.glob("*.obj"))

    def _file(self, name: str) -> Path:
        return self.path / (hashlib.blake2b(name.encode(), digest_size=20).hexdigest() + ".obj")

    def _meet(self) -> None:
        while (self.path / "hang").exists():
            time.sleep(0.01)
        with contextlib.suppress(FileNotFoundError, ValueError):
            time.sleep(float((self.path / "slow").read_text()))
        if (self.path / "cut").exists():
            raise OSError(errno.ECONNREFUSED, "the directory is cut off")
