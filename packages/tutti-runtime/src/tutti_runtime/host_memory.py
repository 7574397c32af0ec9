# SPDX-License-Identifier: Apache-2.0
"""Pageable memory that can be registered."""

from __future__ import annotations

import numpy as np

from tutti_runtime._anonymous import AnonymousMemory

__all__ = ["HostMemory"]


class HostMemory:
    """Zeroed memory of this process at a multiple of 64 KiB, unmapped when nothing refers to it any more.

    ``bytes`` is it as an array, ``address`` and ``size`` are what ``Runtime.register_memory`` takes. Keep the
    object until the memory is unregistered. From 2 MiB on huge pages are asked for (``huge_pages``): a drive
    then takes a large transfer as one request.
    """

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size={size!r} must be an int of 1 byte or more")
        memory = AnonymousMemory(size)
        self.bytes = np.frombuffer(memory.map, dtype=np.uint8)[memory.offset : memory.offset + size]
        self.address = memory.address
        self.huge_pages = memory.huge_pages
        self.size = size
