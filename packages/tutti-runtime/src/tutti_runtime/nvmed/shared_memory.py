# SPDX-License-Identifier: Apache-2.0
"""Memory that a runtime can share with ``tutti-nvmed``."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

__all__ = ["SharedMemory"]

_ALIGNMENT = 64 << 10


class SharedMemory:
    """Zeroed memory in a memfd at a multiple of 64 KiB, unmapped when nothing refers to it any more.

    Used as :class:`tutti_runtime.HostMemory`: ``bytes`` is it as an array, ``address`` and ``size`` are what
    ``Runtime.register_memory`` takes. The file cannot shrink or grow: the daemon maps it, and would be struck
    by a signal otherwise.
    """

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size={size!r} must be an int of 1 byte or more")
        room = -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        file = os.memfd_create("tutti-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, room)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            mapping = mmap.mmap(file, room)  # holds a descriptor of its own
        finally:
            os.close(file)
        whole = np.frombuffer(mapping, dtype=np.uint8)
        offset = -int(whole.ctypes.data) % _ALIGNMENT
        self.bytes = whole[offset : offset + size]
        self.address = int(self.bytes.ctypes.data)
        self.size = size
