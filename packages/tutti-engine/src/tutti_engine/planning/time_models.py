# SPDX-License-Identifier: Apache-2.0
"""What things take, by what was measured of late; a few odd measurements bend no estimate much."""

from __future__ import annotations

import math
import statistics
from collections import deque
from operator import le

__all__ = ["ENOUGH", "RecentTimes", "SizedTimes", "TimeModel"]

_WEIGHT = 0.2
"""Weight of the newest measurement: about the last ten count."""

_OUTLIER = 4.0
"""A measurement this many times off what was expected is moved to that distance: a pause of the machine then
bends the estimate instead of breaking it."""

_CONVINCED = 5
"""So many outliers in a row, all to the same side, are the truth: what was measured before is forgotten."""

ENOUGH = 3
"""Measurements before an estimate is believed."""

_RECENT = 9
"""Measurements of which a median is taken."""

_BELIEVABLE = 1e9
"""Tokens or seconds that one measurement may have: sums of squares then stay far from what a float holds."""


class TimeModel:
    """Time as a fixed part plus so much a token, fitted to measurements of which old ones fade.

    A few running sums of a weighted least squares fit; where sizes hardly differ, or a fit makes no sense,
    time is taken to be proportional to tokens.
    """

    def __init__(self) -> None:
        self.samples = 0
        # Outliers in a row, with the sign of their side.
        self._outliers = 0
        self._x = self._y = self._xx = self._xy = 0.0

    def note(self, tokens: float, seconds: float) -> bool:
        """Take a measurement; return False for one that means nothing, such as after a step of a clock."""
        if not (0 < tokens <= _BELIEVABLE and 0 < seconds <= _BELIEVABLE):
            return False
        if self.known:
            seconds = self._believable(tokens, seconds)
        self.samples += 1
        keep = 1.0 - max(_WEIGHT, 1.0 / self.samples)
        share = 1.0 - keep
        self._x = keep * self._x + share * tokens
        self._y = keep * self._y + share * seconds
        self._xx = keep * self._xx + share * tokens * tokens
        self._xy = keep * self._xy + share * tokens * seconds
        return True

    def _believable(self, tokens: float, seconds: float) -> float:
        expected = self.predict(tokens)
        nearest = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        side = (seconds > nearest) - (seconds < nearest)
        self._outliers = self._outliers + side if side * self._outliers > 0 else side
        if abs(self._outliers) < _CONVINCED:
            return nearest
        self.samples = self._outliers = 0
        return seconds

    @property
    def known(self) -> bool:
        """Whether there are measurements enough to go by."""
        return self.samples >= ENOUGH

    def predict(self, tokens: float) -> float:
        """Return the expected seconds; only once something was measured."""
        fixed, rate = self._line()
        return fixed + rate * tokens

    @property
    def seconds_per_token(self) -> float:
        """Expected seconds that one more token takes."""
        return self._line()[1]

    def _line(self) -> tuple[float, float]:
        proportional = self._y / self._x
        variance = self._xx - self._x * self._x
        if variance <= 0.01 * self._x * self._x:
            return 0.0, proportional
        rate = (self._xy - self._x * self._y) / variance
        fixed = self._y - rate * self._x
        if rate <= 0.0 or fixed < 0.0:
            return 0.0, proportional
        return fixed, rate


class SizedTimes:
    """A ``TimeModel`` for all sizes, and one for each power of two where enough was measured.

    Attention makes long prompts cost more a token than short ones, so a line through both is right for
    neither.
    """

    def __init__(self) -> None:
        self._all = TimeModel()
        self._near: dict[int, TimeModel] = {}

    def note(self, tokens: float, seconds: float) -> bool:
        """As ``TimeModel.note``."""
        taken = self._all.note(tokens, seconds)
        if taken:
            self._near.setdefault(math.frexp(tokens)[1], TimeModel()).note(tokens, seconds)
        return taken

    @property
    def samples(self) -> int:
        """Measurements of all sizes."""
        return self._all.samples

    @property
    def known(self) -> bool:
        """As ``TimeModel.known``."""
        return self._all.known

    def predict(self, tokens: float) -> float:
        """As ``TimeModel.predict``."""
        near = self._near.get(math.frexp(tokens)[1])
        return near.predict(tokens) if near is not None and near.known else self._all.predict(tokens)

    @property
    def overall(self) -> TimeModel:
        """The one for all sizes."""
        return self._all


class RecentTimes:
    """Medians of what was measured last, for each power of two of sizes that times grow with.

    What goes up with these times are refusals, and what is refused is measured no more: one that held a cost
    of the first time must not stand for all, nor what large sizes take for small ones.
    """

    def __init__(self) -> None:
        self._near: dict[tuple[int, ...], deque[float]] = {}
        # Where enough was measured.
        self._medians: dict[tuple[int, ...], float] = {}

    def note(self, sizes: tuple[float, ...], seconds: float) -> bool:
        """As ``TimeModel.note``."""
        if not all(0 < number <= _BELIEVABLE for number in (*sizes, seconds)):
            return False
        places = _places(sizes)
        times = self._near.setdefault(places, deque(maxlen=_RECENT))
        times.append(seconds)
        if len(times) >= ENOUGH:
            self._medians[places] = statistics.median(times)
        return True

    @property
    def samples(self) -> int:
        """Measurements that are remembered, of all sizes."""
        return sum(map(len, self._near.values()))

    def predict(self, sizes: tuple[float, ...]) -> float:
        """Return the least expected seconds, 0 where too little was measured up to these sizes."""
        places = _places(sizes)
        if places in self._medians:
            return self._medians[places]
        return max((time for near, time in self._medians.items() if all(map(le, near, places))), default=0.0)


def _places(sizes: tuple[float, ...]) -> tuple[int, ...]:
    """Return the powers of two that sizes are near to."""
    return tuple(math.frexp(size)[1] for size in sizes)
