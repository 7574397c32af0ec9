# SPDX-License-Identifier: Apache-2.0
"""The daemon's loop: one thread, one message of each client in turn."""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from tutti_runtime.nvmed import protocol
from tutti_runtime.nvmed.controllers import Lease, OwnedController, open_pidfd
from tutti_runtime.nvmed.listener import Listener
from tutti_runtime.nvmed.peer import Peer
from tutti_runtime.nvmed.protocol import Message, ProtocolError, Request
from tutti_runtime.nvmed.settings import BrokerSettings

__all__ = ["Broker"]

_MOST_DESCRIPTORS = 4
_LOOK_EVERY = 0.1  # seconds from one look at controllers and leases to the next
_OTHERS = 16  # connections without a lease: newcomers, and who asks for the status


class _Connection:
    def __init__(self, connected: socket.socket, peer: Peer) -> None:
        self.socket = connected
        self.peer = peer
        self.lease: Lease | None = None
        self.refusal: OSError | None = None
        self.since = time.monotonic()
        self.heard = self.since


class Broker:
    """Owns controllers, and gives queues and windows of theirs to clients (docs/nvmed.md).

    ``say`` gets one line for each thing that an operator wants to know. Not thread-safe, except for
    :meth:`stop`. Raises ``ValueError`` for settings that do not fit a controller, ``OSError`` for a socket or
    controller that cannot be had.
    """

    def __init__(self, settings: BrokerSettings, say: Callable[[str], None] = lambda line: None) -> None:
        self._settings = settings
        self._say = say
        self._started = time.monotonic()
        self._refused = 0
        self._expired = 0
        self._resting = False  # the listener is not looked at: there was no descriptor for who connects
        self._connections: dict[int, _Connection] = {}
        self._listener = Listener(settings.socket, settings.group)
        try:
            self._controllers = [OwnedController(spec, settings) for spec in settings.controllers]
        except BaseException:
            self._listener.close()
            raise
        self._pidfd = open_pidfd()
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._listener.socket, selectors.EVENT_READ)
        self._up = {owned.name: True for owned in self._controllers}

    def stop(self) -> None:
        """Make :meth:`serve` return. From any thread, and from a signal handler."""
        with contextlib.suppress(OSError):
            self._waker.send(b"s", socket.MSG_DONTWAIT)

    def serve(self) -> None:
        """Serve until :meth:`stop`; then end all leases, and give the controllers back."""
        try:
            looked = time.monotonic()
            while self._turn():
                now = time.monotonic()
                if now - looked >= _LOOK_EVERY:
                    looked = now
                    self._look_after()
        finally:
            self._close()

    def _turn(self) -> bool:
        for key, _ in self._selector.select(_LOOK_EVERY if self._connections or self._resting else 1.0):
            if key.fileobj is self._wake:
                return False
            if key.fileobj is self._listener.socket:
                self._accept()
            else:
                self._read(key.data)
        return True

    def _look_after(self) -> None:
        if self._resting:
            self._resting = False
            self._selector.register(self._listener.socket, selectors.EVENT_READ)
        for owned in self._controllers:
            up = owned.host.look_after() if owned.leases or not self._up[owned.name] else True
            if up != self._up[owned.name]:
                self._up[owned.name] = up
                self._say(f"controller {owned.name} {'works again' if up else 'does not answer, or is gone'}")
        # Looking may have taken long; that is not the clients' fault, and what they said meanwhile counts.
        waiting = {key.fd for key, _ in self._selector.select(0)}
        now = time.monotonic()
        for connection in list(self._connections.values()):
            # Without a lease nothing that is said prolongs the stay: places for newcomers are few.
            since = connection.since if connection.lease is None else connection.heard
            late = now - since > self._settings.lease_seconds
            if late and connection.socket.fileno() not in waiting:
                self._expired += connection.lease is not None
                what = "no lease" if connection.lease is None else "nothing heard"
                self._drop(connection, f"{what} for {self._settings.lease_seconds:g} s")

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # The backlog keeps it until the next look; the selector would tell of it again at once.
                self._selector.unregister(self._listener.socket)
                self._resting = True
            return
        connected.setblocking(False)
        try:
            connection = _Connection(connected, Peer.of(connected))
        except OSError:
            connected.close()
            return
        try:
            self._admit(connection.peer)
        except OSError as error:
            self._refused += 1
            self._say(f"refused: {error.strerror}")
            # Told as the answer to its first request: a socket closed with one unread loses what was sent.
            connection.refusal = error
            if sum(1 for each in self._connections.values() if each.refusal is not None) >= _OTHERS:
                connected.close()
                return
        self._connections[connected.fileno()] = connection
        self._selector.register(connected, selectors.EVENT_READ, connection)

    def _admit(self, peer: Peer) -> None:
        settings = self._settings
        known = peer.uid in settings.uids or bool(peer.gids & settings.gids)
        if not settings.uids and not settings.gids:
            known = peer.uid == os.geteuid()
        if not known:
            raise OSError(
                errno.EACCES, f"uid {peer.uid} (pid {peer.pid}) is not in uids, nor a group of it in gids"
            )
        without = sum(1 for each in self._connections.values() if each.lease is None and each.refusal is None)
        if without >= _OTHERS:
            raise OSError(errno.EBUSY, f"{without} connections have no lease yet; try again")

    def _read(self, connection: _Connection) -> None:
        descriptors = array.array("i")
        try:
            room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * descriptors.itemsize)
            flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            data, ancillary, seen, _ = connection.socket.recvmsg(protocol.MAX_REQUEST + 1, room, flags)
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
            if not data:
                self._drop(connection, "")
                return
            # Cut although there was room: this process had no descriptor free. No fault of the client.
            short = bool(seen & socket.MSG_CTRUNC) and len(descriptors) < _MOST_DESCRIPTORS
            cut = seen & (socket.MSG_TRUNC | socket.MSG_CTRUNC) and not short
            if cut or len(data) > protocol.MAX_REQUEST:
                raise ProtocolError(f"a request has at most {protocol.MAX_REQUEST} bytes and one descriptor")
            request = protocol.parse_request(data, 1 if short else len(descriptors))
            if connection.refusal is not None:
                refusal = connection.refusal
                raise ProtocolError(
                    refusal.strerror or "", error=refusal.errno or errno.EACCES, sequence=request.sequence
                )
            connection.heard = time.monotonic()
            self._answer(connection, request, None if short else descriptors)
            connection.heard = time.monotonic()
        except (BlockingIOError, InterruptedError):
            return
        except ProtocolError as error:
            self._send(connection.socket, protocol.pack_error(error.sequence, error.error, str(error)))
            self._drop(connection, str(error))
        except OSError as error:
            self._drop(connection, error.strerror or "")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(
        self, connection: _Connection, request: Request, descriptors: array.array[int] | None
    ) -> None:
        """Answer a request; ``None`` for descriptors that this process could not take."""
        files: list[int] = []
        try:
            if descriptors is None:
                raise OSError(errno.EMFILE, "tutti-nvmed has no free descriptor: raise its LimitNOFILE")
            if request.type is Message.HELLO:
                lease = self._hello(connection, request)
                payload = lease.welcome(self._settings)
                files = [lease.state_file, lease.doorbell_file, self._pidfd]
            elif request.type is Message.STATUS:
                payload = self._status_text()
            elif connection.lease is None:
                raise ProtocolError(f"{request.type.name} before HELLO", sequence=request.sequence)
            else:
                payload = self._serve_lease(connection.lease, request, descriptors)
            reply = protocol.pack(request.type, request.sequence, payload)
        except ValueError as error:
            reply = protocol.pack_error(request.sequence, errno.EINVAL, str(error))
        except OSError as error:
            reply = protocol.pack_error(request.sequence, error.errno or errno.EIO, error.strerror or "")
        except ProtocolError:
            raise
        except Exception as error:  # one client's request must not end the others
            self._say(f"pid {connection.peer.pid}: {request.type.name}: {error!r}")
            reply = protocol.pack_error(request.sequence, errno.EIO, "the daemon failed; its log says why")
        if not self._send(connection.socket, reply, files):
            raise OSError(errno.EPIPE, "the client takes no replies")

    def _hello(self, connection: _Connection, request: Request) -> Lease:
        if connection.lease is not None:
            raise ProtocolError("HELLO twice", sequence=request.sequence)
        hello = protocol.parse_hello(request.payload)
        known = [owned for owned in self._controllers if hello.controller in ("", owned.name)]
        if len(known) != 1:
            names = ", ".join(owned.name for owned in self._controllers)
            raise OSError(errno.ENODEV, f"controller {hello.controller!r} must be one of: {names}")
        try:
            connection.lease = known[0].lease(connection.peer, hello.queues)
        except OSError:
            self._refused += 1
            raise
        return connection.lease

    @staticmethod
    def _serve_lease(lease: Lease, request: Request, descriptors: array.array[int]) -> bytes:
        host = lease.owner.host
        if request.type is Message.MAP:
            offset, size = struct.unpack("<QQ", request.payload)
            return protocol.pack_mapped(*host.map(lease.id, descriptors[0], offset, size))
        if request.type is Message.UNMAP:
            host.unmap(lease.id, struct.unpack("<II", request.payload)[0])
        elif request.type is Message.ADMIN:
            result, status, data = host.admin(lease.id, request.payload)
            return struct.pack("<IHH", result, status, 0) + data
        elif request.type is Message.RESET:
            host.reset_client(lease.id)
        return b""

    @staticmethod
    def _send(to: socket.socket, reply: bytes, files: list[int] | None = None) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            to.sendmsg([reply], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def _drop(self, connection: _Connection, why: str) -> None:
        """End a connection, and first what its client had."""
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        lease, connection.lease = connection.lease, None
        if lease is not None and not lease.owner.end(lease):
            self._say(
                f"controller {lease.owner.name} may still reach memory of pid {connection.peer.pid}: its "
                "windows are kept until it answers"
            )
        connection.socket.close()
        if why:
            self._say(f"pid {connection.peer.pid} (uid {connection.peer.uid}) dropped: {why}")

    def status(self) -> dict[str, Any]:
        """What ``tutti-nvmed --status --json`` prints. On the thread that serves, or when none does."""
        now = time.monotonic()
        clients = [
            {
                "controller": each.lease.owner.name,
                "pid": each.peer.pid,
                "uid": each.peer.uid,
                "queues": len(each.lease.queue_ids),
                "ranges": [
                    {"nsid": nsid, "first_lba": first, "blocks": blocks}
                    for nsid, first, blocks in each.lease.ranges
                ],
                "age_seconds": round(now - each.since, 1),
                "quiet_seconds": round(now - each.heard, 1),
            }
            for each in self._connections.values()
            if each.lease is not None
        ]
        return {
            "protocol": protocol.VERSION,
            "pid": os.getpid(),
            "socket": str(self._listener.path),
            "up_seconds": round(now - self._started, 1),
            "refused": self._refused,
            "expired": self._expired,
            "controllers": [owned.status() for owned in self._controllers],
            "clients": clients,
            "clients_left_out": 0,
        }

    def _status_text(self) -> bytes:
        status = self.status()
        while len(text := json.dumps(status).encode()) > protocol.MAX_REPLY - protocol.HEADER.size:
            if not status["clients"]:
                raise OSError(errno.EMSGSIZE, "the status does not fit into a message")
            status["clients"].pop()
            status["clients_left_out"] += 1
        return text

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection, "")
        self._selector.close()
        self._listener.close()
        self._controllers.clear()  # hands them back
        for end in (self._wake, self._waker):
            end.close()
        os.close(self._pidfd)
