# SPDX-License-Identifier: Apache-2.0
"""Settings of a runtime, checked key by key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["FILE_KEYS", "MEMORY_KEYS", "check_choice", "check_int", "check_keys"]

DATA_PATHS = ("auto", "uring", "posix")
DIRECT_POLICIES = ("auto", "on", "off")
KINDS = ("file", "memory")

FILE_KEYS = ("data_path", "direct", "queue_depth", "max_in_flight", "threads")
MEMORY_KEYS = ("max_in_flight",)

_RANGES = {"queue_depth": (1, 4096), "max_in_flight": (1, 1 << 20), "threads": (1, 256)}


def check_choice(key: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``, else raise ``ValueError``."""
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{key}={value!r} must be one of {allowed}")
    return value


def check_int(key: str, value: object) -> int:
    """Return ``value`` if it is an int in the key's range, else raise ``ValueError``."""
    low, high = _RANGES[key]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{key}={value!r} must be an int between {low} and {high}")
    return value


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
