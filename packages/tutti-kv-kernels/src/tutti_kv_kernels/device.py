# SPDX-License-Identifier: Apache-2.0
"""Transfers between the paged cache of a CUDA device and a window in its memory or in pinned host memory."""

from __future__ import annotations

from enum import Enum

import torch

from tutti_kv_kernels.cache import PagedCache

__all__ = ["DeviceTransfer", "Verify", "has_cuda_kernels"]

_OPS = torch.ops.tutti_kv_kernels
_WORKSPACE_WORDS = 3


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

    A transfer is one kernel launch (two with ``Verify.BEFORE``) on torch's current stream of the cache's
    device, for any number of segments of any layers. It neither waits for the device nor allocates memory, so
    it can be captured into a CUDA graph; the tensors that it is given must stay alive until it is done. Ids
    are read by the device when the transfer runs: one that is out of range is reported in ``status`` and its
    bytes are left alone (gather: zeros), and no check is made that a scatter writes each block once.

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

        Raises:
            ValueError: for memory elsewhere, an overlap of window and cache, and more layers or planes than
                one launch can describe (128 and 252).
        """
        if not has_cuda_kernels():
            raise ValueError("tutti_kv_kernels was built without CUDA (TUTTI_CUDA=OFF, or no nvcc was found)")
        self.cache = cache
        self.window = window
        self.slot_bytes = slot_bytes
        self.num_sms = num_sms
        self.device = cache.storages[0].device
        self._plan = torch.empty(_OPS.device_plan_bytes(), dtype=torch.uint8)
        _call(
            _OPS.device_prepare.default,
            list(cache.storages),
            cache.planes,
            window,
            slot_bytes,
            by_tokens,
            self._plan,
        )
        self._workspace = torch.zeros(max_segments * _WORKSPACE_WORDS, dtype=torch.int64, device=self.device)

    def gather(
        self,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        *,
        checksums: torch.Tensor | None = None,
        status: torch.Tensor | None = None,
        layers: torch.Tensor | None = None,
        token_ranges: torch.Tensor | None = None,
        missing_blocks: bool = False,
    ) -> None:
        """Pack each segment into its slot and fill the slot's rest with zeros.

        Args:
            block_ids: int64 ``[n / k, blocks]``; like all that follow on the device or in pinned host memory.
            slots: int64 ``[n]``, no slot twice.
            checksums: int64 ``[n]``, to be filled with those of the packed bytes; none are taken without it.
            status: int32 ``[n]``, to be filled with `ScatterStatus` ``OK`` or ``OUT_OF_RANGE``.
            layers: int64 ``[n]``.
            token_ranges: int64 ``[n, 2]``, first token and tokens; the others are packed as zeros.
            missing_blocks: allow -1 in ``block_ids``, packed as zeros.

        Raises:
            ValueError: for a tensor of another shape, dtype or place. Nothing has been started then.
        """
        _call(
            _OPS.device_gather.default,
            self._plan,
            block_ids,
            slots,
            layers,
            token_ranges,
            missing_blocks,
            checksums,
            status,
            None if checksums is None else self._workspace,
            self.num_sms,
        )

    def scatter(
        self,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        *,
        checksums: torch.Tensor | None = None,
        status: torch.Tensor | None = None,
        read_status: torch.Tensor | None = None,
        layers: torch.Tensor | None = None,
        token_ranges: torch.Tensor | None = None,
        verify: Verify = Verify.BEFORE,
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

        Raises:
            ValueError: as `gather`.
        """
        _call(
            _OPS.device_scatter.default,
            self._plan,
            block_ids,
            slots,
            layers,
            token_ranges,
            read_status,
            None if verify is Verify.NONE else checksums,
            status,
            None if verify is Verify.NONE else self._workspace,
            verify.value,
            self.num_sms,
        )

    def checksums(
        self,
        block_ids: torch.Tensor,
        slots: torch.Tensor,
        checksums: torch.Tensor,
        *,
        of: str = "pages",
        layers: torch.Tensor | None = None,
        read_status: torch.Tensor | None = None,
        expected: bool = False,
        status: torch.Tensor | None = None,
    ) -> None:
        """Take the checksums of segments where they lie, without moving them.

        Args:
            of: "pages", or "slots" for the packed bytes in the window.
            checksums: int64 ``[n]``: filled; with ``expected`` compared, and the outcome goes to ``status``.
        """
        if of not in ("pages", "slots"):
            raise ValueError(f'tutti_kv_kernels: of must be "pages" or "slots", got {of!r}')
        _call(
            _OPS.device_sum.default,
            self._plan,
            block_ids,
            slots,
            layers,
            read_status,
            checksums,
            status,
            self._workspace,
            of == "slots",
            expected,
            self.num_sms,
        )


def _call(operator: torch._ops.OpOverload, *arguments: object) -> None:
    try:
        operator(*arguments)
    except NotImplementedError as error:
        raise ValueError(
            "tutti_kv_kernels: a DeviceTransfer needs tensors on a CUDA device, or in pinned host memory "
            f"beside ones there: {error}"
        ) from error
