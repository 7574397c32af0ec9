# SPDX-License-Identifier: Apache-2.0
"""How writes share a drive with reads."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["WritePolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePolicy:
    """Reads always go first; this says what writes get. It holds per root, that is per drive.

    A root is *busy* while reads are waiting or in flight, and for ``idle_after`` seconds more. On a busy root
    writes earn ``share`` bytes for each byte read, with ``busy_bytes_in_flight`` at once; whatever is read,
    one goes at least every ``max_wait`` seconds. Else they have ``bytes_in_flight`` at once. ``rate`` bytes
    per second bound them always (``None``: no bound). One item is let through however large it is.

    The defaults keep reads above nine tenths of what they reach alone on a flash drive, where a written byte
    costs up to twice the time of a read one. Raises ``ValueError`` naming the field, the value and the rule.
    """

    share: float = 0.03
    busy_bytes_in_flight: int = 2 << 20
    bytes_in_flight: int = 32 << 20
    rate: float | None = None
    idle_after: float = 0.002
    max_wait: float = 0.5

    def __post_init__(self) -> None:
        self._check_number("share", 0.0, 1.0)
        self._check_number("idle_after", 0.0, 3600.0)
        self._check_number("max_wait", 0.0, 3600.0)
        if self.rate is not None:
            self._check_number("rate", math.ulp(0.0), 1e18)
        for field in ("busy_bytes_in_flight", "bytes_in_flight"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
                raise ValueError(f"write_policy.{field}={value!r} must be an int of 1 byte and more")

    def _check_number(self, field: str, low: float, high: float) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"write_policy.{field}={value!r} must be a number from {low:g} to {high:g}")

    def native(self) -> dict[str, Any]:
        """Return what the compiled module takes."""
        return {**asdict(self), "rate": self.rate or 0.0}
