# SPDX-License-Identifier: Apache-2.0
"""Which of several reasons for a failure counts."""

from __future__ import annotations

import errno
from typing import Final

__all__ = ["DATA_ERRORS", "NO_ROOM_ERRORS", "worse"]

DATA_ERRORS: Final = frozenset({errno.EBADMSG, errno.ENOENT})
"""Not the drive's fault: a chunk is damaged or gone."""

NO_ROOM_ERRORS: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ECANCELED})
"""Back-pressure: nothing was tried, nothing is known."""


def worse(one: int, other: int) -> int:
    """Return the errno that says more: one of a drive, then of data, then of back-pressure, then 0."""
    return max(one, other, key=_weight)


def _weight(code: int) -> int:
    if code == 0:
        return 0
    if code in NO_ROOM_ERRORS:
        return 1
    return 2 if code in DATA_ERRORS else 3
