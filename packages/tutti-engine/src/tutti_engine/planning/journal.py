# SPDX-License-Identifier: Apache-2.0
"""The agreement between the planner and whoever writes down what is resident."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tutti_engine.catalogue.record import Record

__all__ = ["PlannerJournal"]


class PlannerJournal(Protocol):
    """Where the planner writes down what is resident; ``Catalogue`` is one."""

    def put(self, record: Record) -> None:
        """Remember a chunk whose bytes are durable."""

    def remove(
        self, slots: Sequence[int], on_durable: Callable[[Sequence[int]], None], *, suspect: bool = False
    ) -> None:
        """Forget chunks, then call ``on_durable(slots)`` from any thread once that is durable.

        ``suspect`` chunks did not verify: places that shall not be used again are left out of the call.
        """

    def clear(self, on_durable: Callable[[Sequence[int]], None]) -> None:
        """Forget every chunk, then call ``on_durable`` once that is durable."""

    def flush(self, timeout: float) -> bool:
        """Wait until everything said so far is durable.

        Return False if it is not after ``timeout`` seconds.
        """

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note a use; may be lost."""

    def add(self, name: str, delta: int) -> None:
        """Raise a lifetime counter."""
