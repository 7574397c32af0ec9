# SPDX-License-Identifier: Apache-2.0
"""Checksums by the name that a namespace has for them, for those who read a store without its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tutti_engine.errors import BackendError
from tutti_engine.movers import plain

__all__ = ["Checksum", "find_checksum"]

Checksum: TypeAlias = Callable[[memoryview], int]
"""Returns an unsigned 64-bit number of some writable bytes."""


def find_checksum(name: str) -> Checksum:
    """Return the formula of that name. Raises BackendError when it is not known, or not installed."""
    if name == plain.PlainMover.checksum_name:
        return plain.checksum
    try:
        from tutti_engine.movers import kernels
    except ImportError as error:
        raise BackendError(
            f"the checksum {name!r} may be the kernels', which are missing ({error});"
            " pip install 'tutti-engine[kernels]'"
        ) from error
    if name != kernels.KernelMover.checksum_name:
        known = f"{plain.PlainMover.checksum_name}, {kernels.KernelMover.checksum_name}"
        raise BackendError(f"no checksum is called {name!r}; known here are {known}")
    return kernels.checksum
