# SPDX-License-Identifier: Apache-2.0
"""The mover for pages in a CUDA device's memory, on ``tutti-kv-kernels`` (extra ``kernels``)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch

import tutti_kv_kernels as kernels
from tutti_engine.backend import StagingWindow
from tutti_engine.errors import DeviceError
from tutti_engine.movers.columns import column, matrix

__all__ = ["DeviceMover"]

NUM_SMS = 4
"""Multiprocessors that a copy may use: as many as fill a PCIe 5 link (docs/gpu.md of tutti-kv-kernels)."""


class DeviceMover:
    """Moves pages of the layers of a ``PagedCache`` on one device, through a window that it pins.

    Loads and stores have streams of their own, of high priority: what they do is short, and others wait for
    it.
    """

    checksum_name = kernels.CHECKSUM_NAME
    can_skip_verification = True

    def __init__(self, cache: kernels.PagedCache, *, num_sms: int = NUM_SMS) -> None:
        """Take the pages: layer ``i`` of the engine is layer ``i`` of ``cache``."""
        self._cache = cache
        self._device = cache.storages[0].device
        self._num_sms = num_sms
        self._pinned = 0

    def bind(self, window: StagingWindow) -> None:
        """Pin the staging window and prepare transfers. Raises DeviceError where it cannot be pinned."""
        with torch.cuda.device(self._device):
            code = int(torch.cuda.cudart().cudaHostRegister(window.address, window.nbytes, 0))
        if code:
            raise DeviceError(
                f"{window.nbytes} bytes of staging memory cannot be pinned (CUDA error {code}): "
                "allow the process to lock more memory, or make the staging banks smaller"
            )
        self._pinned = window.address
        memory = torch.frombuffer(window.memory, dtype=torch.uint8)
        # Now, instead of in the first load.
        kernels.measure_costs(self._device.index, True)
        self._loads, self._stores = (self._side(memory, window) for _ in range(2))

    def _side(self, memory: torch.Tensor, window: StagingWindow) -> _Side:
        transfer = kernels.DeviceTransfer(
            self._cache,
            memory,
            window.slot_bytes,
            max_segments=window.num_slots,
            num_sms=self._num_sms,
        )
        return _Side(transfer, torch.cuda.Stream(self._device, priority=-1))

    def unbind(self) -> None:
        """Unpin the window."""
        address, self._pinned = self._pinned, 0
        if address:
            with torch.cuda.device(self._device):
                torch.cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> torch.cuda.Event:
        """Return an event at the end of the calling thread's stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def hold(self, copies: Iterable[Any]) -> None:
        """Have the calling thread's stream wait for copies."""
        stream = torch.cuda.current_stream(self._device)
        for copy in copies:
            stream.wait_event(copy.done)

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """Copy pages to slots; see ``Mover``."""
        return self.start_gather(self.mark(), layers, block_ids, slots).wait()

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Verify slots and copy them to pages; see ``Mover``."""
        return self.scatter_after(self.mark(), layers, slots, block_ids, checksums)

    def start_gather(
        self,
        mark: torch.cuda.Event,
        layers: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        slots: Sequence[int],
    ) -> _Gather:
        """Start to copy pages to slots; see ``BackgroundMover``."""
        side = self._stores
        sums = torch.empty(len(slots), dtype=torch.int64, pin_memory=True)
        status = torch.empty(len(slots), dtype=torch.int32, pin_memory=True)
        with torch.cuda.stream(side.stream):
            side.stream.wait_event(mark)
            side.transfer.gather(
                matrix(block_ids),
                column(slots),
                layers=_layer_column(layers, len(block_ids)),
                checksums=sums,
                status=status,
            )
            return _Gather(side.stream.record_event(torch.cuda.Event(blocking=True)), sums, status)

    def scatter_after(
        self,
        mark: torch.cuda.Event,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Copy slots to pages and verify them on the way; see ``BackgroundMover``."""
        side = self._loads
        status = torch.empty(len(slots), dtype=torch.int32, pin_memory=True)
        with torch.cuda.stream(side.stream):
            side.stream.wait_event(mark)
            side.transfer.scatter(
                matrix(block_ids),
                column(slots),
                layers=_layer_column(layers, len(block_ids)),
                checksums=None
                if checksums is None
                else column(checksums).to(self._device, non_blocking=True),
                status=status,
                verify=kernels.Verify.NONE if checksums is None else kernels.Verify.FUSED,
            )
            done = side.stream.record_event(torch.cuda.Event(blocking=True))
        done.synchronize()
        return (status == int(kernels.ScatterStatus.OK)).tolist()  # type: ignore[no-any-return]


class _Side:
    """What loads or stores use."""

    def __init__(self, transfer: kernels.DeviceTransfer, stream: torch.cuda.Stream) -> None:
        self.transfer = transfer
        self.stream = stream


class _Gather:
    """A gather under way."""

    def __init__(self, done: torch.cuda.Event, sums: torch.Tensor, status: torch.Tensor) -> None:
        self.done = done
        self._sums = sums
        self._status = status

    def wait(self) -> Sequence[int]:
        """Wait for it and return the checksums. Raises ValueError for a block out of range."""
        self.done.synchronize()
        wrong = int((self._status != int(kernels.ScatterStatus.OK)).sum())
        if wrong:
            raise ValueError(f"{wrong} of {len(self._status)} segments have a block out of range")
        return array("Q", ctypes.string_at(self._sums.data_ptr(), 8 * len(self._sums)))


def _layer_column(layers: Sequence[int], rows: int) -> torch.Tensor:
    return torch.tensor(layers, dtype=torch.int64).repeat_interleave(rows)
