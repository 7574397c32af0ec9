# SPDX-License-Identifier: Apache-2.0
"""A broker in this process, clients in others, and a client that does what no library would."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from runtime_kit import batch, request

import tutti_runtime as tr
from tutti_runtime import nvmed
from tutti_runtime.nvmed import protocol
from tutti_runtime.nvmed.protocol import Message
from tutti_runtime.testing import SoftNvmeControl

__all__ = ["MIB", "PAGE", "SPACE", "Daemon", "RawClient", "Refused", "Rig", "spawn", "until"]

PAGE = 4096
MIB = 1 << 20
SPACE = 16 * MIB


def until(what: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return once ``what`` is true; fail when it is not in ``seconds``."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "did not come about in time"
        threading.Event().wait(0.005)


@dataclass
class Daemon:
    """A broker with one soft controller ``disk0``, serving on a thread of this process."""

    folder: Path
    drive: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.control = SoftNvmeControl()
        self.path = str(self.folder / "tutti" / "nvmed.sock")
        spec = {"transport": "soft", "name": "disk0", "control": self.control, "memory_bytes": SPACE}
        self.lines: list[str] = []
        self.values = {"socket": self.path, "controllers": [spec | self.drive], **self.settings}
        self.start()

    def start(self) -> None:
        self.broker = nvmed.Broker(nvmed.BrokerSettings.of(self.values), self.lines.append)
        self._thread = threading.Thread(target=self.broker.serve)
        self._thread.start()

    def uri(self, **keys: int) -> str:
        rest = "".join(f"{key}={value}&" for key, value in keys.items())
        return f"nvme://disk0/1?{rest}broker={self.path}"

    def status(self) -> dict[str, Any]:
        return nvmed.read_status(self.path)

    def controller(self) -> dict[str, Any]:
        return dict(self.status()["controllers"][0])

    def until_empty(self) -> None:
        """Wait until every client is gone, with all that it had."""

        def empty() -> bool:
            now = self.controller()
            return now["clients"] == now["stranded"] == 0 and now["free_queues"] == now["queues"]

        until(empty)

    def stop(self) -> None:
        self.broker.stop()
        self._thread.join()


class Rig:
    """A runtime on a brokered controller, with a target and a window of ``size`` bytes."""

    def __init__(self, daemon: Daemon, *, size: int = MIB, uri: str = "", **settings: Any) -> None:
        spec = {"transport": "broker", "name": "disk0", "socket": daemon.path}
        self.runtime = tr.make_nvme_runtime(controllers=[spec], **settings)
        self.memory = nvmed.SharedMemory(size)
        self.handle = self.runtime.register_memory(self.memory.address, size)
        self.target = self.runtime.open(uri or daemon.uri())

    def move(self, direction: int, place: int = 0, length: int = PAGE, timeout: float = 20.0) -> int:
        """Move the front of the window; return the item's status."""
        rows = batch(request(direction, self.handle, 0, self.target, place, length))
        result = self.runtime.submit(rows, timeout=timeout)
        assert result.handle is not None and result.accepted.all()
        return int(self.runtime.wait(result.handle, 60).status[0])

    def check(self, seed: int, place: int = 0, length: int = PAGE) -> None:
        """Write random bytes, read them back, compare."""
        wanted = np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)
        self.memory.bytes[:length] = wanted
        assert self.move(tr.WRITE, place, length) == 0
        self.memory.bytes[:length] = 0
        assert self.move(tr.READ, place, length) == 0
        assert np.array_equal(self.memory.bytes[:length], wanted)

    def close(self) -> None:
        assert self.runtime.shutdown(60)
        del self.runtime


class Refused(Exception):
    def __init__(self, error: int, text: str) -> None:
        super().__init__(text)
        self.error = error


class RawClient:
    """Speaks the protocol by hand, so that it can say anything."""

    def __init__(self, path: str, *, queues: int = 1, hello: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self._sequence = 0
        if hello:
            try:
                self.hello(queues)
            except Refused:
                self.close()
                raise

    def send(self, datagram: bytes, files: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self.socket.sendmsg([datagram], rights)

    def ask(self, kind: int, payload: bytes = b"", files: list[int] | None = None) -> bytes:
        self._sequence += 1
        header = protocol.HEADER.pack(protocol.MAGIC, protocol.VERSION, kind, self._sequence, len(payload))
        self.send(header + payload, files)
        return self.receive()

    def receive(self) -> bytes:
        data, ancillary, _, _ = self.socket.recvmsg(protocol.MAX_REPLY, socket.CMSG_SPACE(64))
        self.files = array.array("i")
        for _, _, content in ancillary:
            self.files.frombytes(content)
        if not data:
            raise ConnectionResetError
        kind = protocol.HEADER.unpack_from(data)[2]
        payload = data[protocol.HEADER.size :]
        if kind == Message.ERROR:
            raise Refused(struct.unpack_from("<i", payload)[0], payload[4:].decode())
        return payload

    def hello(self, queues: int) -> None:
        welcome = self.ask(Message.HELLO, struct.pack(f"<II{protocol.NAME_BYTES}s", queues, 0, b""))
        count = struct.unpack_from("<H", welcome, 36)[0]
        self.doorbell_bytes = struct.unpack_from("<I", welcome, 28)[0]
        self.ids = list(struct.unpack_from(f"<{count}H", welcome, 248))
        self.state = mmap.mmap(self.files[0], 4096, prot=mmap.PROT_READ)
        self.doorbells = np.frombuffer(mmap.mmap(self.files[1], self.doorbell_bytes), dtype=np.uint32)
        for file in self.files:
            os.close(file)

    @staticmethod
    def memfd(size: int, *, seals: int = fcntl.F_SEAL_SHRINK, flags: int = 0) -> int:
        file = os.memfd_create("raw", os.MFD_ALLOW_SEALING | flags)
        os.posix_fallocate(file, 0, size)
        if seals:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        return file

    def map(self, size: int) -> tuple[int, int, np.ndarray]:
        """Return a window's number, where it is on the bus, and its memory."""
        file = self.memfd(size)
        try:
            mapped = self.ask(Message.MAP, struct.pack("<QQ", 0, size), [file])
            memory = np.frombuffer(mmap.mmap(file, size), dtype=np.uint8)
        finally:
            os.close(file)
        window, runs, iova, _ = struct.unpack_from("<IIQQ", mapped)
        assert runs == 1
        return window, iova, memory

    def admin(self, opcode: int, cdw10: int = 0, cdw11: int = 0, data: int = 0, nsid: int = 0) -> int:
        """Return the status field."""
        command = struct.pack(
            "<BBHIIIQQQIIIIII", opcode, 0, 0, nsid, 0, 0, 0, data, 0, cdw10, cdw11, 0, 0, 0, 0
        )
        return int(struct.unpack_from("<IH", self.ask(Message.ADMIN, command))[1])

    def make_queue(self, depth: int = 16) -> None:
        """A queue pair of its first identifier; entries at the front of two windows."""
        self.depth = depth
        self.id = self.ids[0]
        self.cq_window, self.cq_iova, self.cq = self.map(PAGE)
        self.sq_window, self.sq_iova, self.sq = self.map(PAGE)
        size = (depth - 1) << 16 | self.id
        assert self.admin(0x05, size, 1, self.cq_iova) == 0
        assert self.admin(0x01, size, 1 | self.id << 16, self.sq_iova) == 0
        self.tail = self.head = 0
        self.phase = 1

    def put(self, opcode: int, prp1: int, prp2: int, slba: int, blocks: int) -> None:
        """Write a command into the queue, and ring."""
        command = struct.pack(
            "<BBHIIIQQQIIIIII", opcode, 0, self.tail, 1, 0, 0, 0, prp1, prp2, slba, 0, blocks - 1, 0, 0, 0
        )
        self.sq[self.tail * 64 : self.tail * 64 + 64] = np.frombuffer(command, dtype=np.uint8)
        self.tail = (self.tail + 1) % self.depth
        self.ring(self.tail)

    def ring(self, value: int) -> None:
        self.doorbells[2 * self.id] = value

    def take(self) -> int:
        """Wait for the next completion; return its status field."""
        words = self.cq.view(np.uint32)
        until(lambda: (int(words[4 * self.head + 3]) >> 16 & 1) == self.phase)
        status = int(words[4 * self.head + 3]) >> 17
        self.head = (self.head + 1) % self.depth
        if self.head == 0:
            self.phase ^= 1
        self.doorbells[2 * self.id + 1] = self.head
        return status

    def close(self) -> None:
        self.socket.close()


def spawn(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process that runs ``code`` with the helpers of this folder on its path."""
    lines = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", lines, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
