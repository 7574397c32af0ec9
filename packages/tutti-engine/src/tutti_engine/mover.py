# SPDX-License-Identifier: Apache-2.0
"""The seam between staging slots and a server's paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tutti_engine.backend import StagingWindow

__all__ = ["Mover"]


@runtime_checkable
class Mover(Protocol):
    """Copies between pages and slots and guards every segment with a 64-bit checksum.

    Calls may come from two threads at a time, never for the same slot or page.
    """

    @property
    def checksum_name(self) -> str:
        """Names the checksum's formula; part of the namespace, so that two formulas never meet."""

    def bind(self, window: StagingWindow) -> None:
        """Take the window that later slot numbers refer to."""

    def gather(self, layer: int, block_ids: Sequence[Sequence[int]], slots: Sequence[int]) -> list[int]:
        """Copy ``block_ids[i]``'s pages of one layer, packed, into ``slots[i]``.

        Bytes of the slot beyond the pages become zero. Returns the checksum of each slot's pages as an
        unsigned 64-bit number. Raises ValueError for a block out of range, before anything is written.
        """

    def scatter(
        self, layer: int, slots: Sequence[int], block_ids: Sequence[Sequence[int]], checksums: Sequence[int]
    ) -> list[bool]:
        """Copy the pages of ``slots[i]`` to ``block_ids[i]`` if they match ``checksums[i]``.

        Returns whether each segment matched; of one that did not, no page is written. ``SKIP_BLOCK`` entries
        are part of the checksum but not written. Raises ValueError for a block out of range, before anything
        is written.
        """
