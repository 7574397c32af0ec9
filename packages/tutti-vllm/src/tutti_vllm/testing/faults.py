# SPDX-License-Identifier: Apache-2.0
"""A backend that fails in every way there is, at random: the engine's own test doubles, mixed."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from tutti_engine.backend import SegmentBatch, SegmentHandle, StagingWindow, StorageBackend
from tutti_engine.plan import ChunkId
from tutti_engine.testing.fakes import (
    DelayedBackend,
    FailingBackend,
    FixedHandle,
    HangingBackend,
    PartialBackend,
    Predicate,
    ShortBackend,
    WrappedBackend,
)

__all__ = ["FAULT_MIXES", "CorruptingBackend", "FaultMix", "FaultyBackend"]

_SOME = 0.3
"""Share of a batch's segments that a fault concerns, where it need not be all of them."""

_FOREVER = 60.0


@dataclass(frozen=True, slots=True)
class FaultMix:
    """For each kind of fault the chance that a batch meets it; at most one does.

    Attributes:
        error: some segments fail with ``EIO``.
        full: some segments fail with ``ENOSPC``.
        short: some segments are moved by half and fail.
        partial: only the first segments are accepted.
        refused: the call raises.
        corrupt: a bit differs and nothing says so, on its way to storage or back.
        late: the batch begins late, beside others that began after it.
        hang: the batch does not end within the deadline of the I/O.
    """

    error: float = 0.0
    full: float = 0.0
    short: float = 0.0
    partial: float = 0.0
    refused: float = 0.0
    corrupt: float = 0.0
    late: float = 0.0
    hang: float = 0.0

    def pick(self, chance: random.Random) -> str | None:
        """Return the fault of one batch, None for none."""
        dice = chance.random()
        for each in fields(self):
            dice -= getattr(self, each.name)
            if dice < 0:
                return each.name
        return None


FAULT_MIXES = {
    "none": FaultMix(),
    "slow": FaultMix(late=0.8, partial=0.1),
    "failing": FaultMix(error=0.1, full=0.05, short=0.08, partial=0.1, refused=0.05),
    "corrupt": FaultMix(corrupt=0.2),
    "hanging": FaultMix(hang=0.08, late=0.2),
    "all": FaultMix(
        error=0.04, full=0.03, short=0.04, partial=0.08, refused=0.03, corrupt=0.04, late=0.2, hang=0.02
    ),
}


class CorruptingBackend(WrappedBackend):
    """Flips a bit in some segments, read or written, and reports success.

    Args:
        inner: the backend that moves the bytes.
        when: which segments.
    """

    def __init__(self, inner: StorageBackend, when: Predicate) -> None:
        super().__init__(inner)
        self._when = when

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        self.check(batch)
        columns = zip(batch.chunk_ids, batch.layers, batch.slots)
        slots = [segment[2] for segment in columns if self._when(direction, *segment)]
        if direction == "write":
            self._flip(slots)
        handle = self._start_inner(direction, batch)
        handle.wait(time.monotonic() + _FOREVER)
        # After a write: the slot is its owner's, who may write it again.
        self._flip(slots)
        return FixedHandle(None, (), handle.status())

    def _flip(self, slots: list[int]) -> None:
        for slot in slots:
            memory = self._slot(slot)
            memory[len(memory) // 3] ^= 0x10


class _Shared(WrappedBackend):
    """The one backend behind all kinds of faults, which it outlives."""

    def shutdown(self) -> None:
        """Do nothing: several call it."""


class FaultyBackend(WrappedBackend):
    """Gives each batch to one of the test doubles, or to the real backend.

    Args:
        inner: the real backend.
        mix: returns the chances of now.
        seed: of the choice.
        hang_seconds: how long a batch hangs.
    """

    def __init__(
        self, inner: StorageBackend, mix: Callable[[], FaultMix], *, seed: int, hang_seconds: float
    ) -> None:
        super().__init__(inner)
        self._mix = mix
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._hang_seconds = hang_seconds
        shared = _Shared(inner)
        self._hanging = HangingBackend(shared)
        self._late = DelayedBackend(shared, polls=2)
        self._kinds: dict[str | None, WrappedBackend] = {
            None: shared,
            "error": FailingBackend(shared, errno.EIO, self._is_concerned),
            "full": FailingBackend(shared, errno.ENOSPC, self._is_concerned),
            "short": ShortBackend(shared, self._is_concerned),
            "partial": PartialBackend(shared, 1),
            "corrupt": CorruptingBackend(shared, self._is_concerned),
            "late": self._late,
            "hang": self._hanging,
        }

    def bind_staging(self, window: StagingWindow) -> None:
        """Bind the real backend, and let the others see the window."""
        super().bind_staging(window)
        for backend in self._kinds.values():
            backend.window = window

    def shutdown(self) -> None:
        """End what is late or hangs, then the real backend."""
        self._hanging.heal()
        self._hanging.shutdown()
        self._late.shutdown()
        super().shutdown()

    def _start(self, direction: str, batch: SegmentBatch) -> SegmentHandle:
        with self._lock:
            kind = self._mix().pick(self._chance)
        if kind == "refused":
            raise RuntimeError("injected: the batch is refused")
        backend = self._kinds[kind]
        start = backend.write_segments if direction == "write" else backend.read_segments
        handle = start(batch)
        if kind == "hang":
            timer = threading.Timer(self._hang_seconds, self._hanging.release)
            timer.daemon = True
            timer.start()
        return handle

    def _is_concerned(self, direction: str, chunk_id: ChunkId, layer: int, slot: int) -> bool:
        with self._lock:
            return self._chance.random() < _SOME
