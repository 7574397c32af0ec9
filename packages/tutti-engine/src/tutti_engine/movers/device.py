# SPDX-License-Identifier: Apache-2.0
"""The mover for pages in a CUDA device's memory, on ``tutti-kv-kernels`` (extra ``kernels``)."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tutti_kv_kernels as kernels
from tutti_engine.backend import StagingWindow
from tutti_engine.errors import DeviceError
from tutti_engine.movers.columns import column, matrix
from tutti_engine.movers.pinned import PinnedPool, PinnedRoom
from tutti_kv_kernels.costs import Decision, decide

__all__ = ["DeviceMover"]

logger = logging.getLogger(__name__)

NUM_SMS = 4
"""Multiprocessors that a copy may use: as many as fill a PCIe 5 link (docs/gpu.md of tutti-kv-kernels)."""


class DeviceMover:
    """Moves pages of the layers of a ``PagedCache`` on one device, through a window that it pins.

    Loads and stores have streams of their own, of high priority: what they do is short.
    """

    checksum_name = kernels.CHECKSUM_NAME
    can_skip_verification = True

    def __init__(
        self,
        cache: kernels.PagedCache,
        *,
        num_sms: int = NUM_SMS,
        mover: kernels.Mover = kernels.Mover.AUTO,
    ) -> None:
        """Take the pages: layer ``i`` of the engine is layer ``i`` of ``cache``.

        Args:
            cache: the pages.
            num_sms: multiprocessors that a kernel may use.
            mover: what moves the bytes; by default what is faster by measurement.
        """
        self._cache = cache
        self._device = cache.storages[0].device
        self._num_sms = num_sms
        self._mover = mover
        self._pinned = 0

    def bind(self, window: StagingWindow) -> None:
        """Pin the staging window and prepare transfers.

        Raises DeviceError where it cannot be pinned. Whatever it raises, nothing stays pinned.
        """
        self.unbind()
        with torch.cuda.device(self._device):
            code = int(torch.cuda.cudart().cudaHostRegister(window.address, window.nbytes, 0))
        if code:
            raise DeviceError(
                f"{window.nbytes} bytes of staging memory cannot be pinned (CUDA error {code}): "
                "allow the process to lock more memory, or make the staging banks smaller"
            )
        self._pinned = window.address
        try:
            memory = torch.frombuffer(window.memory, dtype=torch.uint8)
            self._loads, self._stores = (
                _Side(self._cache, memory, window, self._num_sms, self._mover, gather=gather)
                for gather in (False, True)
            )
        except BaseException:
            # The window goes with its executor, which comes to nothing.
            self.unbind()
            raise

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
        return self.start_scatter(self.mark(), layers, slots, block_ids, checksums).wait()

    def start_gather(
        self,
        mark: torch.cuda.Event,
        layers: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        slots: Sequence[int],
    ) -> _Gather:
        """Start to copy pages to slots; see ``BackgroundMover``."""
        side = self._stores
        with side.behind(mark):
            job = side.describe(layers, block_ids, slots)
            side.transfer.gather(
                job.blocks,
                job.slots,
                layers=job.layers,
                checksums=job.sums,
                status=job.status,
                mover=side.mover,
            )
            return _Gather(side, job)

    def start_scatter(
        self,
        mark: torch.cuda.Event,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> _Scatter:
        """Start to copy slots to pages and to verify them on the way; see ``BackgroundMover``."""
        side = self._loads
        with side.behind(mark):
            job = side.describe(layers, block_ids, slots)
            if checksums is not None:
                job.sums.copy_(column(checksums))
            side.transfer.scatter(
                job.blocks,
                job.slots,
                layers=job.layers,
                checksums=None if checksums is None else job.sums,
                status=job.status,
                verify=kernels.Verify.NONE if checksums is None else kernels.Verify.FUSED,
                mover=side.mover,
            )
            return _Scatter(side, job)


@dataclass(frozen=True, slots=True)
class _Job:
    """What a transfer is about, and the pinned memory that holds it."""

    room: PinnedRoom
    blocks: torch.Tensor
    slots: torch.Tensor
    layers: torch.Tensor
    sums: torch.Tensor
    status: torch.Tensor


class _Side:
    """What loads or stores use: a prepared transfer, and a stream of high priority."""

    def __init__(
        self,
        cache: kernels.PagedCache,
        memory: torch.Tensor,
        window: StagingWindow,
        num_sms: int,
        mover: kernels.Mover,
        *,
        gather: bool,
    ) -> None:
        device = cache.storages[0].device
        self.transfer = kernels.DeviceTransfer(
            cache, memory, window.slot_bytes, max_segments=window.num_slots, num_sms=num_sms
        )
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.rooms = PinnedPool()
        # Chosen here, once, for runs of the server's pages: a kernel wants its ids in pinned memory, the copy
        # engines want them in pageable memory.
        choice = Decision(mover, "asked for")
        if mover is kernels.Mover.AUTO:
            run = max(map(cache.block_bytes, range(len(cache.layers))))
            costs = kernels.measure_costs(device.index, True)
            choice = decide(costs, gather=gather, nbytes=64 * run, runs=64)
        self.mover = choice.mover
        logger.info(
            "Tutti: %s on %s go by %s (%s).",
            "stores" if gather else "loads",
            device,
            self.mover.value,
            choice.reason,
        )

    @contextlib.contextmanager
    def behind(self, mark: torch.cuda.Event) -> Iterator[None]:
        """Work on this side's stream, behind the work up to ``mark``; what fails leaves nothing under way."""
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(mark)
            try:
                yield
            except BaseException:
                # Nobody has a copy to wait for: its slots and pages are given back at once.
                self.stream.synchronize()
                raise

    def describe(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> _Job:
        """Write blocks, slots and layers down where the mover reads them."""
        columns = (
            matrix(block_ids),
            column(slots),
            torch.tensor(layers, dtype=torch.int64).repeat_interleave(len(block_ids)),
        )
        count = len(slots)
        room = self.rooms.get(8 * sum(each.numel() for each in columns) + 12 * count + 80)
        sums, status = room.take(torch.int64, count), room.take(torch.int32, count)
        if self.mover is kernels.Mover.KERNEL:
            columns = tuple(
                room.take(torch.int64, each.numel()).view(each.shape).copy_(each) for each in columns
            )
        return _Job(room, *columns, sums, status)

    def end(self) -> torch.cuda.Event:
        """Return an event at the stream's end, for threads that sleep until then."""
        return self.stream.record_event(torch.cuda.Event(blocking=True))


class _Copy:
    """A transfer under way."""

    def __init__(self, side: _Side, job: _Job) -> None:
        self.done = side.end()
        self._rooms = side.rooms
        self._job = job

    def _finish(self) -> list[int]:
        """Wait for it; return the segments' statuses."""
        self.done.synchronize()
        return self._job.status.tolist()  # type: ignore[no-any-return]


class _Gather(_Copy):
    """Pages on their way to slots."""

    def wait(self) -> Sequence[int]:
        """Wait for it and return the checksums. Raises ValueError for a block out of range."""
        wrong = sum(map(bool, self._finish()))
        sums = array("Q", ctypes.string_at(self._job.sums.data_ptr(), 8 * len(self._job.sums)))
        self._rooms.put(self._job.room)
        if wrong:
            raise ValueError(f"{wrong} of {len(sums)} segments have a block out of range")
        return sums


class _Scatter(_Copy):
    """Slots on their way to pages."""

    def wait(self) -> Sequence[bool]:
        """Wait for it and return which segments matched."""
        found = self._finish()
        self._rooms.put(self._job.room)
        return [True] * len(found) if not any(found) else [status == 0 for status in found]
