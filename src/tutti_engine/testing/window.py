# SPDX-License-Identifier: Apache-2.0
"""A staging window without an owner's bookkeeping."""

from __future__ import annotations

import ctypes
import mmap

from tutti_engine.geometry import align_up

__all__ = ["POISON", "HostWindow"]

POISON = 0xA5
"""Byte that stands for "nobody may read this"."""

ALIGNMENT = 64 * 1024


class HostWindow:
    """Anonymous memory that satisfies ``StagingWindow``; every byte is ``POISON`` at first."""

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.nbytes = align_up(num_slots * slot_bytes, ALIGNMENT)
        block = mmap.mmap(-1, self.nbytes + ALIGNMENT)
        base = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self.address = align_up(base, ALIGNMENT)
        start = self.address - base
        self.memory = memoryview(block)[start : start + self.nbytes]
        self.memory[:] = bytes([POISON]) * self.nbytes

    def slot(self, number: int) -> memoryview:
        """Return the bytes of one slot."""
        return self.memory[number * self.slot_bytes : (number + 1) * self.slot_bytes]
