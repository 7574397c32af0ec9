# SPDX-License-Identifier: Apache-2.0
"""Small pinned memory for what a device reads and writes beside a transfer.

It is made ahead: CUDA may wait for all of a device's work before it pins memory.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["PinnedPool", "PinnedRoom"]

ROOM_BYTES = 1 << 20
ROOMS = 8
"""Rooms that are made at the start: as many as there are transfers under way at a time, or nearly."""


class PinnedRoom:
    """Memory for one transfer at a time, handed out from front to back."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(self._bytes.numel())

    def clear(self) -> None:
        """Start at the front again."""
        self._used = 0

    def take(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Return ``count`` numbers, not initialised. Raises ValueError where there is not enough left."""
        nbytes = count * dtype.itemsize
        start, end = self._used, self._used + nbytes
        if end > self.nbytes:
            raise ValueError(f"{nbytes} bytes do not fit a room of {self.nbytes} with {start} taken")
        self._used = -(-end // 16) * 16
        return self._bytes[start:end].view(dtype)


class PinnedPool:
    """Rooms that are used again and again, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = [PinnedRoom(ROOM_BYTES) for _ in range(ROOMS)]

    def get(self, nbytes: int) -> PinnedRoom:
        """Return a room of at least so many bytes; a new one if no other is free."""
        with self._lock:
            for place, room in enumerate(self._free):
                if room.nbytes >= nbytes:
                    del self._free[place]
                    room.clear()
                    return room
        return PinnedRoom(max(nbytes, ROOM_BYTES))

    def put(self, room: PinnedRoom) -> None:
        """Take a room back that no device uses any more."""
        with self._lock:
            self._free.append(room)
