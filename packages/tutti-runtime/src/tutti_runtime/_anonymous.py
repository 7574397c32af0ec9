# SPDX-License-Identifier: Apache-2.0
"""Anonymous memory for transfers, in huge pages where the system gives them."""

from __future__ import annotations

import mmap

import numpy as np

__all__ = ["ALIGNMENT", "AnonymousMemory"]

ALIGNMENT = 64 << 10
"""What ``Runtime.register_memory`` asks of an address."""

_HUGE = 2 << 20


class AnonymousMemory:
    """Zeroed pages of this process, mapped as long as this object is there.

    A transfer of 1 MiB is one request for a drive only where its 256 small pages lie side by side: drivers
    bound the pieces of a request (254 on virtio, 127 on many NVMe drives), and shared anonymous memory is
    never in huge pages unless the administrator says so. So the mapping is private, begins at a multiple of
    2 MiB and asks for huge pages, from 2 MiB on. What that brings is in docs/io_uring.md.
    """

    def __init__(self, size: int) -> None:
        self._wants_huge = size >= _HUGE
        slack = _HUGE if self._wants_huge else ALIGNMENT
        # A driver that pins whole pages of 64 KiB rounds up: that must belong to nobody else.
        self.room = -(-size // ALIGNMENT) * ALIGNMENT
        self.map = mmap.mmap(-1, self.room + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = int(np.frombuffer(self.map, dtype=np.uint8).ctypes.data)
        self.offset = -start % slack
        self.address = start + self.offset
        self.huge_pages = self._wants_huge and self._ask_huge_pages()

    def _ask_huge_pages(self) -> bool:
        try:
            self.map.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            return False
        return True
