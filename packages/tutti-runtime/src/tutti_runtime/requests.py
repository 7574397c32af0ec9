# SPDX-License-Identifier: Apache-2.0
"""The request array and the results of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLUSH", "READ", "REQUEST_DTYPE", "WRITE", "Completion", "OpenResult", "SubmitResult"]

READ: Final = 0
"""Target to memory."""
WRITE: Final = 1
"""Memory to target."""
FLUSH: Final = 2
"""Make durable every write of the target that had finished before this submission; other fields are 0."""

REQUEST_DTYPE: Final = np.dtype(
    [
        ("direction", "u4"),
        ("reserved", "u4"),
        ("memory", "u8"),
        ("memory_offset", "u8"),
        ("target", "u8"),
        ("target_offset", "u8"),
        ("length", "u8"),
    ],
    align=True,
)
"""One request, 48 bytes. ``reserved`` is 0; offsets and lengths are bytes."""


def _no_flags() -> NDArray[np.bool_]:
    return np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class SubmitResult:
    """What became of each request of a batch, in the order of the batch.

    ``errors[i]`` is 0 where ``accepted[i]``, else EINVAL (malformed, misaligned, out of range), EBADF (bad
    handle), EACCES (write to a target opened read-only) or EAGAIN (no room: ``max_in_flight`` items are
    unfinished, or results of ``max_results`` items were not collected; submit it again later).
    ``handle`` covers the accepted requests and is ``None`` when there is none.
    """

    handle: int | None
    accepted: NDArray[np.bool_]
    errors: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Outcome of the accepted requests of a batch, in their order.

    ``status[i]`` is 0 or a positive errno, EIO for a transfer that ended early, ETIMEDOUT for one beyond its
    deadline; ``bytes[i]`` is what was moved.

    ``late[i]`` says that the item timed out and that the device still holds it: its target and memory stay
    in use, and a late read can still write into the memory. ``late_handle`` is then a batch of just these
    items, in their order: ``poll`` or ``wait`` it to learn when the memory is free and what really became of
    each, or ``abandon`` it.
    """

    status: NDArray[np.int32]
    bytes: NDArray[np.uint64]
    late: NDArray[np.bool_] = field(default_factory=_no_flags)
    late_handle: int | None = None

    def __post_init__(self) -> None:
        if self.late.size != self.status.size:
            object.__setattr__(self, "late", np.zeros(len(self.status), np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class OpenResult:
    """One item of ``open_batch``: a target, or the error that ``open`` would have raised."""

    target: int | None
    error: Exception | None
