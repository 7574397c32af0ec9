# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

__all__ = ["Peer"]

_CREDENTIALS = struct.Struct("iII")  # struct ucred (unix(7))
_PEERGROUPS = 59  # SO_PEERGROUPS (asm-generic/socket.h)
_MOST_BYTES = 1024  # what getsockopt of Python takes


@dataclass(frozen=True)
class Peer:
    """As the kernel had it when the peer connected. ``gids`` holds the supplementary groups too."""

    pid: int
    uid: int
    gids: frozenset[int]

    @classmethod
    def of(cls, connected: socket.socket) -> Peer:
        data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(data)
        try:
            groups = connected.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, _MOST_BYTES)
        except OSError:  # more than 256 groups, or a kernel before 4.13: the effective one alone counts
            groups = b""
        others = struct.unpack(f"{len(groups) // 4}I", groups)
        return cls(pid, uid, frozenset((gid, *others)))
