# SPDX-License-Identifier: Apache-2.0
"""The seam between staging slots and a server's paged KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from tutti_engine.backend import StagingWindow

__all__ = ["BackgroundMover", "Mover", "PageCopy", "SlotCopy"]


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


class PageCopy(Protocol):
    """Pages on their way to slots."""

    def wait(self) -> Sequence[int]:
        """Wait for the end; return the checksums as ``Mover.gather`` does.

        Raises whatever kept the pages from being copied.
        """


class SlotCopy(Protocol):
    """Slots on their way to pages."""

    def wait(self) -> Sequence[bool]:
        """Wait for the end; return which segments matched as ``Mover.scatter`` does.

        Raises whatever kept the slots from being copied.
        """


@runtime_checkable
class BackgroundMover(Mover, Protocol):
    """A mover for pages on a device, where the server's own work is queued and copies run beside it.

    ``mark``, ``hold`` and ``unbind`` are called by the server's thread, whose work they are about; copies are
    started and awaited by other threads, loads and stores each by one. A start that raises leaves nothing
    under way.
    """

    def mark(self) -> Any:
        """Return the present end of the server's queue of work."""

    def start_scatter(
        self,
        mark: Any,
        layers: Sequence[int],
        slots: Sequence[int],
        block_ids: Sequence[Sequence[int]],
        checksums: Sequence[int] | None,
    ) -> SlotCopy:
        """Start what ``Mover.scatter`` does, behind the device's work up to ``mark``; do not wait for it.

        Pages of a segment that did not match may have been written.
        """

    def start_gather(
        self, mark: Any, layers: Sequence[int], block_ids: Sequence[Sequence[int]], slots: Sequence[int]
    ) -> PageCopy:
        """Start what ``Mover.gather`` does, behind the device's work up to ``mark``; do not wait for it."""

    def hold(self, copies: Iterable[PageCopy]) -> None:
        """Have all that the server asks the device for from now on wait for these copies."""

    def unbind(self) -> None:
        """Let the staging window go; nothing is under way any more."""
