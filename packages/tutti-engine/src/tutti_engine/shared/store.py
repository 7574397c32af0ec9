# SPDX-License-Identifier: Apache-2.0
"""The interface of a store that several servers share: objects by name, each one chunk of one rank.

What the local store's places are to one server, names are to all: who knows a chunk's key knows its objects.
Nobody owns such a store. Objects come and go without a word: a look-up is a hint, a read the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tutti_engine.backend import StagingWindow

__all__ = ["ObjectBatch", "ObjectHandle", "SharedStore"]


@dataclass(frozen=True, slots=True)
class ObjectBatch:
    """Objects to move, in equally long columns.

    Object ``i`` is two pieces, one after the other: slot ``first_slots[i]`` of the header window, whole, and
    ``segments`` neighbouring slots of the staging window from ``first_slots[i]`` on, which are one stretch of
    memory. All objects of a name have the same size.

    Attributes:
        names: the objects' names: ASCII letters, digits and ``.-_/``, at most 255 of them.
        first_slots: where their pieces lie.
        segments: slots of the staging window that each takes, at least 1.
    """

    names: Sequence[str]
    first_slots: Sequence[int]
    segments: int

    def __post_init__(self) -> None:
        if len(self.names) != len(self.first_slots):
            raise ValueError(
                f"{len(self.names)} names and {len(self.first_slots)} slots are no columns of one batch"
            )
        if self.segments < 1:
            raise ValueError(f"an object takes at least one segment, not {self.segments}")

    def __len__(self) -> int:
        return len(self.names)


@runtime_checkable
class ObjectHandle(Protocol):
    """A batch in flight. Until it is finished its slots, of both windows, belong to the store."""

    def poll(self) -> bool:
        """Return whether the batch is finished."""

    def wait(self, deadline: float) -> bool:
        """Wait until the batch is finished or ``time.monotonic()`` reaches ``deadline``; return ``poll()``.

        A batch whose deadline passed is still in flight: its slots stay taken until ``poll`` says True, for
        ever if the store never lets them go.
        """

    def status(self) -> Sequence[int]:
        """Return one number an object: 0, or the ``errno`` of its failure.

        Raises RuntimeError before the batch is finished.

        Of reads: ``ENOENT`` an object that is not there, ``EBADMSG`` one of another size. Of writes:
        ``ENOSPC`` no room. Of both: ``EIO``, ``ETIMEDOUT``, ``ENOTCONN`` and whatever else tells more.
        """


@runtime_checkable
class SharedStore(Protocol):
    """A store of objects. All calls may come from several threads.

    A planning side calls ``exists`` and ``remove`` alone and binds no memory.

    Optional: ``data_path: str``, what moves the bytes, for metrics; ``spi_version: int``.
    """

    def bind_staging(self, window: StagingWindow, headers: StagingWindow) -> None:
        """Take the memory that later slot numbers refer to; both outlive the store's use of them.

        Args:
            window: where segments lie.
            headers: where headers lie: as many slots, of their own size.

        Raises RuntimeError when called a second time.
        """

    def exists(self, names: Sequence[str]) -> Sequence[bool]:
        """Return whether each object is there now. Blocks; called by threads that may.

        Raises OSError when the store cannot say.
        """

    def write_objects(self, batch: ObjectBatch) -> ObjectHandle:
        """Start to copy slots to the store; never waits for it.

        An object is seen by readers whole or not at all. One that is there already stays as it is and counts
        as written: equal names stand for equal bytes.

        Raises RuntimeError before ``bind_staging``, ValueError for a slot that is none; then nothing was
        started.
        """

    def read_objects(self, batch: ObjectBatch) -> ObjectHandle:
        """Start to copy objects to slots; never waits for it. Raises as ``write_objects`` does."""

    def remove(self, names: Sequence[str]) -> None:
        """Forget objects, as far as the store can at once; those that are not there are no error.

        Blocks. Raises OSError when the store cannot be reached.
        """

    def wait_idle(self, deadline: float) -> bool:
        """Wait until nothing is in flight; return False if ``time.monotonic()`` reached ``deadline``."""

    def shutdown(self) -> None:
        """Finish or abandon what is in flight within a bounded time. Later calls do nothing."""
