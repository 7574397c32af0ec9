# SPDX-License-Identifier: Apache-2.0
"""The agreement between the planner and whoever decides how many places of a store may be used now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tutti_engine.plan import ChunkId

__all__ = ["Places"]


class Places(Protocol):
    """Hands out places and takes them back, from any thread. No method waits for a disk.

    At first every place that no resident has is in its hands.
    """

    def ready(self, wanted: int) -> Sequence[ChunkId]:
        """Return places that the planner may use from now on, and expect that it wants more before long.

        Args:
            wanted: places that the planner could use at once.
        """

    def coming(self) -> int:
        """Return how many places will be ready before long without anything being evicted."""

    def take_excess(self) -> int:
        """Return how many places the planner must give up now. Each is asked for once."""

    def let_go(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Take places that the planner gave up. Nothing reads or writes them any more."""
