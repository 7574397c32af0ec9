# SPDX-License-Identifier: Apache-2.0
"""Where the pages of one layer's KV cache lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.plane import Plane

__all__ = ["PagedLayout"]

# Physical orders in which one (layer, block) page is a single run, with the order of H and N inside it.
_ACCEPTED = {
    "LBHNC": "HN",
    "LBNHC": "NH",
    "BLHNC": "HN",
    "BLNHC": "NH",
    "HND": "HN",  # older name of LBHNC
    "NHD": "NH",  # older name of LBNHC
}
_SPLIT = frozenset({"LHBNC", "BHLNC"})


@dataclass(frozen=True)
class PagedLayout:
    """Pages of one layer: page ``b`` is ``page_bytes`` bytes from ``storage_offset + b * block_stride`` on.

    All numbers are bytes except ``num_blocks``; offsets count from the start of the tensor's untyped storage
    (see `storage_bytes`).

    Raises:
        LayoutError: when a value is no int or not positive (``storage_offset`` may be 0), or pages overlap.
    """

    storage_offset: int
    block_stride: int
    page_bytes: int
    num_blocks: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 0 if field.name == "storage_offset" else 1
            if type(value) is not int or value < lowest:
                raise LayoutError(f"{field.name} must be an int of at least {lowest}, got {value!r}")
        if self.block_stride < self.page_bytes:
            raise LayoutError(
                f"block_stride {self.block_stride} is less than page_bytes {self.page_bytes}: pages overlap"
            )

    @property
    def end(self) -> int:
        """First byte after the last page."""
        return self.storage_offset + (self.num_blocks - 1) * self.block_stride + self.page_bytes

    @property
    def plane(self) -> Plane:
        """The same pages as the operators take them, in their storage number 0."""
        return Plane(0, self.storage_offset, self.block_stride, self.num_blocks, self.page_bytes)

    def check(self, storage_nbytes: int) -> None:
        """Check that every page lies inside a storage of ``storage_nbytes`` bytes.

        Raises:
            LayoutError: when the last page ends beyond it.
        """
        if self.end > storage_nbytes:
            raise LayoutError(f"{self} ends at byte {self.end}, beyond the storage of {storage_nbytes} bytes")

    @classmethod
    def from_kv_cache(
        cls,
        tensor: torch.Tensor,
        *,
        kv_cache_layout: str | None,
        page_bytes: int,
        num_blocks: int,
        layer_name: str = "",
    ) -> PagedLayout:
        """Layout of a KV cache tensor as a server registers it.

        Args:
            tensor: one layer's view, logically ``[rows, H, N, C]`` (or ``[rows, N, C]``), where ``rows`` is
                ``num_blocks`` times the number of kernel blocks in a block. Only its geometry is read.
            kv_cache_layout: the physical order the server resolved: LBHNC, LBNHC, BLHNC or BLNHC
                (or HND, NHD, the older names of the first two).
            page_bytes: bytes of one (layer, block) page, as the server states it.
            num_blocks: number of blocks in the server's block table.
            layer_name: used in error messages only.

        Raises:
            LayoutError: for any tensor whose pages are not proven to be one dense run each.
        """
        try:
            return _derive(tensor, kv_cache_layout, page_bytes, num_blocks)
        except LayoutError as error:
            raise LayoutError(
                f"KV cache of layer {layer_name!r}: {error} (shape {tuple(tensor.shape)}, strides "
                f"{_strides(tensor)}, dtype {tensor.dtype}, layout {kv_cache_layout!r}, "
                f"page_bytes {page_bytes!r}, num_blocks {num_blocks!r})"
            ) from None


def _derive(tensor: torch.Tensor, name: str | None, page_bytes: int, num_blocks: int) -> PagedLayout:
    order = _accepted_order(name)
    dense = PagedLayout(0, page_bytes, page_bytes, num_blocks)
    if tensor.layout is not torch.strided:
        raise LayoutError(f"a strided tensor is needed, this one is {tensor.layout}")
    if tensor.dim() not in (3, 4):
        raise LayoutError("the shape must be [rows, H, N, C] or [rows, N, C]")
    rows, itemsize = tensor.shape[0], tensor.itemsize
    if rows == 0 or rows % num_blocks != 0:
        raise LayoutError(f"the first dimension, {rows}, must be a multiple of num_blocks")
    rows_per_block = rows // num_blocks
    row_bytes = math.prod(tensor.shape[1:]) * itemsize
    if row_bytes * rows_per_block != dense.page_bytes:
        raise LayoutError(
            f"page_bytes must be {rows_per_block} x {row_bytes}, the bytes of a block in this tensor"
        )
    _check_dense(tensor, order)
    row_stride = tensor.stride(0) * itemsize if rows > 1 else row_bytes
    if rows_per_block > 1 and row_stride != row_bytes:
        raise LayoutError(
            f"a block has {rows_per_block} rows, which must be adjacent: row stride {row_stride} bytes, "
            f"row {row_bytes} bytes"
        )
    storage_offset = tensor.storage_offset() * itemsize
    layout = PagedLayout(storage_offset, row_stride * rows_per_block, page_bytes, num_blocks)
    layout.check(tensor.untyped_storage().nbytes())
    return layout


def _accepted_order(name: str | None) -> str:
    if name in _SPLIT:
        raise LayoutError(f"in {name} a page is not one run of bytes; use one of {', '.join(_ACCEPTED)}")
    if name is None or name not in _ACCEPTED:
        raise LayoutError(
            f"the layout must be one of {', '.join(_ACCEPTED)}; it is never guessed from a shape"
        )
    return _ACCEPTED[name]


def _check_dense(tensor: torch.Tensor, order: str) -> None:
    inner = [(tensor.stride(d), tensor.shape[d]) for d in range(1, tensor.dim()) if tensor.shape[d] > 1]
    expected = 1
    for stride, size in sorted(inner):
        if stride != expected:
            raise LayoutError("the dimensions after the first must be dense: together one run without gaps")
        expected *= size
    if tensor.dim() == 4 and tensor.shape[1] > 1 and tensor.shape[2] > 1:
        found = "HN" if tensor.stride(1) > tensor.stride(2) else "NH"
        if found != order:
            raise LayoutError(
                f"the strides put dimensions in the order {found}, the layout's name says {order}"
            )


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | str:
    return tensor.stride() if tensor.layout is torch.strided else "none"
