# SPDX-License-Identifier: Apache-2.0
"""Storage backends by name: those of this package, and those that other distributions offer.

A distribution offers one in its ``pyproject.toml``::

    [project.entry-points."tutti_engine.backends"]
    mine = "my_package:MyBackend"

The entry point names a callable that takes keyword arguments and returns a ``StorageBackend``. It, or what it
returns, has an attribute ``spi_version``: the ``SPI_VERSION`` that it was written for.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tutti_engine.backend import StorageBackend, check_spi_version
from tutti_engine.errors import BackendError

__all__ = ["ENTRY_POINT_GROUP", "backend_names", "make_backend"]

ENTRY_POINT_GROUP = "tutti_engine.backends"

_OWN = {
    "local": "tutti_engine.backends.local:LocalStoreBackend",
    "memory": "tutti_engine.backends.memory:MemoryBackend",
    "mooncake": "tutti_engine.backends.mooncake_places:MooncakeBackend",
}


_METHODS = ("chunk_ids", "bind_staging", "write_segments", "read_segments", "wait_idle", "shutdown")


def backend_names() -> tuple[str, ...]:
    """Return the names that ``make_backend`` knows, sorted. Imports none of them."""
    return tuple(sorted({*_OWN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def make_backend(name: str, **options: Any) -> StorageBackend:
    """Make a backend.

    Args:
        name: one of ``backend_names()``.
        options: the backend's own arguments, see its documentation: ``"memory"`` takes ``num_layers``,
            ``segment_bytes`` and ``num_chunks``, ``"local"`` takes ``layout`` and ``rank``.

    Raises:
        BackendError: no backend has that name, or two have it; it cannot be imported, was written for another
            version of the SPI, or is no ``StorageBackend``.
        TypeError: an option is unknown or missing; the message lists those that there are.
    """
    factory = _load(name)
    version = getattr(factory, "spi_version", None)
    if version is not None:
        _check_version(name, version)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise TypeError(f"backend {name!r} takes {inspect.signature(factory)}: {error}") from None
    backend = factory(**options)
    if version is None:
        _check_version(name, getattr(backend, "spi_version", None))
    missing = [method for method in _METHODS if not callable(getattr(backend, method, None))]
    if missing:
        kind = type(backend).__name__
        raise BackendError(f"backend {name!r} made a {kind}, which lacks {', '.join(missing)}")
    made: StorageBackend = backend  # type: ignore[assignment]
    return made


def _check_version(name: str, version: object) -> None:
    if version is None:
        raise BackendError(
            f"backend {name!r} does not say for which version of the storage SPI it was written; "
            "give it an attribute spi_version"
        )
    check_spi_version(name, version)


def _load(name: str) -> Callable[..., object]:
    points = {_place(point): point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name}
    own = _OWN.get(name)
    if own is not None:
        points.pop(own, None)  # this package's own entry, as installed
    if not points and own is None:
        nearest = difflib.get_close_matches(name, backend_names(), n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(backend_names())}"
        raise BackendError(f"no storage backend is called {name!r}: {hint}")
    if len(points) + (own is not None) > 1:
        places = ", ".join(sorted(filter(None, [own, *points])))
        raise BackendError(f"several storage backends are called {name!r}: {places}; uninstall all but one")
    place = own or next(iter(points))
    module, _, attribute = place.partition(":")
    try:
        factory: object = import_module(module)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"storage backend {name!r} ({place}) cannot be used: {error}") from error
    if not callable(factory):
        raise BackendError(f"storage backend {name!r} ({place}) is not callable")
    return factory


def _place(point: EntryPoint) -> str:
    return point.value.split("[")[0].replace(" ", "")
