# SPDX-License-Identifier: Apache-2.0
"""Planes of one strided tensor whose axes are named by letters.

========= ============================================================================================
``B``     blocks, or rows of which a block has several (kernel blocks)
``N``     tokens in a block (in a row)
``S``     tokens of the whole pool, blocks and tokens in one axis
``T``     K and V
``H``     heads
``C``     content: the contiguous values of one head of one token, or of one token
``1``     an axis of size one
========= ============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import torch

from tutti_kv_kernels.errors import LayoutError
from tutti_kv_kernels.layouts.storages import StorageList
from tutti_kv_kernels.plane import BLOCK_IS_TOKEN, Plane

__all__ = ["Axes", "BlockTable", "IdKind", "named_axes", "planes_of_tensor"]

_DIMS = 3


class IdKind(Enum):
    """What the ids of a transfer count: blocks of the block table, or tokens (a slot mapping)."""

    BLOCKS = "blocks"
    TOKENS = "tokens"


@dataclass(frozen=True)
class BlockTable:
    """The server's block table: how many blocks there are and how many tokens a block has.

    Raises:
        LayoutError: when one of them is no positive int.
    """

    num_blocks: int
    block_size: int
    ids: IdKind = IdKind.BLOCKS

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise LayoutError(f"{name} must be an int of at least 1, got {value!r}")


@dataclass(frozen=True)
class _Axis:
    size: int
    stride: int  # bytes


Axes = dict[str, _Axis]


def named_axes(tensor: torch.Tensor, letters: str) -> Axes:
    """Sizes and byte strides of ``tensor`` by the letters of its axes.

    Raises:
        LayoutError: when it has another number of axes, or T is not 2, or an axis marked 1 is longer.
    """
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"a tensor is needed, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise LayoutError(f"a strided tensor is needed, this one is {tensor.layout}")
    if tensor.dim() != len(letters):
        raise LayoutError(f"the shape must be [{', '.join(letters)}], {len(letters)} axes")
    axes: Axes = {}
    for letter, size, stride in zip(letters, tensor.shape, tensor.stride(), strict=True):
        expected = {"T": 2, "1": 1}.get(letter, size)
        if size != expected:
            raise LayoutError(f"axis {letter} of [{', '.join(letters)}] must be {expected}, it is {size}")
        if size == 0:
            raise LayoutError(f"axis {letter} of [{', '.join(letters)}] is empty")
        if letter != "1":
            axes[letter] = _Axis(size, stride * tensor.itemsize)
    return axes


def planes_of_tensor(
    tensor: torch.Tensor, letters: str, order: str, table: BlockTable, storages: StorageList
) -> list[Plane]:
    """Planes that pack a block of ``tensor`` in ``order``: its letters without B and S, the innermost last.

    A block of several rows is packed row after row, each in ``order``.

    Raises:
        LayoutError: when the shape contradicts ``table``, or the innermost axis is not contiguous.
    """
    axes = named_axes(tensor, letters)
    start = tensor.storage_offset() * tensor.itemsize
    base = Plane(storages.index(tensor), start, 0, table.num_blocks, tensor.itemsize)
    content = axes[order[-1]]
    if content.size > 1 and content.stride != tensor.itemsize:
        raise LayoutError(
            f"the innermost axis {order[-1]} must be contiguous, its stride is {content.stride} bytes for "
            f"values of {tensor.itemsize}"
        )
    base = replace(base, run_bytes=content.size * tensor.itemsize)
    outer = order[:-1]
    if table.ids is IdKind.TOKENS:
        return [_token_plane(base, axes, outer, table)]
    if "S" in axes:
        return [_pool_plane(base, axes, outer, table)]
    return _block_planes(base, axes, outer, table)


def _token_plane(base: Plane, axes: Axes, outer: str, table: BlockTable) -> Plane:
    dims = [axes[letter] for letter in outer if letter not in "NS"]
    plane = _with_dims(base, dims, BLOCK_IS_TOKEN)
    if "S" in axes:
        pool = _pool_axis(axes, table)
        return replace(plane, num_blocks=table.num_blocks * table.block_size, block_stride=pool.stride)
    rows = _rows_per_block(axes, table)
    return replace(
        plane,
        num_blocks=table.num_blocks * rows,
        block_stride=axes["B"].stride,
        tokens_per_block=axes["N"].size,
        token_stride=axes["N"].stride if axes["N"].size > 1 else 0,
    )


def _pool_plane(base: Plane, axes: Axes, outer: str, table: BlockTable) -> Plane:
    pool = _pool_axis(axes, table)
    tokens = _Axis(table.block_size, pool.stride)
    plane = _with_dims(base, [tokens if letter == "N" else axes[letter] for letter in outer], outer.find("N"))
    return replace(plane, block_stride=pool.stride * table.block_size)


def _block_planes(base: Plane, axes: Axes, outer: str, table: BlockTable) -> list[Plane]:
    rows = _rows_per_block(axes, table)
    row_stride = axes["B"].stride
    plane = _with_dims(base, [axes[letter] for letter in outer], outer.find("N"))
    plane = replace(plane, block_stride=row_stride * rows)
    tokens = axes["N"].size
    return [
        replace(plane, offset=plane.offset + row * row_stride, first_token=row * tokens)
        for row in range(rows)
    ]


def _pool_axis(axes: Axes, table: BlockTable) -> _Axis:
    needed = table.num_blocks * table.block_size
    if axes["S"].size < needed:
        raise LayoutError(
            f"the pool's first axis, {axes['S'].size}, must have num_blocks x block_size = {needed} tokens"
        )
    return axes["S"]


def _rows_per_block(axes: Axes, table: BlockTable) -> int:
    rows, tokens = axes["B"].size, axes["N"].size
    if rows % table.num_blocks != 0:
        raise LayoutError(f"axis B, {rows}, must be a multiple of num_blocks, {table.num_blocks}")
    if rows // table.num_blocks * tokens != table.block_size:
        raise LayoutError(
            f"block_size must be {rows // table.num_blocks} x {tokens}, the tokens of a block in this "
            f"tensor, got {table.block_size}"
        )
    return rows // table.num_blocks


def _with_dims(base: Plane, dims: list[_Axis], token_dim: int) -> Plane:
    if len(dims) > _DIMS:
        raise LayoutError(f"at most {_DIMS} axes may be outside the contiguous one, got {len(dims)}")
    # An axis of size one is never stepped over, whatever its stride.
    steps = [(dim.size, dim.stride if dim.size > 1 else 0) for dim in dims]
    missing = _DIMS - len(dims)
    first, second, third = [(1, 0)] * missing + steps
    shifted = token_dim + missing if 0 <= token_dim < _DIMS else token_dim
    counts, strides = (first[0], second[0], third[0]), (first[1], second[1], third[1])
    return replace(base, counts=counts, strides=strides, token_dim=shifted)
