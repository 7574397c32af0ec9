# SPDX-License-Identifier: Apache-2.0
"""Asks a running daemon how it is."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from typing import Any

from tutti_runtime.nvmed import protocol
from tutti_runtime.nvmed.protocol import Message
from tutti_runtime.nvmed.settings import DEFAULT_SOCKET

__all__ = ["read_status"]


def read_status(path: str | os.PathLike[str] = DEFAULT_SOCKET, timeout: float = 5.0) -> dict[str, Any]:
    """Return the status of the daemon at ``path``; see docs/nvmed.md. Raises ``OSError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(timeout)
        try:
            asking.connect(os.fspath(path))
            asking.send(protocol.HEADER.pack(protocol.MAGIC, protocol.VERSION, Message.STATUS, 1, 0))
            reply = asking.recv(protocol.MAX_REPLY)
        except OSError as error:
            number = error.errno or errno.ETIMEDOUT
            raise OSError(number, f"no tutti-nvmed answers: {os.strerror(number)}", os.fspath(path)) from None
    if len(reply) < protocol.HEADER.size:
        raise OSError(errno.ECONNRESET, "tutti-nvmed closed the connection", os.fspath(path))
    number = protocol.HEADER.unpack_from(reply)[2]
    payload = reply[protocol.HEADER.size :]
    if number == Message.ERROR:
        raise OSError(
            struct.unpack_from("<i", payload)[0], payload[4:].decode(errors="replace"), os.fspath(path)
        )
    status: dict[str, Any] = json.loads(payload)
    return status
