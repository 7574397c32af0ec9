# SPDX-License-Identifier: Apache-2.0
"""The controllers of the daemon, and what a client gets of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tutti_runtime import _core
from tutti_runtime.nvmed import protocol
from tutti_runtime.nvmed.peer import Peer
from tutti_runtime.nvmed.settings import BrokerSettings

__all__ = ["Lease", "OwnedController"]


@dataclass(frozen=True)
class Lease:
    """A client's queues on a controller; ``id`` is the client's number there."""

    owner: OwnedController
    id: int
    peer: Peer
    queue_ids: tuple[int, ...]
    state_file: int
    doorbell_file: int
    doorbell_bytes: int
    ranges: tuple[tuple[int, int, int], ...]

    def welcome(self, settings: BrokerSettings) -> bytes:
        facts = self.owner.facts
        return protocol.pack_welcome(
            cap=facts["cap"],
            register_version=facts["version"],
            window_bytes=settings.window_bytes,
            windows=settings.windows,
            lease_seconds=settings.lease_seconds,
            doorbell_bytes=self.doorbell_bytes,
            enforced=facts["enforces_ranges"],
            name=self.owner.name,
            queue_ids=self.queue_ids,
            ranges=self.ranges,
        )


class OwnedController:
    """One controller that this process drives for others. Raises what the driver raises."""

    def __init__(self, spec: Mapping[str, Any], settings: BrokerSettings) -> None:
        self.name: str = spec["name"]
        self._settings = settings
        wanted = min(max(settings.queues_per_client, 1) * settings.max_clients, 1024)
        if settings.queues_per_client == 0:
            wanted = min(16 * settings.max_clients, 1024)
        self.host = _core.NvmeBrokerHost(dict(spec), settings.admin_timeout, wanted)
        self.facts = self.host.facts()
        self.leases: dict[int, Lease] = {}
        granted = int(self.facts["queues"])
        self.quota = settings.queues_per_client or min(64, granted // settings.max_clients)
        if self.quota * settings.max_clients > granted or self.quota == 0:
            raise ValueError(
                f"controller {self.name!r} grants {granted} queue pair(s), which is less than "
                f"max_clients={settings.max_clients} times queues_per_client={max(self.quota, 1)}; lower "
                "one of them"
            )

    def lease(self, peer: Peer, wanted: int) -> Lease:
        """Give ``peer`` queues: as many as it wants, at most its quota. Raises ``OSError``.

        The quotas of all clients together are no more than there is, so what one asks for takes nothing from
        others.
        """
        settings = self._settings
        if len(self.leases) >= settings.max_clients:
            raise OSError(
                errno.EBUSY,
                f"controller {self.name!r} has max_clients={settings.max_clients} clients already",
            )
        own = sum(1 for lease in self.leases.values() if lease.peer.uid == peer.uid)
        if settings.clients_per_user and own >= settings.clients_per_user:
            raise OSError(
                errno.EBUSY,
                f"uid {peer.uid} has clients_per_user={settings.clients_per_user} clients already",
            )
        if wanted < 1:
            raise OSError(errno.EINVAL, f"queues={wanted} must be 1 or more")
        ranges = tuple(
            (grant.nsid, grant.first_lba, grant.blocks)
            for grant in settings.ranges
            if grant.controller == self.name and grant.is_for(peer.uid, peer.gids)
        )
        given = self.host.add_client(min(wanted, self.quota), settings.windows, settings.window_bytes, ranges)
        lease = Lease(
            owner=self,
            id=given["id"],
            peer=peer,
            queue_ids=tuple(given["queue_ids"]),
            state_file=given["state_file"],
            doorbell_file=given["doorbell_file"],
            doorbell_bytes=given["doorbell_bytes"],
            ranges=ranges,
        )
        self.leases[lease.id] = lease
        return lease

    def end(self, lease: Lease) -> bool:
        """End what the lease had; False when the controller may still reach its memory, which then stays."""
        del self.leases[lease.id]
        return self.host.remove_client(lease.id)

    def status(self) -> dict[str, Any]:
        counters = self.host.counters()
        return {
            "name": self.name,
            "transport": self.facts["name"],
            "model": self.facts["model"],
            "serial": self.facts["serial"],
            "enforces_ranges": self.facts["enforces_ranges"],
            "queues": self.facts["queues"],
            "queues_per_client": self.quota,
            **counters,
        }


def open_pidfd() -> int:
    """A descriptor that tells its holders when this process has ended."""
    return os.pidfd_open(os.getpid())
