# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers as tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from tutti_engine.block_rows import BlockRows

__all__ = ["column", "matrix"]


def column(values: Sequence[int]) -> torch.Tensor:
    """Return 64-bit numbers, signed or not, as int64: an ``array`` without a copy, anything else with one."""
    if not isinstance(values, array):
        values = array("q", (value - (1 << 64) if value >> 63 == 1 else value for value in values))
    return torch.frombuffer(values, dtype=torch.int64)


def matrix(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return equally long rows as int64 ``[rows, length]``. Raises ValueError for others."""
    if isinstance(rows, BlockRows) and len(rows.filled) == len(rows):
        return torch.frombuffer(rows.flat, dtype=torch.int64).view(len(rows), -1)
    if len({len(row) for row in rows}) != 1:
        raise ValueError("the chunks of one call must have equally many blocks")
    flat = array("q")
    for row in rows:
        flat.extend(row)
    return torch.frombuffer(flat, dtype=torch.int64).view(len(rows), -1)
