# SPDX-License-Identifier: Apache-2.0
"""Gather, scatter and checksum: typed calls of the operators in ``torch.ops.tutti_kv_kernels``.

Every call checks all its arguments before it writes anything, and raises ValueError with the argument's name,
value and rule. The GIL is released while bytes move. Calls on different slots and pages may run concurrently.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import torch

from tutti_kv_kernels._library import load
from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layout import PagedLayout
from tutti_kv_kernels.plane import planes_table

__all__ = [
    "CHECKSUM_NAME",
    "ScatterStatus",
    "check_planes",
    "checksum",
    "gather",
    "gather_into",
    "gather_op",
    "run",
    "scatter",
    "scatter_op",
]


class ScatterStatus(IntEnum):
    """What became of a segment. Only ``OK`` segments were written by a scatter.

    A gather knows ``OK`` and ``OUT_OF_RANGE``: what it packed for such a segment is not the server's.
    """

    OK = 0
    MISMATCH = 1
    """The slot's bytes are not those that the checksum was taken of."""
    NOT_READ = 2
    """``read_status`` said that the slot was not filled."""
    OUT_OF_RANGE = 3
    """An id names no block; only where ids are checked on the device, elsewhere it is an error."""


CHECKSUM_NAME: Final = "tutti64-1"
"""Names the checksum's formula; store it beside checksums that outlive the process."""

load()
gather_op = torch.ops.tutti_kv_kernels.gather.default
scatter_op = torch.ops.tutti_kv_kernels.scatter.default
_check_planes = torch.ops.tutti_kv_kernels.check_planes.default
_checksum = torch.ops.tutti_kv_kernels.checksum.default


# What a tracer runs: the operators write into their arguments and return nothing.
@torch.library.register_fake("tutti_kv_kernels::gather")
def _trace_gather(storages: list[torch.Tensor], planes: torch.Tensor, *arguments: object) -> None:
    _check_devices(*storages, *arguments)


@torch.library.register_fake("tutti_kv_kernels::scatter")
def _trace_scatter(
    window: torch.Tensor,
    slots: torch.Tensor,
    slot_bytes: int,
    storages: list[torch.Tensor],
    planes: torch.Tensor,
    *arguments: object,
) -> None:
    _check_devices(window, slots, *storages, *arguments)


@torch.library.register_fake("tutti_kv_kernels::check_planes")
def _trace_check_planes(planes: torch.Tensor, storage_bytes: list[int]) -> None:
    """Has no result: the values of a traced tensor cannot be checked."""


@torch.library.register_fake("tutti_kv_kernels::checksum")
def _trace_checksum(data: torch.Tensor, result: torch.Tensor) -> None:
    _check_devices(data, result)


def _check_devices(*arguments: object) -> None:
    devices = {argument.device for argument in arguments if isinstance(argument, torch.Tensor)}
    if len(devices) > 1:
        raise ValueError(f"all tensors must be on one device, got {', '.join(sorted(map(str, devices)))}")


def run(operator: torch._ops.OpOverload, *arguments: object) -> None:
    """Call an operator; where there is no kernel for the tensors' device, say so."""
    try:
        operator(*arguments)
    except NotImplementedError as error:
        flat = [a for b in arguments for a in (b if isinstance(b, list) else [b])]
        kinds = {f"{a.device} ({a.layout})" for a in flat if isinstance(a, torch.Tensor)}
        raise ValueError(
            f"{operator} has kernels for dense CPU tensors only, got tensors on {', '.join(sorted(kinds))}"
        ) from error


def check_planes(planes: torch.Tensor, storages: Sequence[torch.Tensor]) -> None:
    """Check a planes table against its storages, as the operators do at every call.

    Raises:
        LayoutError: naming the row, its value and its rule.
    """
    try:
        _check_planes(planes, [storage.numel() for storage in storages])
    except ValueError as error:
        raise LayoutError(str(error)) from None


def gather(
    pages: torch.Tensor,
    layout: PagedLayout,
    block_ids: torch.Tensor,
    window: torch.Tensor,
    slots: torch.Tensor,
    slot_bytes: int,
    *,
    num_threads: int = 1,
) -> torch.Tensor:
    """Pack pages into slots; returns the segments' checksums, int64 of shape ``[n]`` (two's complement).

    See `gather_into`.
    """
    checksums = torch.empty(slots.shape, dtype=torch.int64, device=slots.device)
    gather_into(pages, layout, block_ids, window, slots, slot_bytes, checksums, num_threads=num_threads)
    return checksums


def gather_into(
    pages: torch.Tensor,
    layout: PagedLayout,
    block_ids: torch.Tensor,
    window: torch.Tensor,
    slots: torch.Tensor,
    slot_bytes: int,
    checksums: torch.Tensor,
    *,
    num_threads: int = 1,
) -> None:
    """Pack the pages ``block_ids[i, :]``, one after the other, into slot ``slots[i]``; zero the slot's rest.

    Args:
        pages: uint8 ``[storage bytes]``, from `storage_bytes`.
        layout: where the pages are in it.
        block_ids: int64 ``[n, blocks]``, contiguous, each ``0 <= id < layout.num_blocks``.
        window: uint8 ``[window bytes]``; slot ``s`` is bytes ``s * slot_bytes`` to ``(s + 1) * slot_bytes``.
        slots: int64 ``[n]``, no slot twice.
        slot_bytes: at least ``blocks * layout.page_bytes``.
        checksums: int64 ``[n]``, receives the checksum of each segment's ``blocks * page_bytes`` bytes.
        num_threads: threads to use, at most one a segment.

    Raises:
        ValueError: for any argument that breaks a rule above, and for a window that overlaps ``pages``.
            Nothing has been written then.
    """
    run(
        gather_op,
        [pages],
        planes_table([[layout.plane]]),
        None,
        block_ids,
        1,
        None,
        False,
        window,
        slots,
        slot_bytes,
        checksums,
        None,
        num_threads,
    )


def scatter(
    window: torch.Tensor,
    slots: torch.Tensor,
    slot_bytes: int,
    pages: torch.Tensor,
    layout: PagedLayout,
    block_ids: torch.Tensor,
    checksums: torch.Tensor,
    *,
    num_threads: int = 1,
) -> torch.Tensor:
    """Verify each slot, then unpack it into pages; returns bool ``[n]``: True where the checksum matched.

    A segment whose checksum does not match writes nothing. The other segments are not affected by it.

    Args:
        window, slots, slot_bytes, pages, layout: as in `gather_into`, except that slots may repeat.
        block_ids: int64 ``[n, blocks]``; -1 leaves a block out (its bytes are verified all the same); no
            other id may appear twice.
        checksums: int64 ``[n]``, what `gather` returned for these segments.
        num_threads: threads to use, at most one a segment.

    Raises:
        ValueError: as `gather_into`. Nothing has been written then.
    """
    status = torch.empty(slots.shape, dtype=torch.int32, device=slots.device)
    run(
        scatter_op,
        window,
        slots,
        slot_bytes,
        [pages],
        planes_table([[layout.plane]]),
        None,
        block_ids,
        1,
        None,
        checksums,
        None,
        status,
        num_threads,
    )
    return status == 0


def checksum(data: torch.Tensor) -> int:
    """Checksum of a contiguous 1-D uint8 tensor, ``0 <= value < 2**64``.

    Raises:
        ValueError: for any other tensor.
    """
    result = torch.empty(1, dtype=torch.int64, device=data.device)
    run(_checksum, data, result)
    return int(result.item()) % 2**64
