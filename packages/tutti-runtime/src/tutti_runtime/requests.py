# SPDX-License-Identifier: Apache-2.0
"""The request array and the results of a batch."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False)
class SubmitResult:
    """What became of each request of a batch, in the order of the batch.

    ``errors[i]`` is 0 where ``accepted[i]``, else EINVAL (malformed, misaligned, out of range), EBADF (bad
    handle), EACCES (write to a target opened read-only) or EAGAIN (no room: submit it again later).
    ``handle`` covers the accepted requests and is ``None`` when there is none.
    """

    handle: int | None
    accepted: NDArray[np.bool_]
    errors: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Outcome of the accepted requests of a batch, in their order.

    ``status[i]`` is 0 or a positive errno, EIO for a transfer that ended early; ``bytes[i]`` is what was
    moved.
    """

    status: NDArray[np.int32]
    bytes: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class OpenResult:
    """One item of ``open_batch``: a target, or the error that ``open`` would have raised."""

    target: int | None
    error: Exception | None
