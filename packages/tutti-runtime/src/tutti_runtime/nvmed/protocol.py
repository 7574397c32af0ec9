# SPDX-License-Identifier: Apache-2.0
"""Messages between a client and ``tutti-nvmed``, the daemon's side.

docs/nvmed.md is what both sides follow; the client's is csrc/nvme/broker/protocol.hpp.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "HEADER",
    "MAX_REPLY",
    "MAX_REQUEST",
    "NAME_BYTES",
    "REPLY",
    "VERSION",
    "Hello",
    "Message",
    "ProtocolError",
    "Request",
    "pack",
    "pack_error",
    "pack_mapped",
    "pack_welcome",
    "parse_hello",
    "parse_request",
]

MAGIC = 0x4D564E54
VERSION = 1
MAX_REQUEST = 512
MAX_REPLY = 16 << 10
NAME_BYTES = 208
REPLY = 0x8000
_ENFORCED = 1

HEADER = struct.Struct("<IHHII")
_HELLO = struct.Struct(f"<II{NAME_BYTES}s")
_WELCOME = struct.Struct(f"<QQIIIIIHH{NAME_BYTES}s")
_RANGE = struct.Struct("<IIQQ")


class Message(IntEnum):
    HELLO = 1
    MAP = 2
    UNMAP = 3
    ADMIN = 4
    RESET = 5
    BEAT = 6
    STATUS = 7
    ERROR = 0xFFFF


PAYLOAD_BYTES = {
    Message.HELLO: _HELLO.size,
    Message.MAP: 16,
    Message.UNMAP: 8,
    Message.ADMIN: 64,
    Message.RESET: 0,
    Message.BEAT: 0,
    Message.STATUS: 0,
}


class ProtocolError(Exception):
    """What came is no message of this protocol; the connection ends. ``error`` is its errno."""

    def __init__(self, text: str, *, error: int = errno.EPROTO, sequence: int = 0) -> None:
        super().__init__(text)
        self.error = error
        self.sequence = sequence


@dataclass(frozen=True)
class Request:
    type: Message
    sequence: int
    payload: bytes


@dataclass(frozen=True)
class Hello:
    queues: int
    controller: str


def parse_request(datagram: bytes, descriptors: int) -> Request:
    """Return the message in ``datagram``, which came with so many descriptors, else raise ProtocolError."""
    if len(datagram) < HEADER.size:
        raise ProtocolError(f"a message has {HEADER.size} bytes at least, not {len(datagram)}")
    magic, version, number, sequence, length = HEADER.unpack_from(datagram)
    if magic != MAGIC:
        raise ProtocolError(f"magic={magic:#x} must be {MAGIC:#x}: this is tutti-nvmed", sequence=sequence)
    if version != VERSION:
        raise ProtocolError(
            f"version={version} is not spoken here, {VERSION} is; install one tutti-runtime on both sides",
            error=errno.EPROTONOSUPPORT,
            sequence=sequence,
        )
    try:
        kind = Message(number)
        expected = PAYLOAD_BYTES[kind]
    except (KeyError, ValueError):
        raise ProtocolError(f"type={number} is no request", sequence=sequence) from None
    if length != len(datagram) - HEADER.size or length != expected:
        raise ProtocolError(f"length={length} of {kind.name} must be {expected} bytes", sequence=sequence)
    if descriptors != (1 if kind is Message.MAP else 0):
        raise ProtocolError(f"{kind.name} came with {descriptors} descriptors", sequence=sequence)
    return Request(kind, sequence, datagram[HEADER.size :])


def parse_hello(payload: bytes) -> Hello:
    queues, _, name = _HELLO.unpack(payload)
    text, end, _ = name.partition(b"\0")
    if not end or not text.isascii():
        raise ValueError("a controller's name is ASCII and ends with NUL")
    return Hello(queues, text.decode("ascii"))


def pack(kind: Message, sequence: int, payload: bytes = b"") -> bytes:
    number = kind if kind is Message.ERROR else kind | REPLY
    return HEADER.pack(MAGIC, VERSION, number, sequence, len(payload)) + payload


def pack_error(sequence: int, error: int, text: str) -> bytes:
    room = MAX_REPLY - HEADER.size - 4
    return pack(Message.ERROR, sequence, struct.pack("<i", error) + text.encode(errors="replace")[:room])


def pack_mapped(window: int, runs: Sequence[tuple[int, int]]) -> bytes:
    words = [word for run in runs for word in run]
    return struct.pack(f"<II{len(words)}Q", window, len(runs), *words)


def pack_welcome(
    *,
    cap: int,
    register_version: int,
    window_bytes: int,
    windows: int,
    lease_seconds: float,
    doorbell_bytes: int,
    enforced: bool,
    name: str,
    queue_ids: Sequence[int],
    ranges: Iterable[tuple[int, int, int]],
) -> bytes:
    own = [_RANGE.pack(nsid, 0, first, blocks) for nsid, first, blocks in ranges]
    head = _WELCOME.pack(
        cap,
        window_bytes,
        windows,
        register_version,
        round(lease_seconds * 1000),
        doorbell_bytes,
        _ENFORCED if enforced else 0,
        len(queue_ids),
        len(own),
        name.encode("ascii"),
    )
    filler = [0] * (-len(queue_ids) % 4)
    numbers = [*queue_ids, *filler]
    return head + struct.pack(f"<{len(numbers)}H", *numbers) + b"".join(own)
