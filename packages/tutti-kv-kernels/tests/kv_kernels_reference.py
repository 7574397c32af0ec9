# SPDX-License-Identifier: Apache-2.0
"""Slow, independent statements of what the operators must do: Python integers, bytes and slices only."""

from __future__ import annotations

__all__ = ["checksum", "signed"]

_MASK = 2**64 - 1


def checksum(data: bytes) -> int:
    """tutti64-1, term by term as the README defines it."""
    total = 0
    for index, start in enumerate(range(0, len(data), 8)):
        word = int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little")
        term = ((word ^ ((index + 1) * 0x9E3779B97F4A7C15 & _MASK)) * 0xD6E8FEB86659FD93) & _MASK
        total += term ^ (term >> 32)
    value = (total + len(data) * 0xA0761D6478BD642F) & _MASK
    value ^= value >> 32
    value = value * 0xD6E8FEB86659FD93 & _MASK
    return value ^ (value >> 32)


def signed(value: int) -> int:
    """An unsigned 64-bit number as the two's complement number that an int64 tensor holds."""
    return value - 2**64 if value >= 2**63 else value
