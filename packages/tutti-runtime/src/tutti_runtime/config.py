# SPDX-License-Identifier: Apache-2.0
"""Settings of a runtime, checked key by key."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tutti_runtime.write_policy import WritePolicy

__all__ = [
    "FILE_KEYS",
    "MEMORY_KEYS",
    "MEMORY_KINDS",
    "STRIPED_KEYS",
    "check_choice",
    "check_file_settings",
    "check_device",
    "check_int",
    "check_keys",
    "check_library",
    "check_roots",
    "check_unit",
    "find_cufile",
]

DATA_PATHS = ("auto", "uring", "posix", "cufile")
DIRECT_POLICIES = ("auto", "on", "off")
NOFOLLOW_POLICIES = ("last", "all")
KINDS = ("file", "striped", "memory", "nvme")
MEMORY_KINDS = ("host", "pinned_host", "device")

FILE_KEYS = (
    "data_path",
    "direct",
    "queue_depth",
    "max_in_flight",
    "threads",
    "max_open_files",
    "nofollow",
    "max_results",
    "write_policy",
    "step_down_after",
    "cufile_library",
)
STRIPED_KEYS = ("roots", "unit", *FILE_KEYS)
MEMORY_KEYS = ("max_in_flight",)

_RANGES = {
    "queue_depth": (1, 4096),
    "max_in_flight": (1, 1 << 20),
    "threads": (1, 256),
    "max_open_files": (1, 1 << 20),
    "max_results": (1, 1 << 24),
    "step_down_after": (1, 1000),
}
_MAX_ROOTS = 64


def check_choice(key: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``, else raise ``ValueError``."""
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{key}={value!r} must be one of {allowed}")
    return value


def check_device(value: object) -> int:
    """Return ``value`` if it can be the number of a CUDA device, else raise ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"device={value!r} must be the number of a CUDA device, from 0 up")
    return value


def check_library(key: str, value: object) -> str:
    """Return ``value`` if it is ``""`` or an absolute path, else raise ``ValueError``."""
    if not isinstance(value, str) or "\0" in value or (value and not Path(value).is_absolute()):
        raise ValueError(f"{key}={value!r} must be '' or the absolute path of a library")
    return value


def find_cufile() -> str:
    """Path of the ``libcufile.so.0`` of an installed ``nvidia-cufile`` package, or ``""``."""
    for package, folder in (("nvidia.cu13", "lib"), ("nvidia.cufile", "lib"), ("nvidia", "cu13/lib")):
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            for root in (spec.submodule_search_locations or ()) if spec else ():
                path = Path(root) / folder / "libcufile.so.0"
                if path.is_file():
                    return str(path)
    return ""


def check_int(key: str, value: object) -> int:
    """Return ``value`` if it is an int in the key's range, else raise ``ValueError``."""
    low, high = _RANGES[key]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{key}={value!r} must be an int between {low} and {high}")
    return value


def check_file_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of :data:`FILE_KEYS` as the compiled module takes them, else raise ``ValueError``."""
    choices = {"data_path": DATA_PATHS, "direct": DIRECT_POLICIES, "nofollow": NOFOLLOW_POLICIES}
    native: dict[str, Any] = {}
    for key, value in settings.items():
        if key in choices:
            native[key] = check_choice(key, value, choices[key])
        elif value is None and key in ("max_open_files", "write_policy"):
            continue
        elif key == "write_policy":
            if not isinstance(value, WritePolicy):
                raise ValueError(f"write_policy={value!r} must be a tutti_runtime.WritePolicy or None")
            native[key] = value.native()
        elif key == "cufile_library":
            native[key] = check_library(key, value)
        else:
            native[key] = check_int(key, value)
    if native.get("data_path") == "cufile" and not native.get("cufile_library"):
        native["cufile_library"] = find_cufile()
    return native


def check_unit(value: object) -> int:
    """Return ``value`` if it is a striping unit in bytes, else raise ``ValueError``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not 4096 <= value <= 1 << 30
        or value & (value - 1)
    ):
        raise ValueError(f"unit={value!r} must be a power of two from 4096 to 1073741824")
    return value


def check_roots(value: object) -> list[bytes]:
    """Return the folders of a striped runtime as bytes, else raise ``ValueError`` naming the one at fault."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"roots={value!r} must be a list of absolute paths")
    roots: list[bytes] = []
    for item in value:
        if not isinstance(item, str | bytes | os.PathLike):
            raise ValueError(f"roots: {item!r} must be a path")
        root = os.fsencode(item)
        if not root.startswith((b"/", b"nvme://")) or b"\0" in root:
            raise ValueError(f"roots: {item!r} must be an absolute path without NUL, or nvme://name/nsid")
        roots.append(root)
    if not 1 <= len(roots) <= _MAX_ROOTS:
        raise ValueError(f"roots has {len(roots)} paths; it must have 1 to {_MAX_ROOTS}")
    return roots


def check_keys(spec: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ``ValueError`` for the first key that is not in ``known``, with the nearest one that is."""
    names = list(known)
    for key in spec:
        if key in names:
            continue
        near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)
        raise ValueError(
            f"unknown key {key!r}; the nearest known key is {near[0]!r} (known: {', '.join(names)})"
        )
