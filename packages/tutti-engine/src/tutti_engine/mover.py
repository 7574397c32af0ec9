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

    A call moves ``n`` chunks' segments of one or many layers. Its columns go layer by layer: number
    ``k * n + i`` belongs to ``layers[k]`` of the chunk whose blocks are ``block_ids[i]``. Columns of numbers
    may be ``array.array`` objects, which NumPy and torch read without a copy.

    Calls may come from two threads at a time, never for the same slot or page.
    """

    @property
    def checksum_name(self) -> str:
        """Names the checksum's formula; part of the namespace, so that two formulas never meet."""

    def bind(self, window: StagingWindow) -> None:
        """Take the window that later slot numbers refer to."""

    def gather(
        self, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> Sequence[int]:
        """Copy pages, packed, into slots.

        Bytes of a slot beyond the pages become zero. Returns the checksum of each slot's pages as an unsigned
        64-bit number. Raises ValueError for a block out of range, before anything is written.
        """

    def scatter(
        self,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> Sequence[bool]:
        """Copy slots to pages where they match their checksums.

        Returns whether each segment matched; of one that did not, no page is written. ``SKIP_BLOCK`` entries
        are part of the checksum but not written. Raises ValueError for a block out of range, before anything
        is written.

        ``checksums`` is None only for movers with a true ``can_skip_verification``: then nothing is verified
        and everything counts as matched.
        """
