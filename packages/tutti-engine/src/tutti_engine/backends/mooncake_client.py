# SPDX-License-Identifier: Apache-2.0
"""Mooncake's own client: found, set up within a bounded time, and its codes as ``errno``.

What is known of it was seen with version 0.3.13 and is written down in ``docs/mooncake.md``.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tutti_engine.errors import BackendError

__all__ = [
    "CALLS",
    "INSTALL",
    "Calls",
    "MooncakeOptions",
    "check_cluster",
    "connect",
    "errno_of",
    "load",
    "master_answers",
]

INSTALL = (
    "pip install mooncake-transfer-engine-non-cuda, or mooncake-transfer-engine or "
    "mooncake-transfer-engine-cuda13 on a machine with CUDA"
)

SETUP_FACTOR = 6.0
"""A set-up asks the master several things one after the other; so many timeouts are its deadline."""

CODES = {
    -200: errno.ENOSPC,  # no room: nothing may be evicted now, or no segment is mounted
    -600: errno.EINVAL,
    -703: errno.ENOENT,  # being written; to a reader it is not there
    -704: errno.ENOENT,
    -706: errno.EBUSY,
    -707: errno.ESTALE,  # its lease ended while it was read
    -800: errno.EIO,
    -900: errno.ENOTCONN,
    -901: errno.ETIMEDOUT,
}
"""Codes that were seen; any other one is ``EIO``."""


EXIT_SECONDS = 10.0
"""How long the end of a process waits for calls that are under way."""


class Calls:
    """Calls of Mooncake's client that are under way, in this process or of one client."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._ending = False

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a call for the block. Raises OSError with ``ESHUTDOWN`` once ``end`` was called."""
        with self._changed:
            if self._ending:
                raise OSError(errno.ESHUTDOWN, "Mooncake's client is closed or the process ends")
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self, deadline: float) -> bool:
        """Let no call begin any more and wait for the others; return whether they have ended."""
        with self._changed:
            self._ending = True
            return self._changed.wait_for(lambda: not self._count, max(0.0, deadline - time.monotonic()))


CALLS = Calls()
"""Those of this process.

The end of the interpreter unwinds its daemon threads; one that is inside Mooncake then ends the process with
SIGABRT. So the end waits for them, and no new ones begin.
"""

atexit.register(lambda: CALLS.end(time.monotonic() + EXIT_SECONDS))


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """How to reach a cluster, and what to give to it.

    Attributes:
        master: the master's address, ``host:port``.
        host: this machine's address as the other machines see it; empty: that from which the master is
            reached.
        segment_bytes: memory of this process that the cluster may use; 0 gives none.
        buffer_bytes: memory for the client's own purposes.
        protocol: ``tcp``, ``rdma`` or what else the installed build knows.
        devices: for ``rdma`` the devices' names.
        metadata: the address of a metadata service; the default needs none.
        timeout: seconds after which a request to the master, or a node that does not answer, has failed.
    """

    master: str
    host: str = ""
    segment_bytes: int = 0
    buffer_bytes: int = 16 << 20
    protocol: str = "tcp"
    devices: str = ""
    metadata: str = "P2PHANDSHAKE"
    timeout: float = 2.0

    def __post_init__(self) -> None:
        address(self.master)
        for name in ("segment_bytes", "buffer_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a number of bytes from 0 on, not {value!r}")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
            raise ValueError(f"timeout must be a number of seconds, not {self.timeout!r}")
        if not 0 < self.timeout <= 3600:
            raise ValueError(f"timeout must be above 0, at most 3600 seconds, not {self.timeout!r}")


def address(master: str) -> tuple[str, int]:
    """Return host and port. Raises ValueError for what is not ``host:port``."""
    host, colon, port = str(master).rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"master must be host:port, such as 10.0.0.1:50051, not {master!r}")
    return host.strip("[]"), int(port)


def errno_of(code: int) -> int:
    """Return the ``errno`` of one of Mooncake's negative codes."""
    return CODES.get(code, errno.EIO)


def master_answers(master: str, timeout: float) -> str:
    """Return the own address from which the master's port was reached. Raises OSError if it was not."""
    try:
        with socket.create_connection(address(master), timeout) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        code = error.errno or (errno.ETIMEDOUT if isinstance(error, TimeoutError) else errno.EHOSTUNREACH)
        raise OSError(code, f"the Mooncake master at {master} does not answer: {error}") from None


class Attempt:
    """A set-up, which cannot be ended: either its client is taken, or it closes again what it has opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._code: int | None = None
        self._given_up = False

    def end(self, code: int) -> bool:
        """Note how it ended; return False if nobody waits for it any more."""
        with self._lock:
            self._code = code
            return not self._given_up

    def take(self) -> int | None:
        """Return how it ended; None if it has not: then it is given up."""
        with self._lock:
            self._given_up = self._code is None
            return self._code


def connect(options: MooncakeOptions) -> Any:
    """Return a client that is set up.

    Raises BackendError where Mooncake is not installed, OSError if the cluster does not answer in time.
    """
    bound_its_waits(options.timeout)
    module = load()
    own = master_answers(options.master, options.timeout)
    client = module.MooncakeDistributedStore()
    attempt = Attempt()
    failures: list[Exception] = []

    def set_up() -> None:
        try:
            with CALLS.under_way():
                code = client.setup(
                    options.host or own, options.metadata, options.segment_bytes, options.buffer_bytes,
                    options.protocol, options.devices, options.master,
                )  # fmt: skip
                if not attempt.end(code):
                    client.close()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=set_up, name="tutti-mooncake-setup", daemon=True)
    thread.start()
    thread.join(SETUP_FACTOR * options.timeout)
    if failures:
        raise OSError(errno.EIO, f"Mooncake's set-up with the master at {options.master}: {failures[0]}")
    code = attempt.take()
    if code is None:
        raise OSError(errno.ETIMEDOUT, f"the Mooncake master at {options.master} did not finish a set-up")
    if code:
        raise OSError(
            errno.ENOTCONN,
            f"Mooncake's set-up with the master at {options.master} ended with code {code}; its own log "
            "says why (MC_LOG_LEVEL=INFO)",
        )
    return client


def check_cluster(options: MooncakeOptions) -> float:
    """Set a client up, ask for an object that is not there, and close it; return the seconds of the question.

    Raises what ``connect`` raises, and OSError where the master does not answer the question.
    """
    client = connect(options)
    with CALLS.under_way():
        try:
            begin = time.monotonic()
            (code,) = client.batch_is_exist(["tutti-check/none"])
            seconds = time.monotonic() - begin
        finally:
            client.close()
    if code < 0:
        raise OSError(errno_of(code), f"the Mooncake master at {options.master} answered with code {code}")
    return seconds


def load() -> Any:
    """Return the module with Mooncake's client. Raises BackendError that says how to install it."""
    try:
        return import_module("mooncake.store")
    except ImportError as error:
        raise BackendError(f"Mooncake's client cannot be used ({error}): {INSTALL}") from None


def bound_its_waits(timeout: float) -> None:
    """Give Mooncake's own deadlines to this process, as far as its user has not; it reads them itself.

    Without them a call waits 30 s for a master, 30 s or more for a node that does not answer, and a set-up a
    minute and a half.
    """
    seconds = str(max(1, math.ceil(timeout)))
    for name, value in (
        ("MC_RPC_TIMEOUT_MS", str(max(1, round(1000 * timeout)))),
        ("MC_TCP_STATUS_TIMEOUT_SEC", seconds),
        ("MC_TCP_PROGRESS_TIMEOUT_SEC", seconds),
        ("MC_STORE_CLIENT_SETUP_RETRIES", "1"),
        ("MC_LOG_LEVEL", "ERROR"),
    ):
        os.environ.setdefault(name, value)
