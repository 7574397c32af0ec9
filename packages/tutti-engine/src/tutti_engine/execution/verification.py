# SPDX-License-Identifier: Apache-2.0
"""How much of what is loaded is verified."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["Verification", "Verify"]

Verify: TypeAlias = Literal["always"] | float


class Verification:
    """Picks the waves to verify: all of them, or evenly spread ones so that a fraction is reached.

    Anything but ``"always"`` gives up a guarantee: bytes that changed on the drive may then reach attention.
    """

    def __init__(self, verify: Verify) -> None:
        """Take ``"always"`` or a fraction. Raises ValueError for a number outside of 0 to 1."""
        fraction = 1.0 if verify == "always" else verify
        if isinstance(fraction, (bool, str)) or not 0.0 <= fraction <= 1.0:
            raise ValueError(f"verify must be 'always' or a fraction from 0 to 1, not {verify!r}")
        self._fraction = float(fraction)
        self._owed = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether everything is verified."""
        return self._fraction == 1.0

    def next(self) -> bool:
        """Return whether to verify the next wave."""
        self._owed += self._fraction
        if self._owed < 1.0 - 1e-9:
            return False
        self._owed -= 1.0
        return True
