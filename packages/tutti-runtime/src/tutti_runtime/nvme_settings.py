# SPDX-License-Identifier: Apache-2.0
"""Settings of an NVMe runtime and of its controllers, checked key by key."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tutti_runtime import _core, config

__all__ = ["NVME_KEYS", "check_controllers", "check_layer_settings", "check_nvme_settings"]

_HUGE = (1 << 63) - 1

_NUMBERS: dict[str, tuple[int, int]] = {
    "queues": (1, 64),
    "queue_entries": (2, 4096),
    "window_bytes": (4096, _HUGE),
    "window_commands": (0, 1 << 20),
    "device": (0, 1023),
    "device_queues": (1, 64),
    "device_blocks": (1, 8),
    "max_in_flight": (1, 1 << 20),
    "max_results": (1, 1 << 24),
}
_SECONDS = {"command_timeout": False, "admin_timeout": False, "retry_after": True}  # whether 0 is allowed

_EXECUTORS = ("auto", "none", "cpu", "cuda")

NVME_KEYS = ("controllers", *_NUMBERS, *_SECONDS, "sgl", "device_executor", "write_policy", "roots", "unit")

_LAYERS: dict[str, tuple[int, int] | type] = {
    "queues": (1, 64),
    "queue_entries": (2, 4096),
    "window_commands": (0, 1 << 20),
    "window_bytes": (1, _HUGE),
    "ring_entries": (1, 4096),
    "sgl": bool,
    "linger": float,
    "stay": float,
    "device": (0, 1023),
    "blocks": (1, 8),
}

# What a key of a controller or namespace takes: the bounds of an int, or a type.
_NAMESPACE: dict[str, tuple[int, int] | type] = {
    "memory_bytes": (512, _HUGE),
    "image": str,
    "lba_bytes": (512, 4096),
    "metadata_bytes": (0, 4096),
}
_TRANSPORTS: dict[str, dict[str, tuple[int, int] | type]] = {
    "soft": {
        **_NAMESPACE,
        "namespaces": list,
        "mdts_bytes": (0, 1 << 40),
        "sgl": bool,
        "max_entries": (2, 65536),
        "max_queues": (1, 1024),
        "doorbell_stride": (4, 4096),
        "timeout_ms": (500, 127500),
        "noiob": (0, 65535),
        "dma_granule": (0, 1 << 40),
        "latency": float,
        "bandwidth": float,
        "device": (0, 1023),
        "control": _core.NvmeSoftControl,
    },
    "qtest": {
        "socket": str,
        "ram": str,
        "slot": (1, 31),
        "relay": bool,
        "peer": str,
        "peer_slot": (0, 31),
        "device": (0, 1023),
    },
    "vfio": {"bdf": str, "root": str},
    "broker": {"socket": str, "controller": str, "queues": (1, 64), "answer_timeout": float},
}
_BLOCK_DEVICE: dict[str, tuple[int, int] | type] = {"nsid": (1, (1 << 32) - 2), "offset": (0, _HUGE)}


def _check_value(name: str, value: object, rule: tuple[int, int] | type) -> Any:
    if isinstance(rule, tuple):
        low, high = rule
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name}={value!r} must be an int between {low} and {high}")
    elif rule is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{name}={value!r} must be a number from 0 up")
        return float(value)
    elif rule is str:
        if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):
            raise ValueError(f"{name}={value!r} must be a str without NUL")
        return os.fspath(value)
    elif not isinstance(value, rule):
        raise ValueError(f"{name}={value!r} must be a {rule.__name__}")
    return value


def _check_mapping(
    what: str, spec: object, known: Mapping[str, tuple[int, int] | type], others: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the keys of ``known`` that ``spec`` has, checked; ``others`` may stand beside them."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"{what}: {spec!r} must be a mapping")
    try:
        config.check_keys(spec, (*others, *known))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return {
        key: _check_value(f"{what}: {key}", spec[key], rule) for key, rule in known.items() if key in spec
    }


def _device_number(what: str, value: object) -> tuple[int, int]:
    if isinstance(value, str | os.PathLike):
        found = Path(value).stat()
        if not stat.S_ISBLK(found.st_mode):
            raise ValueError(f"{what}: device={os.fspath(value)!r} is no block device")
        return os.major(found.st_rdev), os.minor(found.st_rdev)
    if isinstance(value, tuple) and len(value) == 2:
        first, second = (_check_value(f"{what}: device", part, (0, (1 << 32) - 1)) for part in value)
        return int(first), int(second)
    raise ValueError(f"{what}: device={value!r} must be a path or (major, minor)")


def _check_block_devices(what: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: block_devices={value!r} must be a list")
    devices = []
    for i, spec in enumerate(value):
        where = f"{what}: block_devices[{i}]"
        device = _check_mapping(where, spec, _BLOCK_DEVICE, ("device",))
        if "device" not in spec:
            raise ValueError(f"{where}: key 'device' is missing")
        devices.append({**device, "device": _device_number(where, spec["device"])})
    return devices


def _check_controller(what: str, spec: object) -> dict[str, Any]:
    if not isinstance(spec, Mapping) or "transport" not in spec:
        raise ValueError(f"{what}: {spec!r} must be a mapping with 'transport'")
    transport = config.check_choice(f"{what}: transport", spec["transport"], tuple(_TRANSPORTS))
    checked = _check_mapping(what, spec, _TRANSPORTS[transport], ("transport", "name", "block_devices"))
    if "namespaces" in checked:
        spaces = [
            _check_mapping(f"{what}: namespaces[{i}]", each, _NAMESPACE)
            for i, each in enumerate(checked["namespaces"])
        ]
        if not spaces or any(key in checked for key in _NAMESPACE):
            raise ValueError(
                f"{what}: namespaces holds one or more, and no key of a namespace stands beside it"
            )
        checked["namespaces"] = spaces
    checked["transport"] = transport
    default = checked.get("bdf", "") if transport == "vfio" else ""
    checked["name"] = _check_value(f"{what}: name", spec.get("name", default), str)
    if "block_devices" in spec:
        checked["block_devices"] = _check_block_devices(what, spec["block_devices"])
    return checked


def check_controllers(value: object) -> list[dict[str, Any]]:
    """Return specs of controllers as the compiled module takes them, else raise ``ValueError``."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"controllers={value!r} must be a list of mappings")
    return [_check_controller(f"controllers[{i}]", spec) for i, spec in enumerate(value)]


def check_nvme_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of :data:`NVME_KEYS` as the compiled module takes them, else raise ``ValueError``."""
    native: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _NUMBERS:
            native[key] = _check_value(key, value, _NUMBERS[key])
        elif key in _SECONDS:
            native[key] = _check_value(key, value, float)
            if native[key] > 3600 or (native[key] == 0 and not _SECONDS[key]):
                raise ValueError(f"{key}={value!r} must be seconds up to 3600")
        elif key == "sgl":
            native[key] = _check_value(key, value, bool)
        elif key == "device_executor":
            native[key] = config.check_choice(key, value, _EXECUTORS)
        elif key == "unit":
            native[key] = config.check_unit(value)
        elif key == "roots":
            native[key] = config.check_roots(value) if value else []
        elif key == "write_policy":
            native.update(config.check_file_settings({key: value}))
        else:
            native[key] = check_controllers(value)
    return native


def check_layer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of :class:`tutti_runtime.nvme_layers.NvmeLayers` as the compiled module takes them."""
    known = ("controllers", "execution", *_SECONDS)
    native = _check_mapping("settings", settings, _LAYERS, known)
    for key in _SECONDS:
        if key in settings:
            native.update(check_nvme_settings({key: settings[key]}))
    if "execution" in settings:
        native["execution"] = config.check_choice("execution", settings["execution"], ("cpu", "cuda"))
    native["controllers"] = check_controllers(settings.get("controllers", ()))
    return native
