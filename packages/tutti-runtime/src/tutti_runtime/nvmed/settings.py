# SPDX-License-Identifier: Apache-2.0
"""Settings of the daemon, checked key by key."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutti_runtime import config
from tutti_runtime.nvme_settings import check_controllers
from tutti_runtime.nvmed.listener import check_path
from tutti_runtime.nvmed.protocol import NAME_BYTES

__all__ = ["DEFAULT_SOCKET", "BrokerSettings", "Grant", "load_settings"]

DEFAULT_SOCKET = "/run/tutti/nvmed.sock"
_HUGE = (1 << 63) - 1
_MOST_RANGES = 256  # a welcome holds them all
_TRANSPORTS = ("soft", "qtest", "vfio")

_NUMBERS: dict[str, tuple[int, int]] = {
    "max_clients": (1, 1024),
    "clients_per_user": (0, 1024),
    "queues_per_client": (0, 64),
    "windows": (8, 1 << 16),
    "window_bytes": (4096, _HUGE),
}
_SECONDS: dict[str, tuple[float, float]] = {"lease_seconds": (0.1, 3600.0), "admin_timeout": (0.01, 3600.0)}


@dataclass(frozen=True)
class Grant:
    """Blocks of a namespace that clients of one user or group may touch, and then no others."""

    controller: str
    nsid: int
    first_lba: int
    blocks: int
    uid: int | None = None
    gid: int | None = None

    def is_for(self, uid: int, gids: frozenset[int]) -> bool:
        return uid == self.uid or (self.gid is not None and self.gid in gids)


@dataclass(frozen=True)
class BrokerSettings:
    """What ``tutti-nvmed`` is told. Raises ``ValueError`` naming the key.

    Attributes:
        controllers: as for :func:`tutti_runtime.make_nvme_runtime`, without ``block_devices``.
        socket: absolute path; its folder has mode 0700 or 0750.
        group: gid of the socket and of a folder that is made (``None``: this process's).
        uids, gids: who may connect; neither: only this user.
        max_clients: leases on one controller at once, ``clients_per_user`` of them of one uid (0: all).
        queues_per_client: queue pairs kept for each client (0: an even share of what there is).
        lease_seconds: without a message for so long, a client's queues are ended.
        windows, window_bytes: of one client at once; queues and lists of descriptors count too.
        ranges: which blocks whose clients may touch. A user with none may touch all.
        admin_timeout: seconds of an admin command.
    """

    controllers: tuple[Mapping[str, Any], ...]
    socket: str = DEFAULT_SOCKET
    group: int | None = None
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    max_clients: int = 8
    clients_per_user: int = 0
    queues_per_client: int = 0
    lease_seconds: float = 5.0
    windows: int = 1024
    window_bytes: int = 64 << 30
    ranges: tuple[Grant, ...] = field(default=())
    admin_timeout: float = 2.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BrokerSettings:
        """Check a mapping, as it stands in the daemon's JSON file."""
        if not isinstance(values, Mapping):
            raise ValueError(f"settings={values!r} must be an object")
        config.check_keys(values, tuple(cls.__dataclass_fields__))
        if "controllers" not in values:
            raise ValueError("key 'controllers' is missing; it must be a list of objects")
        checked: dict[str, Any] = {}
        for key, value in values.items():
            checked[key] = _check(key, value)
        names = {spec["name"] for spec in checked["controllers"]}
        for grant in checked.get("ranges", ()):
            if grant.controller not in names:
                raise ValueError(f"ranges: controller={grant.controller!r} must be one of {sorted(names)}")
        return cls(**checked)


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}={value!r} must be an int between {low} and {high}")
    return value


def _identifiers(name: str, value: object) -> frozenset[int]:
    if not isinstance(value, list | tuple | frozenset):
        raise ValueError(f"{name}={value!r} must be a list of ints")
    return frozenset(_whole(name, each, 0, (1 << 32) - 2) for each in value)


def _grant(where: str, value: object) -> Grant:
    if isinstance(value, Grant):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}={value!r} must be an object")
    config.check_keys(value, ("controller", "nsid", "first_lba", "blocks", "uid", "gid"))
    if ("uid" in value) == ("gid" in value):
        raise ValueError(f"{where} must have one of 'uid' and 'gid'")
    for key in ("controller", "nsid", "blocks"):
        if key not in value:
            raise ValueError(f"{where}: key {key!r} is missing")
    owner = {
        key: _whole(f"{where}: {key}", value[key], 0, (1 << 32) - 2) for key in ("uid", "gid") if key in value
    }
    return Grant(
        controller=str(value["controller"]),
        nsid=_whole(f"{where}: nsid", value["nsid"], 1, (1 << 32) - 2),
        first_lba=_whole(f"{where}: first_lba", value.get("first_lba", 0), 0, _HUGE),
        blocks=_whole(f"{where}: blocks", value["blocks"], 1, _HUGE),
        **owner,
    )


def _check(key: str, value: Any) -> Any:
    if key == "controllers":
        specs = check_controllers(value)
        names = [spec["name"] for spec in specs]
        if not specs or len(set(names)) != len(names) or not all(name and name.isascii() for name in names):
            raise ValueError("controllers must be one or more, each with an ASCII 'name' of its own")
        for spec in specs:
            if len(spec["name"]) >= NAME_BYTES:
                raise ValueError(
                    f"controllers: name={spec['name']!r} must have fewer than {NAME_BYTES} bytes"
                )
            config.check_choice(f"controllers: transport of {spec['name']!r}", spec["transport"], _TRANSPORTS)
            if "block_devices" in spec:
                raise ValueError("controllers: block_devices is a setting of clients")
        return tuple(specs)
    if key == "socket":
        if not isinstance(value, str | os.PathLike):
            raise ValueError(f"socket={value!r} must be a str")
        return check_path(os.fspath(value))
    if key == "group":
        return None if value is None else _whole(key, value, 0, (1 << 32) - 2)
    if key in ("uids", "gids"):
        return _identifiers(key, value)
    if key == "ranges":
        if not isinstance(value, list | tuple) or len(value) > _MOST_RANGES:
            raise ValueError(f"ranges={value!r} must be a list of at most {_MOST_RANGES} objects")
        return tuple(_grant(f"ranges[{i}]", each) for i, each in enumerate(value))
    if key in _SECONDS:
        low, high = _SECONDS[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"{key}={value!r} must be seconds between {low} and {high}")
        return float(value)
    return _whole(key, value, *_NUMBERS[key])


def load_settings(path: str | os.PathLike[str]) -> BrokerSettings:
    """Read the daemon's JSON file. Raises ``OSError``, or ``ValueError`` naming the file and the key."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        return BrokerSettings.of(json.loads(text))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
