# SPDX-License-Identifier: Apache-2.0
"""Pageable memory that can be registered."""

from __future__ import annotations

import mmap

import numpy as np

__all__ = ["HostMemory"]

_ALIGNMENT = 64 << 10


class HostMemory:
    """Zeroed memory of this process at a multiple of 64 KiB, unmapped when nothing refers to it any more.

    ``bytes`` is it as an array, ``address`` and ``size`` are what ``Runtime.register_memory`` takes. Keep the
    object until the memory is unregistered.
    """

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size={size!r} must be an int of 1 byte or more")
        self._map = mmap.mmap(-1, size + _ALIGNMENT)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        skip = -whole.ctypes.data % _ALIGNMENT
        self.bytes = whole[skip : skip + size]
        self.address = int(self.bytes.ctypes.data)
        self.size = size
