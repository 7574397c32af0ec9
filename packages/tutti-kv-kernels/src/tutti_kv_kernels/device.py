# SPDX-License-Identifier: Apache-2.0
"""Transfers between the paged cache of a CUDA device and a window in its memory or in pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from typing import TypeAlias

import torch

from tutti_kv_kernels.cache import PagedCache
from tutti_kv_kernels.costs import Decision, Mover, TransferCosts, decide, fastest_us, fit_costs
from tutti_kv_kernels.plane import Plane

__all__ = ["DeviceTransfer", "Verify", "has_cuda_kernels", "measure_costs"]

_OPS = torch.ops.tutti_kv_kernels
_WORKSPACE_WORDS = 3

_ASKED_FOR = Decision(Mover.KERNEL, "asked for")
_IDS_ON_DEVICE = Decision(Mover.KERNEL, "the ids are known on the device only")

MaybeTensor: TypeAlias = torch.Tensor | None


class Verify(Enum):
    """When a scatter on a device compares checksums."""

    NONE = 0
    """Not at all."""
    FUSED = 1
    """While the bytes are copied: a segment that does not match *has been written* and is reported."""
    BEFORE = 2
    """In a pass of its own first: a segment that does not match is not written."""


def has_cuda_kernels() -> bool:
    """Whether the installed package was built with its CUDA part."""
    return hasattr(_OPS, "device_prepare")


class DeviceTransfer:
    """Gathers and scatters between one cache and one window, prepared once and started any number of times.

    With ids on the device (or in pinned memory) a transfer is one kernel launch (two with ``Verify.BEFORE``)
    on torch's current stream of the cache's device, for any number of segments of any layers. It neither
    waits for the device nor allocates memory, so it can be captured into a CUDA graph; the tensors that it is
    given must stay alive until it is done. Ids are read when the transfer runs: one that is out of range is
    reported in ``status`` and its bytes are left alone (gather: zeros), and nothing checks that a scatter
    writes each block once.

    With ids in pageable host memory the bytes may be moved by the device's copy engines instead. What a
    kernel needs of the ids is then copied to the device, into memory from torch's allocator; ``decision``
    tells which mover the last transfer took and why. The copy engines' ids are checked before anything is
    started.

    One object may be in use by one stream at a time: the kernels of a transfer share a workspace.

    Segments are as in `PagedCache`: segment ``i`` is row ``i % rows`` of ``block_ids`` of layer
    ``layers[i]`` (layer 0 where it is left out), and slot ``slots[i]``.
    """

    def __init__(
        self,
        cache: PagedCache,
        window: torch.Tensor,
        slot_bytes: int,
        *,
        by_tokens: bool = False,
        max_segments: int = 4096,
        num_sms: int = 0,
        costs: TransferCosts | None = None,
    ) -> None:
        """Check the geometry and bring it into the form that kernels read.

        Args:
            cache: a cache whose storages are all on one CUDA device.
            window: uint8 ``[bytes]``, on that device or in pinned host memory.
            slot_bytes: bytes of one slot.
            by_tokens: transfers get ``token_ranges``, the part of each segment's tokens that is moved.
            max_segments: the most segments of a transfer with checksums.
            num_sms: use so many multiprocessors, each with one thread block that fills it; 0 uses all. A few
                suffice to keep up with storage, and leave the others to the model.
            costs: what ``Mover.AUTO`` goes by; `measure_costs` of this device when left out.

        Raises:
            ValueError: for memory elsewhere, an overlap of window and cache, and more layers or planes than
                one launch can describe (240 and 480).
        """
        if not has_cuda_kernels():
            raise ValueError("tutti_kv_kernels was built without CUDA (TUTTI_CUDA=OFF, or no nvcc was found)")
        self.cache = cache
        self.window = window
        self.slot_bytes = slot_bytes
        self.num_sms = num_sms
        self.device = cache.storages[0].device
        self.decision = _ASKED_FOR
        self._costs = costs
        self._plan = torch.empty(_OPS.device_plan_bytes(), dtype=torch.uint8)
        # Looked up once: a launch costs the host some microseconds, and looking up an operator one more.
        self._gather_op = _OPS.device_gather.default
        self._scatter_op = _OPS.device_scatter.default
        storages = list(cache.storages)
        _call(_OPS.device_prepare, storages, cache.planes, window, slot_bytes, by_tokens, self._plan)
        self._resident = self._plan.to(self.device) if _OPS.device_needs_resident(self._plan) else None
        self._block_bytes = max(map(cache.block_bytes, range(len(cache.layers))))
        self._runs_per_block: int = _OPS.device_runs_per_block(self._plan)
        self._workspace = torch.zeros(max_segments * _WORKSPACE_WORDS, dtype=torch.int64, device=self.device)

    def gather(
        self,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        *,
        checksums: MaybeTensor = None,
        status: MaybeTensor = None,
        layers: MaybeTensor = None,
        token_ranges: MaybeTensor = None,
        missing_blocks: bool = False,
        mover: Mover = Mover.AUTO,
    ) -> None:
        """Pack each segment into its slot and fill the slot's rest with zeros.

        Args:
            block_ids: int64 ``[n / k, blocks]``. This, ``slots`` and ``layers`` are all on the device or in
                pinned memory, or all in pageable memory.
            slots: int64 ``[n]``, no slot twice.
            checksums: int64 ``[n]`` on the device or pinned, to be filled with those of the packed bytes;
                none are taken without it. With copy engines a small kernel takes them from the pages.
            status: int32 ``[n]`` likewise, to be filled with `ScatterStatus` ``OK`` or ``OUT_OF_RANGE``.
            layers: int64 ``[n]``.
            token_ranges: int64 ``[n, 2]``, first token and tokens; the others are packed as zeros.
            missing_blocks: allow -1 in ``block_ids``, packed as zeros.
            mover: what moves the bytes.

        Raises:
            ValueError: for a tensor of another shape, dtype or place, and for copy engines where ids are not
                in pageable memory or token ranges are given. Nothing has been started then.
        """
        chosen = self._choose(mover, True, block_ids, slots, token_ranges)
        if chosen is Mover.COPY_ENGINE:
            _call(_OPS.device_copy, self._plan, block_ids, slots, layers, None, True, missing_blocks)
            if checksums is not None:
                self.checksums(block_ids, slots, checksums, layers=layers, status=status)
            elif status is not None:
                status.zero_()
            return
        places = self._on_device(block_ids, slots, layers, token_ranges)
        workspace = None if checksums is None else self._workspace
        outputs = (checksums, status, workspace, self._resident, self.num_sms)
        _call(self._gather_op, self._plan, *places, missing_blocks, *outputs)

    def scatter(
        self,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        *,
        checksums: MaybeTensor = None,
        status: MaybeTensor = None,
        read_status: MaybeTensor = None,
        layers: MaybeTensor = None,
        token_ranges: MaybeTensor = None,
        verify: Verify = Verify.BEFORE,
        mover: Mover = Mover.AUTO,
    ) -> None:
        """Unpack each slot that was read, and say in ``status`` what became of it.

        Args:
            block_ids: as in `gather`; -1 leaves a block out. No byte may be written twice.
            checksums: int64 ``[n]``, what the slots' bytes must have; needed unless ``verify`` is NONE.
            status: int32 ``[n]``, to be filled with a `ScatterStatus`; read it after an event on the stream.
                Needed unless ``verify`` is NONE. With FUSED it is the only thing that keeps bad bytes from
                being used: whoever reads the pages next must look at it first.
            read_status: int32 ``[n]``; a segment is looked at only where it is 0 when the transfer runs.
            token_ranges: as in `gather`; tokens outside are verified and left as they are.
            verify: when checksums are compared. Copy engines cannot wait for the outcome, so ``BEFORE`` is
                the kernel's; with ``FUSED`` a small kernel compares the pages after the copies.
            mover: what moves the bytes.

        Raises:
            ValueError: as `gather`.
        """
        if verify is not Verify.NONE and (checksums is None or status is None):
            raise ValueError(
                f"tutti_kv_kernels: a scatter with {verify} compares with checksums and reports in status: "
                "give both, or Verify.NONE"
            )
        allowed = verify is not Verify.BEFORE and read_status is None
        chosen = self._choose(mover, False, block_ids, slots, token_ranges, allowed=allowed)
        if chosen is Mover.COPY_ENGINE:
            _call(_OPS.device_copy, self._plan, block_ids, slots, layers, None, False, True)
            if checksums is not None and verify is not Verify.NONE:
                # The bytes of blocks that are left out are in the slots only.
                of = "pages" if int(block_ids.min()) >= 0 else "slots"
                self.checksums(
                    block_ids, slots, checksums, of=of, layers=layers, expected=True, status=status
                )
            elif status is not None:
                status.zero_()
            return
        places = self._on_device(block_ids, slots, layers, token_ranges)
        expected = None if verify is Verify.NONE else checksums
        workspace = None if verify is Verify.NONE else self._workspace
        results = (expected, status, workspace, self._resident, verify.value, self.num_sms)
        _call(self._scatter_op, self._plan, *places, read_status, *results)

    def checksums(
        self,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        checksums: torch.Tensor,
        *,
        of: str = "pages",
        layers: MaybeTensor = None,
        read_status: MaybeTensor = None,
        expected: bool = False,
        status: MaybeTensor = None,
    ) -> None:
        """Take the checksums of segments where they lie, without moving them.

        Any part of the segments of another transfer may be given, to verify a sample of them only.

        Args:
            of: "pages", or "slots" for the packed bytes in the window.
            checksums: int64 ``[n]``: filled; with ``expected`` compared, and the outcome goes to ``status``.
        """
        if of not in ("pages", "slots"):
            raise ValueError(f'tutti_kv_kernels: of must be "pages" or "slots", got {of!r}')
        places = self._on_device(block_ids, slots, layers)
        results = (checksums, status, self._workspace, self._resident)
        _call(
            _OPS.device_sum,
            self._plan,
            *places,
            read_status,
            *results,
            of == "slots",
            expected,
            self.num_sms,
        )

    def _choose(
        self,
        mover: Mover,
        gather: bool,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        token_ranges: MaybeTensor,
        *,
        allowed: bool = True,
    ) -> Mover:
        if mover is Mover.KERNEL or (mover is Mover.AUTO and block_ids.is_cuda):
            self.decision = _ASKED_FOR if mover is Mover.KERNEL else _IDS_ON_DEVICE
            return Mover.KERNEL
        why_not = None
        if block_ids.is_cuda or block_ids.is_pinned():
            why_not = _IDS_ON_DEVICE.reason
        elif token_ranges is not None:
            why_not = "a part of the tokens is moved"
        elif not allowed:
            why_not = "what is written depends on a status on the device"
        if mover is Mover.COPY_ENGINE:
            if why_not is not None:
                raise ValueError(f"tutti_kv_kernels: copy engines cannot move this transfer: {why_not}")
            self.decision = Decision(mover, "asked for")
        elif why_not is not None or torch.cuda.is_current_stream_capturing():
            self.decision = Decision(Mover.KERNEL, why_not or "a graph is captured")
        else:
            blocks = slots.numel() * block_ids.shape[-1]
            if self._costs is None:
                self._costs = measure_costs(self.device.index, not self.window.is_cuda)
            self.decision = decide(
                self._costs,
                gather=gather,
                nbytes=blocks * self._block_bytes,
                runs=blocks * self._runs_per_block,
            )
        return self.decision.mover

    def _on_device(self, block_ids: torch.Tensor, *others: MaybeTensor) -> tuple[MaybeTensor, ...]:
        """The ids where a kernel can read them."""
        if block_ids.is_cuda or block_ids.is_pinned():
            return (block_ids, *others)
        return tuple(
            None if tensor is None else tensor.to(self.device, non_blocking=True)
            for tensor in (block_ids, *others)
        )


def _call(operator: Callable[..., object], *arguments: object) -> None:
    try:
        operator(*arguments)
    except NotImplementedError as error:
        raise ValueError(
            "tutti_kv_kernels: a DeviceTransfer needs tensors on a CUDA device, or in pinned host memory "
            f"beside ones there: {error}"
        ) from error


@cache
def measure_costs(device: int, pinned: bool) -> TransferCosts:
    """Measure both movers between a device's memory and a window, pinned or on the device; takes about 0.1 s.

    The first ``Mover.AUTO`` decision calls it; a server calls it when it starts. Once a process and device.
    """
    nbytes, run_sizes = 16 << 20, (4096, 16384, 65536, 262144)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        pages = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        window = torch.zeros(nbytes, dtype=torch.uint8, device="cpu" if pinned else device, pin_memory=pinned)

        def time_us(mover: Mover, gather: bool, size: int, run: int) -> float:
            cache = PagedCache([pages], [[Plane(0, 0, run, nbytes // run, run)]])
            transfer = DeviceTransfer(cache, window, run)
            count = size // run
            # In reverse, so that no two runs can be joined.
            ids = torch.arange(count).flip(0).view(-1, 1).contiguous()
            slots = torch.arange(count)
            if mover is Mover.KERNEL:
                ids, slots = ids.to(device), slots.to(device)
            if gather:
                return fastest_us(lambda: transfer.gather(ids, slots, mover=mover))
            return fastest_us(lambda: transfer.scatter(ids, slots, verify=Verify.NONE, mover=mover))

        fitted = {
            (mover, gather): fit_costs(partial(time_us, mover, gather), nbytes, run_sizes)
            for mover in (Mover.KERNEL, Mover.COPY_ENGINE)
            for gather in (True, False)
        }
        torch.cuda.current_stream().synchronize()
    return TransferCosts(
        kernel_gather=fitted[Mover.KERNEL, True],
        kernel_scatter=fitted[Mover.KERNEL, False],
        copy_gather=fitted[Mover.COPY_ENGINE, True],
        copy_scatter=fitted[Mover.COPY_ENGINE, False],
    )
