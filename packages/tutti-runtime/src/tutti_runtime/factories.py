# SPDX-License-Identifier: Apache-2.0
"""The functions that make a runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tutti_runtime import _core, config
from tutti_runtime.runtime import Runtime
from tutti_runtime.write_policy import WritePolicy

__all__ = ["make_file_runtime", "make_memory_runtime", "make_runtime", "make_striped_runtime"]

_DEFAULT_UNIT = 1 << 20


def make_file_runtime(
    *,
    data_path: str = "auto",
    direct: str = "auto",
    queue_depth: int = 64,
    max_in_flight: int = 4096,
    max_results: int = 1 << 20,
    threads: int = 4,
    max_open_files: int | None = None,
    nofollow: str = "last",
    write_policy: WritePolicy | None = None,
    step_down_after: int = 3,
    cufile_library: str = "",
) -> Runtime:
    """Make a runtime for ``file://``, ``raw://`` and, with roots in the URI, ``striped://`` targets.

    Args:
        data_path: ``"uring"``, ``"posix"``, ``"cufile"`` (GPUDirect Storage: the one for device memory; every
            target keeps a descriptor there), or ``"auto"``: io_uring where the kernel has it, and the pool of
            threads for what io_uring turns out not to be able to do, never cufile.
        direct: ``"on"`` (O_DIRECT or an error), ``"off"``, or ``"auto"``: O_DIRECT where the file system
            takes it.
        queue_depth: operations of one root (one drive) that io_uring holds at once.
        max_in_flight: accepted and unfinished requests.
        max_results: requests, unfinished or finished, of batches that nobody has waited for or abandoned; no
            fewer than ``max_in_flight``.
        threads: posix threads for each root; cufile threads in all.
        max_open_files: descriptors that are kept; a target that was not used for the longest time loses its
            own and gets one again when it is used (``None``: a quarter of the process's limit, at most 1024).
        nofollow: ``"last"`` refuses a symbolic link as the last component of a path, ``"all"`` in any.
        write_policy: how writes share a root with reads (``None``: the defaults of :class:`WritePolicy`).
        step_down_after: with ``"auto"``, operations in a row that io_uring fails and the pool of threads can
            do, after which the runtime stays with the threads. Each of them succeeds all the same.
        cufile_library: absolute path of ``libcufile.so.0``; by default that of an installed ``nvidia-cufile``
            package, else where the loader finds it.

    Raises ``ValueError`` naming the key, and ``OSError`` when ``"uring"`` or ``"cufile"`` is asked for and
    cannot be had.
    """
    settings = {
        "data_path": data_path,
        "direct": direct,
        "queue_depth": queue_depth,
        "max_in_flight": max_in_flight,
        "max_results": max_results,
        "threads": threads,
        "max_open_files": max_open_files,
        "nofollow": nofollow,
        "write_policy": write_policy,
        "step_down_after": step_down_after,
        "cufile_library": cufile_library,
    }
    return Runtime(_core.make_file(**config.check_file_settings(settings)))


def make_striped_runtime(
    *, roots: Iterable[str | bytes | os.PathLike[str]], unit: int = _DEFAULT_UNIT, **settings: Any
) -> Runtime:
    """Make a file runtime whose ``striped://name`` targets lie on ``roots`` in units of ``unit`` bytes.

    ``roots``: 1 to 64 absolute paths of folders, one per drive. ``unit``: a power of two from 4 KiB to 1 GiB.
    Both stand in where a URI names none. All other keys are those of :func:`make_file_runtime`.
    """
    config.check_keys(settings, config.FILE_KEYS)
    checked = config.check_file_settings(settings)
    return Runtime(_core.make_file(**checked, roots=config.check_roots(roots), unit=config.check_unit(unit)))


def make_memory_runtime(*, max_in_flight: int = 4096) -> Runtime:
    """Make a runtime for ``mem://`` targets: no device, for tests and as a reference."""
    return Runtime(_core.make_memory(config.check_int("max_in_flight", max_in_flight)))


def make_runtime(spec: Mapping[str, Any]) -> Runtime:
    """Make a runtime from a mapping: ``kind`` is ``"file"``, ``"striped"`` or ``"memory"``, other keys are
    those of its function.

    Raises ``ValueError`` for a missing ``kind``, an unknown key (naming the nearest known one) or a bad
    value.
    """
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec={spec!r} must be a mapping")
    if "kind" not in spec:
        raise ValueError("key 'kind' is missing; it must be 'file', 'striped' or 'memory'")
    kind = config.check_choice("kind", spec["kind"], config.KINDS)
    makers: dict[str, tuple[Callable[..., Runtime], tuple[str, ...]]] = {
        "file": (make_file_runtime, config.FILE_KEYS),
        "striped": (make_striped_runtime, config.STRIPED_KEYS),
        "memory": (make_memory_runtime, config.MEMORY_KEYS),
    }
    maker, known = makers[kind]
    config.check_keys(spec, ("kind", *known))
    if kind == "striped" and "roots" not in spec:
        raise ValueError("key 'roots' is missing; it must be a list of absolute paths")
    return maker(**{key: value for key, value in spec.items() if key != "kind"})
