# SPDX-License-Identifier: Apache-2.0
"""Named ranges on a profiler's time line (NVTX), when the user switches them on.

Methods are wrapped on the objects that are to be watched; when ranges are off nothing is touched, so they
cost nothing.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["DOMAIN", "VARIABLE", "Marks", "add_to_worker", "are_wanted", "find_marks"]

logger = logging.getLogger(__name__)

DOMAIN = "tutti"
VARIABLE = "TUTTI_NVTX"
"""Switches ranges on without a change of the settings; 0 or nothing leaves them as they are set."""

_WORKER = {
    "start_loads": "start loads",
    "wait_for_layer": "wait for layer",
    "finish_step": "store pages",
    "collect": "collect results",
}
_MOVER = {"gather": "gather", "scatter": "scatter"}


class Marks(Protocol):
    """Begins and ends ranges of the calling thread."""

    def push(self, name: str) -> None:
        """Begin a range inside those that are open."""

    def pop(self) -> None:
        """End the innermost one."""


class _Nvtx:
    """The package ``nvtx``."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def push(self, name: str) -> None:
        self._module.push_range(name, domain=DOMAIN)

    def pop(self) -> None:
        self._module.pop_range(domain=DOMAIN)


class _TorchNvtx:
    """The part of it that torch's CUDA builds bring along; it knows no domains."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def push(self, name: str) -> None:
        self._module.range_push(f"{DOMAIN}: {name}")

    def pop(self) -> None:
        self._module.range_pop()


def are_wanted(setting: bool) -> bool:
    """Whether ranges are switched on, by the setting or in the environment."""
    return setting or os.environ.get(VARIABLE, "0") not in ("", "0")


def find_marks() -> Marks | None:
    """Return what makes ranges here, None if nothing does."""
    try:
        import nvtx
    except ImportError:
        pass
    else:
        return _Nvtx(nvtx)
    try:
        from torch.cuda import nvtx as torch_nvtx

        torch_nvtx.range_push(DOMAIN)
        torch_nvtx.range_pop()
    except (ImportError, RuntimeError):
        return None
    return _TorchNvtx(torch_nvtx)


def add_to_worker(side: Any, marks: Marks | None) -> None:
    """Put ranges around what a worker's side does, and around the copies of the mover that it is given.

    Args:
        side: the worker's side, before ``register``.
        marks: what makes ranges; None warns that nothing does.
    """
    if marks is None:
        logger.warning("Tutti: nvtx is switched on, but there is none: install the package nvtx.")
        return
    _wrap(side, _WORKER, marks)
    register = side.register

    def register_with_ranges(mover: Any, *more: Any) -> None:
        _wrap(mover, _MOVER, marks)
        register(mover, *more)

    side.register = register_with_ranges


def _wrap(owner: Any, names: Mapping[str, str], marks: Marks) -> None:
    for method, name in names.items():
        setattr(owner, method, _ranged(getattr(owner, method), name, marks))


def _ranged(method: Callable[..., Any], name: str, marks: Marks) -> Callable[..., Any]:
    @functools.wraps(method)
    def ranged(*arguments: Any, **named: Any) -> Any:
        marks.push(name)
        try:
            return method(*arguments, **named)
        finally:
            marks.pop()

    return ranged
