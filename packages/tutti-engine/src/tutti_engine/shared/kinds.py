# SPDX-License-Identifier: Apache-2.0
"""Shared stores by the name of their kind, imported only when one is used."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tutti_engine.errors import BackendError
from tutti_engine.shared.store import SharedStore

__all__ = ["SHARED_KINDS", "check_shared_options", "make_shared_store"]

SHARED_KINDS: dict[str, str] = {
    "mooncake": "tutti_engine.backends.mooncake:MooncakeStore",
}
"""Kinds of this package. Any other one is named ``package.module:Class``, found on Python's path."""

_METHODS = ("bind_staging", "exists", "write_objects", "read_objects", "remove", "wait_idle", "shutdown")


def make_shared_store(kind: str, **options: Any) -> SharedStore:
    """Make a client of a shared store; it may block until the store has answered.

    Args:
        kind: one of ``SHARED_KINDS``, or ``package.module:Class``.
        options: the kind's own arguments.

    Raises:
        BackendError: no such kind, or it cannot be imported, or what it made is no ``SharedStore``.
        TypeError: an option is unknown or missing; the message names the nearest one, or all.
        OSError: the store cannot be reached now.
    """
    factory = _load(kind)
    _check_options(kind, factory, options)
    store = factory(**options)
    missing = [method for method in _METHODS if not callable(getattr(store, method, None))]
    if missing:
        made = type(store).__name__
        raise BackendError(f"shared store {kind!r} made a {made}, which lacks {', '.join(missing)}")
    found: SharedStore = store
    return found


def check_shared_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise what ``make_shared_store`` would raise for a wrong kind or option; reach for no store."""
    _check_options(kind, _load(kind), options)


def _check_options(kind: str, factory: Any, options: Mapping[str, Any]) -> None:
    signature = inspect.signature(factory)
    known = [name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD]
    if len(known) == len(signature.parameters):
        for name in options:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"it takes {', '.join(known)}"
                raise TypeError(f"shared store {kind!r} has no option {name!r}: {hint}")
    try:
        signature.bind(**options)
    except TypeError as error:
        raise TypeError(f"shared store {kind!r} takes {signature}: {error}") from None


def _load(kind: str) -> Any:
    place = SHARED_KINDS.get(kind, kind)
    module, colon, attribute = place.partition(":")
    if not colon:
        nearest = difflib.get_close_matches(kind, SHARED_KINDS, n=1, cutoff=0.5)
        known = f"known are {', '.join(SHARED_KINDS)} and package.module:Class"
        hint = f"did you mean {nearest[0]!r}?" if nearest else known
        raise BackendError(f"no shared store is of the kind {kind!r}: {hint}")
    try:
        factory: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"shared store {kind!r} ({place}) cannot be used: {error}") from error
    if not callable(factory):
        raise BackendError(f"shared store {kind!r} ({place}) is not callable")
    return factory
