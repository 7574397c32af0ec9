# SPDX-License-Identifier: Apache-2.0
"""Striping said as slowly as it can be: one unit after the other, dealt out like cards."""

from __future__ import annotations

__all__ = ["place_of", "striped_size"]


def place_of(offset: int, unit: int, shards: int, rotation: int) -> tuple[int, int]:
    """Shard and offset in it of the byte at ``offset`` of the target."""
    dealt = [0] * shards
    turn = rotation
    for _ in range(offset // unit):
        dealt[turn] += 1
        turn = (turn + 1) % shards
    return turn, dealt[turn] * unit + offset % unit


def striped_size(sizes: list[int], unit: int, shards: int, rotation: int) -> int:
    """Bytes of the target before the first one that its shard does not hold."""
    size = 0
    while True:
        shard, place = place_of(size, unit, shards, rotation)
        if sizes[shard] < place + unit:
            return size + max(0, sizes[shard] - place)
        size += unit
