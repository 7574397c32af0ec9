# SPDX-License-Identifier: Apache-2.0
"""What loads and stores of one rank have in common."""

from __future__ import annotations

from dataclasses import dataclass

from tutti_engine.backend import StorageBackend
from tutti_engine.counters import Counters
from tutti_engine.execution.ring_window import SlotBank
from tutti_engine.execution.wave_keeper import WaveKeeper
from tutti_engine.execution.waves import Wait
from tutti_engine.mover import BackgroundMover, Mover

__all__ = ["Pipeline", "Shared"]


@dataclass(frozen=True, slots=True)
class Shared:
    """What both pipelines of a rank use.

    Attributes:
        keeper: looks after waves that nobody waits for any more.
        backend: where segments live.
        mover: how pages are reached.
        counters: the executor's.
        wait_for_room: waits for a full backend, until ``time.monotonic()`` reaches its argument at most.
        segment_bytes: bytes of one segment.
        io_timeout: seconds after which I/O counts as failed.
    """

    keeper: WaveKeeper
    backend: StorageBackend
    mover: Mover
    counters: Counters
    wait_for_room: Wait
    segment_bytes: int
    io_timeout: float


class Pipeline:
    """Segments on their way between a bank of staging slots and storage, in waves."""

    def __init__(self, bank: SlotBank, shared: Shared) -> None:
        self._bank = bank
        self._keeper = shared.keeper
        self._backend = shared.backend
        self._mover = shared.mover
        # The mover again where the server's pages are a device's.
        self._background = shared.mover if isinstance(shared.mover, BackgroundMover) else None
        self._counters = shared.counters
        self._wait_for_room = shared.wait_for_room
        self._segment_bytes = shared.segment_bytes
        self._io_timeout = shared.io_timeout
        # When I/O last ran into its timeout. What was asked for before then is not tried.
        self._hung_at = float("-inf")
