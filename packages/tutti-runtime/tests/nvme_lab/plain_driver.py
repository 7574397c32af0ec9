# SPDX-License-Identifier: Apache-2.0
"""A driver of a few lines, written against the NVMe specification alone: transports are tried with it,
without the library's own queues."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from tutti_runtime import _core

__all__ = ["Controller", "Identity", "IoQueue", "parse_controller", "parse_namespace"]

PAGE = 4096
DEADLINE_SECONDS = 30.0
CAP, VS, CC, CSTS, AQA, ASQ, ACQ = 0x00, 0x08, 0x14, 0x1C, 0x24, 0x28, 0x30
DELETE_SQ, CREATE_SQ, DELETE_CQ, CREATE_CQ, IDENTIFY = 0x00, 0x01, 0x04, 0x05, 0x06
FLUSH, WRITE, READ = 0x00, 0x01, 0x02
ADMIN_DEPTH = 16


@dataclass(frozen=True)
class Identity:
    """What a test compares of a controller and its first namespace; ``mdts_bytes`` 0: no limit."""

    serial: str
    model: str
    firmware: str
    mdts_bytes: int
    namespaces: int
    size_bytes: int
    lba_bytes: int


def _text(raw: bytes) -> str:
    return raw.decode("ascii").rstrip(" \0")


def parse_controller(data: bytes) -> tuple[str, str, str, int, int]:
    """Serial number, model, firmware, MDTS and NN of the Identify Controller data structure."""
    (namespaces,) = struct.unpack_from("<I", data, 516)
    return _text(data[4:24]), _text(data[24:64]), _text(data[64:72]), data[77], namespaces


def parse_namespace(data: bytes) -> tuple[int, int]:
    """Blocks (NSZE) and bytes of a block in the format in use (FLBAS, LBADS) of Identify Namespace."""
    (blocks,) = struct.unpack_from("<Q", data, 0)
    (format_in_use,) = struct.unpack_from("<I", data, 128 + 4 * (data[26] & 0xF))
    return blocks, 1 << (format_in_use >> 16 & 0xFF)


class IoQueue:
    """A pair of a submission and a completion queue; one command at a time."""

    def __init__(self, bus: _core.NvmeBus, number: int, depth: int, stride: int) -> None:
        self.number, self.depth = number, depth
        self._bus = bus
        self.sq, self.cq = bus.allocate(depth * 64), bus.allocate(depth * 16)
        self._entries, self._completions = memoryview(self.sq), memoryview(self.cq)
        self._tail, self._head, self._phase, self._cid = 0, 0, 1, 0
        self._tail_bell = 0x1000 + 2 * number * stride
        self._head_bell = 0x1000 + (2 * number + 1) * stride

    def begin(self) -> None:
        """Once the controller knows the queues."""
        self._bus.begin(self._tail_bell)
        self._bus.begin(self._head_bell)

    def command(
        self, opcode: int, nsid: int = 0, prp: tuple[int, int] = (0, 0), *dwords: int
    ) -> tuple[int, int]:
        """Submit, wait, and give the status field (type in bits 10:8, code in 7:0) and dword 0."""
        self.post(opcode, nsid, prp, *dwords)
        return self._completion()

    def post(self, opcode: int, nsid: int = 0, prp: tuple[int, int] = (0, 0), *dwords: int) -> None:
        """Submit, and leave it at that."""
        self._cid = (self._cid + 1) % 0xFFFF
        words = (*dwords, *(0,) * (6 - len(dwords)))
        entry = struct.pack("<BBHIQQQQ6I", opcode, 0, self._cid, nsid, 0, 0, *prp, *words)
        self._entries[self._tail * 64 : self._tail * 64 + 64] = entry
        self._tail = (self._tail + 1) % self.depth
        self._bus.ring(self._tail_bell, self._tail)

    def _completion(self) -> tuple[int, int]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        place = self._head * 16
        # The phase first: the rest of an entry counts only once its phase has turned.
        while self._completions[place + 14] & 1 != self._phase:
            assert time.monotonic() < deadline, f"no completion on queue {self.number} of {self._bus.name}"
        result, _, _, _, cid, status = struct.unpack("<IIHHHH", self._completions[place : place + 16])
        assert cid == self._cid, f"completion of {cid}, {self._cid} was submitted"
        self._head = (self._head + 1) % self.depth
        self._phase ^= self._head == 0
        self._bus.ring(self._head_bell, self._head)
        return status >> 1 & 0x7FF, result

    def transfer(self, opcode: int, lba: int, blocks: int, prp: tuple[int, int], nsid: int = 1) -> int:
        """A read or write of whole blocks; gives the status field."""
        return self.command(opcode, nsid, prp, lba & 0xFFFFFFFF, lba >> 32, blocks - 1)[0]


class Controller:
    """A controller from its reset on."""

    def __init__(self, bus: _core.NvmeBus) -> None:
        self.bus = bus
        capabilities = bus.read64(CAP)
        self.stride = 4 << (capabilities >> 32 & 0xF)
        self.disable()
        self.admin = IoQueue(bus, 0, ADMIN_DEPTH, self.stride)
        bus.write32(AQA, (ADMIN_DEPTH - 1) << 16 | (ADMIN_DEPTH - 1))
        bus.write64(ASQ, self.admin.sq.iova)
        bus.write64(ACQ, self.admin.cq.iova)
        bus.write32(CC, 4 << 20 | 6 << 16 | 1)
        self._wait_ready(1)
        self.admin.begin()

    def disable(self) -> None:
        self.bus.write32(CC, 0)
        self._wait_ready(0)

    def _wait_ready(self, ready: int) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.bus.read32(CSTS) & 1 != ready:
            assert time.monotonic() < deadline, f"CSTS.RDY of {self.bus.name} does not become {ready}"

    def identify_data(self, kind: int, nsid: int = 0) -> bytes:
        """The 4096 bytes of Identify with a CNS value."""
        page = self.bus.allocate(PAGE)
        status, _ = self.admin.command(IDENTIFY, nsid, (page.iova, 0), kind)
        assert status == 0, f"identify {kind}: status {status:#x}"
        return bytes(memoryview(page))

    def identity(self) -> Identity:
        serial, model, firmware, mdts, namespaces = parse_controller(self.identify_data(1))
        blocks, lba_bytes = parse_namespace(self.identify_data(0, 1))
        limit = PAGE << mdts if mdts else 0
        return Identity(serial, model, firmware, limit, namespaces, blocks * lba_bytes, lba_bytes)

    def make_queue(self, number: int = 1, depth: int = 16) -> IoQueue:
        """Create I/O Completion Queue, then Create I/O Submission Queue; contiguous, no interrupts."""
        queue = IoQueue(self.bus, number, depth, self.stride)
        size = (depth - 1) << 16 | number
        status, _ = self.admin.command(CREATE_CQ, 0, (queue.cq.iova, 0), size, 1)
        assert status == 0, f"create CQ: status {status:#x}"
        status, _ = self.admin.command(CREATE_SQ, 0, (queue.sq.iova, 0), size, number << 16 | 1)
        assert status == 0, f"create SQ: status {status:#x}"
        queue.begin()
        return queue

    def delete_queue(self, queue: IoQueue) -> None:
        for opcode in (DELETE_SQ, DELETE_CQ):
            status, _ = self.admin.command(opcode, 0, (0, 0), queue.number)
            assert status == 0, f"delete queue: status {status:#x}"
