# SPDX-License-Identifier: Apache-2.0
"""A store that several servers share, in the memory of a Mooncake cluster.

Needs one of Mooncake's client distributions, imported only when a store is made. Bytes go straight between
the windows and the cluster: both are registered with the client once, and an object's header and body are
the parts of one of its transfers.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tutti_engine.backend import StagingWindow
from tutti_engine.backends.mooncake_client import CALLS, Calls, MooncakeOptions, connect, errno_of, load
from tutti_engine.shared.blocking_store import BlockingStore

__all__ = ["MooncakeStore"]

Pieces = Sequence[tuple[memoryview, memoryview]]


NICENESS = 10
"""By how much threads that call the client give way to the others.

A call that moves objects waits in a loop that asks without a pause whether they have come; on few cores it
takes from the client's own threads, which bring them, and from those that verify what came.
"""

SPARE_THREADS = 4
"""Threads of each direction for calls beside those that hang."""


class Turns:
    """Lets so many in at a time, not counting those that have been in for too long."""

    def __init__(self, limit: int, patience: float) -> None:
        """Let ``limit`` in; who is in for ``patience`` seconds does not count any more."""
        self._limit = limit
        self._patience = patience
        self._changed = threading.Condition()
        self._since: dict[object, float] = {}

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn and have it for the block."""
        mine = object()
        with self._changed:
            while (pause := self._pause()) > 0:
                self._changed.wait(pause)
            self._since[mine] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[mine]
                self._changed.notify()

    def _pause(self) -> float:
        """Return the seconds until somebody does not count any more, 0 if there is a turn."""
        now = time.monotonic()
        ends = [since + self._patience for since in self._since.values() if now < since + self._patience]
        return max(1e-6, min(ends) - now) if len(ends) >= self._limit else 0.0


class MooncakeStore(BlockingStore):
    """A ``SharedStore`` over Mooncake's client.

    An object is in the memory of ``replicas`` nodes: it is gone when these are, when the master is (which
    keeps the directory in its own memory), or when the cluster needs its room.

    Args:
        master, host, segment_bytes, buffer_bytes, protocol, devices, metadata, timeout: as
            ``MooncakeOptions`` has them.
        replicas: nodes that hold a copy of each object.
        calls: calls of each direction that are made at a time. One uses several connections to each node by
            itself; more of them have slowed each other down on two cores. A call that has not come back
            within ``timeout`` does not count any more.
        objects_per_call: objects that one call moves at most.

    Raises ValueError for an option that cannot be, BackendError where no client is installed, OSError if the
    cluster does not answer.
    """

    data_path = "mooncake"

    def __init__(
        self,
        master: str,
        *,
        host: str = "",
        segment_bytes: int = 0,
        buffer_bytes: int = 16 << 20,
        protocol: str = "tcp",
        devices: str = "",
        metadata: str = "P2PHANDSHAKE",
        replicas: int = 1,
        timeout: float = 2.0,
        calls: int = 1,
        objects_per_call: int = 32,
    ) -> None:
        options = MooncakeOptions(
            master, host, segment_bytes, buffer_bytes, protocol, devices, metadata, timeout
        )
        for name, value in (("replicas", replicas), ("calls", calls), ("objects_per_call", objects_per_call)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        self._timeout = timeout
        self._calls = Calls()
        self._client = connect(options)
        self._config = _config(replicas)
        self.data_path = f"mooncake {protocol}"
        self._reading, self._writing = (Turns(calls, timeout) for _ in range(2))
        super().__init__(threads=calls + SPARE_THREADS, objects_per_call=objects_per_call, niceness=NICENESS)

    def bind_staging(self, window: StagingWindow, headers: StagingWindow) -> None:
        """Take the windows and register them with the client. Raises OSError if it refuses them."""
        super().bind_staging(window, headers)
        for each in (window, headers):
            if not each.slot_bytes:
                continue
            code = self._client.register_buffer(each.address, each.nbytes)
            if code:
                raise OSError(
                    errno_of(code),
                    f"Mooncake refused {each.nbytes} bytes of memory at {each.address:#x} with code {code}",
                )

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        """Ask the master. One that says yes keeps the object for its lease, 10 s if nothing else was set."""
        if not names:
            return []
        with self._calling():
            codes = self._client.batch_is_exist(list(names))
        bad = next((code for code in codes if code < 0), 0)
        if bad:
            raise OSError(errno_of(bad), f"Mooncake's master cannot say what there is: code {bad}")
        return [code == 1 for code in codes]

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, also those with a lease."""
        if not names:
            return
        with self._calling():
            codes = {errno_of(code) for code in self._client.batch_remove(list(names), True) if code}
        bad = codes - {errno.ENOENT}
        if bad:
            raise OSError(min(bad), "Mooncake could not remove objects")

    def put(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Write objects; those that are there already, or on their way, count as written."""
        places, sizes = _parts(pieces)
        with self._writing.taken(), self._calling():
            codes = self._client.batch_put_from_multi_buffers(list(names), places, sizes, self._config)
        return [0 if code == 0 else errno_of(code) for code in codes]

    def get(self, names: Sequence[str], pieces: Pieces) -> Sequence[int]:
        """Read objects."""
        places, sizes = _parts(pieces)
        with self._reading.taken(), self._calling():
            codes = self._client.batch_get_into_multi_buffers(list(names), places, sizes)
        wanted = [sum(each) for each in sizes]
        statuses = [
            0 if code == size else errno.EBADMSG if code >= 0 else errno_of(code)
            for code, size in zip(codes, wanted)
        ]
        return self._told_apart(names, wanted, statuses)

    def close(self) -> None:
        """Close the client, unless a call hangs in it: then it stays open until the process ends."""
        if self._calls.end(time.monotonic() + self._timeout):
            self._client.close()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Count a call of the client, which must not be closed meanwhile."""
        with CALLS.under_way(), self._calls.under_way():
            yield

    def _told_apart(
        self, names: Sequence[str], wanted: Sequence[int], statuses: Sequence[int]
    ) -> Sequence[int]:
        """Tell objects of another size, which end as failed transfers, from failed transfers."""
        unclear = [number for number, status in enumerate(statuses) if status in (errno.EIO, errno.EINVAL)]
        if not unclear:
            return statuses
        with self._calling():
            found = self._client.batch_get_replica_desc([names[number] for number in unclear])
        told = list(statuses)
        for number in unclear:
            sizes = {
                each.get_memory_descriptor().buffer_descriptor.size
                for each in found.get(names[number], ())
                if each.is_memory_replica()
            }
            if sizes and wanted[number] not in sizes:
                told[number] = errno.EBADMSG
        return told


def _parts(pieces: Pieces) -> tuple[list[list[int]], list[list[int]]]:
    """Return addresses and sizes of each object's parts; an object may have no header."""
    views = [[view for view in piece if view.nbytes] for piece in pieces]
    places = [[ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in some] for some in views]
    return places, [[view.nbytes for view in some] for some in views]


def _config(replicas: int) -> Any:
    config = load().ReplicateConfig()
    config.replica_num = replicas
    return config
