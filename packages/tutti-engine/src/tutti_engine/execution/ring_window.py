# SPDX-License-Identifier: Apache-2.0
"""The staging ring window: one block of host memory, cut into segment-sized slots.

Loads and stores own separate banks of slots, so that waiting for room to store can never hold up a load.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
from collections.abc import Iterable

from tutti_engine.errors import GeometryError
from tutti_engine.geometry import align_up

__all__ = ["WINDOW_ALIGNMENT", "RingWindow", "SlotBank"]

WINDOW_ALIGNMENT = 64 * 1024
"""Base alignment that every data path accepts for registered memory (DESIGN 4.1)."""

HUGE_PAGE = 2 * 1024 * 1024


class SlotBank:
    """Slots that are taken and given back in runs.

    A run stays together so that neighbouring segments can travel as one large transfer. The lowest free run
    is taken: slots that were just used are still in the CPU's caches, and no more memory is touched than the
    traffic needs.
    """

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self._busy = bytearray(count)
        self._taken = 0
        self._changed = threading.Condition()

    @property
    def busy(self) -> int:
        """Number of slots that are taken now."""
        return self._taken

    def acquire(self, count: int, deadline: float) -> int | None:
        """Take ``count`` neighbouring slots; wait for them until ``time.monotonic()`` reaches ``deadline``.

        Returns the first slot's number, or None if the deadline passed.
        """
        if not 1 <= count <= self.count:
            raise GeometryError(f"a run of {count} slots does not fit a bank of {self.count}")
        with self._changed:
            while (start := self._find(count)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    return None
            self._busy[start : start + count] = b"\x01" * count
            self._taken += count
            return self.first + start

    def acquire_free(self, count: int, runs: int) -> list[int]:
        """Take up to ``runs`` runs of ``count`` neighbouring slots, as many as are free now."""
        if not 1 <= count <= self.count:
            raise GeometryError(f"a run of {count} slots does not fit a bank of {self.count}")
        taken: list[int] = []
        with self._changed:
            start = self._busy.find(bytes(count * runs))
            if start >= 0:
                self._busy[start : start + count * runs] = b"\x01" * (count * runs)
                self._taken += count * runs
                return list(range(self.first + start, self.first + start + count * runs, count))
            start = 0
            while len(taken) < runs and (start := self._busy.find(bytes(count), start)) >= 0:
                self._busy[start : start + count] = b"\x01" * count
                self._taken += count
                taken.append(self.first + start)
                start += count
        return taken

    def release(self, slot: int, count: int) -> None:
        """Give a run back. Call it only when neither I/O nor a copy can touch the run any more."""
        self.release_all((slot,), count)

    def release_all(self, slots: Iterable[int], count: int) -> None:
        """Give runs back, of ``count`` slots each, all at once: who waits for room finds all of it."""
        with self._changed:
            for slot in slots:
                start = slot - self.first
                if start < 0 or self._busy[start : start + count] != b"\x01" * count:
                    raise GeometryError(
                        f"slots {slot}..{slot + count - 1} are released but were not all taken"
                    )
                self._busy[start : start + count] = bytes(count)
                self._taken -= count
            self._changed.notify_all()

    def _find(self, count: int) -> int | None:
        start = self._busy.find(bytes(count))
        return None if start < 0 else start


class RingWindow:
    """Page-aligned anonymous memory with a bank for loads and a bank for stores.

    Unless a data path pins it, physical memory is taken only by slots that have been used.
    """

    def __init__(self, slot_bytes: int, load_slots: int, store_slots: int) -> None:
        self.slot_bytes = slot_bytes
        self.num_slots = load_slots + store_slots
        self.nbytes = align_up(self.num_slots * slot_bytes, WINDOW_ALIGNMENT)
        self.loads = SlotBank(0, load_slots)
        self.stores = SlotBank(load_slots, store_slots)
        # Private and in huge pages: a drive takes a segment as one request only where its pages lie side by
        # side, and shared anonymous memory is never in huge pages unless the administrator says so.
        alignment = HUGE_PAGE if self.nbytes >= HUGE_PAGE else WINDOW_ALIGNMENT
        self._mapping = mmap.mmap(-1, self.nbytes + alignment, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if alignment == HUGE_PAGE:
            with contextlib.suppress(OSError):  # a kernel without them
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.address = align_up(start, alignment)
        offset = self.address - start
        self.memory = memoryview(self._mapping)[offset : offset + self.nbytes]

    def slot(self, number: int) -> memoryview:
        """Return one slot's bytes."""
        if not 0 <= number < self.num_slots:
            raise GeometryError(f"slot {number} is outside of 0..{self.num_slots - 1}")
        return self.memory[number * self.slot_bytes : (number + 1) * self.slot_bytes]

    def give_back(self) -> None:
        """Return the physical memory to the system; the bytes read as zeros from now on.

        For an owner that is done: objects of a server that was shut down may live on in reference cycles, and
        the window would with them. Pages that a data path still pins stay its own until it lets them go.
        """
        self._mapping.madvise(mmap.MADV_DONTNEED)
