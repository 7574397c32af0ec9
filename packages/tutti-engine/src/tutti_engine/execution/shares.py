# SPDX-License-Identifier: Apache-2.0
"""Cuts a plan into shares: layers of one group, and the chunks that have pages there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from tutti_engine.block_rows import BlockRows
from tutti_engine.execution.waves import Plan
from tutti_engine.geometry import Geometry

__all__ = ["Share", "Shares"]


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a plan in which every chunk moves the same layers, through one block table.

    Attributes:
        group: the cache group's number.
        layers: layers of it that move.
        positions: the chunks' positions in the plan.
    """

    group: int
    layers: Sequence[int]
    positions: Sequence[int]


class Shares:
    """Cuts plans for one rank.

    Attributes:
        num_layers: layers that this rank has.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._groups = geometry.groups
        self.num_layers = len(geometry.held_layers)
        self._group_of = {
            layer: number for number, group in enumerate(self._groups) for layer in group.layers
        }

    def of(self, plan: Plan, layers: Sequence[int] | None) -> tuple[list[Share], int]:
        """Return the shares of a plan's layers, None for all, and how many layers are in none of them.

        Raises ValueError for a layer that this rank does not have, and for a plan whose chunks have block ids
        of more or fewer groups.
        """
        shares: list[Share] = []
        idle = 0
        for group, chosen in self._by_group(layers):
            positions = self._positions(plan, group)
            if chosen and positions:
                shares.append(Share(group, chosen, positions))
            else:
                idle += len(chosen)
        return shares, idle

    def _by_group(self, layers: Sequence[int] | None) -> list[tuple[int, Sequence[int]]]:
        if layers is None:
            return [(number, group.layers) for number, group in enumerate(self._groups)]
        chosen: dict[int, list[int]] = {}
        for layer in layers:
            if layer not in self._group_of:
                raise ValueError(f"layer {layer} is not one of the {self.num_layers} of this rank")
            chosen.setdefault(self._group_of[layer], []).append(layer)
        return list(chosen.items())

    def _positions(self, plan: Plan, group: int) -> Sequence[int]:
        count = len(plan.transfers)
        if len(self._groups) == 1 and not self._groups[0].is_partial:
            return range(count)
        groups = plan.columns.groups
        if count and len(groups) != len(self._groups):
            raise ValueError(
                f"a chunk has block ids of {len(groups)} groups, this rank has {len(self._groups)}"
            )
        rows = groups[group] if count else ()
        return rows.filled if isinstance(rows, BlockRows) else list(compress(range(count), rows))
