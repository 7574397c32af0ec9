# SPDX-License-Identifier: Apache-2.0
"""Whether loading a hit is faster than computing it again: measured, never assumed (DESIGN section 8).

A request whose hit is loaded beside the server's steps waits for the load, then until the server has heard
of it and plans its step, then for what is left of its prompt, however little that is: a step has a fixed
cost. Together that is compared with computing all of it.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import le
from typing import TypeVar

from tutti_engine.counters import Counters

__all__ = ["BreakEven", "Decision", "TimeModel"]

_WEIGHT = 0.2
"""Weight of the newest measurement: about the last ten count."""

_OUTLIER = 4.0
"""A measurement this many times off what was expected is moved to that distance: a pause of the machine then
bends the estimate instead of breaking it."""

_CONVINCED = 5
"""So many outliers in a row, all to the same side, are the truth: what was measured before is forgotten."""

_ENOUGH = 3
"""Measurements before an estimate is believed."""

_RECENT = 9
"""Measurements of which a median is taken."""

_BELIEVABLE = 1e9
"""Tokens or seconds that one measurement may have: sums of squares then stay far from what a float holds."""


S = TypeVar("S")


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
        return self.samples >= _ENOUGH

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
        if len(times) >= _ENOUGH:
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


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer with its reasons.

    Attributes:
        load: whether to load.
        why: one line for people.
        load_seconds: expected time of the load, None if it is not known.
        compute_seconds: expected time to compute the same tokens, None if it is not known.
    """

    load: bool
    why: str
    load_seconds: float | None = None
    compute_seconds: float | None = None

    def __bool__(self) -> bool:
        return self.load


class BreakEven:
    """Compares what loads took with what computing took. All calls may come from any thread.

    As long as either is not known loads are welcome: they are how it becomes known. Once loads are refused
    none would ever be measured again, so one in ``probe_every`` goes through all the same: of all that were
    refused in a row, and of those of each size, which others that are loaded say little of.

    Its counters: ``break_even_loads``, ``break_even_refused``, ``break_even_probes`` (answers),
    ``break_even_ignored`` (measurements that mean nothing).
    """

    def __init__(
        self, *, margin: float = 0.02, probe_every: int = 32, counters: Counters | None = None
    ) -> None:
        """Start without measurements.

        Args:
            margin: a load is refused only if it is expected to take this much longer than computing, as a
                fraction; it keeps answers from changing with every small measurement.
            probe_every: every so many refusals one load is let through.
            counters: where answers are counted; None makes new ones.

        Raises:
            ValueError: a negative margin, or ``probe_every`` below 2.
        """
        if not margin >= 0.0 or math.isinf(margin):
            raise ValueError(f"margin must be a number of at least 0, not {margin!r}")
        if not isinstance(probe_every, int) or probe_every < 2:
            raise ValueError(f"probe_every must be a whole number of at least 2, not {probe_every!r}")
        self.counters = Counters() if counters is None else counters
        self._margin = margin
        self._probe_every = probe_every
        self._lock = threading.Lock()
        self._load = TimeModel()
        self._compute = SizedTimes()
        self._rest = RecentTimes()
        self._wait = RecentTimes()
        self._refused_in_a_row = 0
        # By the powers of two of what a decision goes by, since the last one that went through for it.
        self._refused_alike: dict[tuple[int, ...], int] = {}

    def note_load(self, tokens: int, seconds: float) -> None:
        """Take the duration of a load that succeeded."""
        self._note(self._load.note, tokens, seconds)

    def note_compute(self, tokens: int, seconds: float) -> None:
        """Take the duration of a prefill of so many tokens, as a request had to wait for it."""
        self._note(self._compute.note, tokens, seconds)

    def note_rest(self, tokens: int, context: int, seconds: float) -> None:
        """Take the duration of a prefill of a few tokens behind others that were there, ``context`` in all.

        What such a step takes says nothing of what a token takes.
        """
        self._note(self._rest.note, (tokens, context), seconds)

    def note_wait(self, seconds: float) -> None:
        """Take what a request waited for a load beside the steps beyond what the load itself took."""
        # A load may end right before the server looks: that is a measurement, too.
        self._note(self._wait.note, (), max(seconds, 1e-6))

    def should_load(
        self, tokens: int, rest: int = 0, *, context: int | None = None, beside: bool = True
    ) -> Decision:
        """Return whether to load ``tokens`` tokens, and why. Counts the answer, so ask once a request.

        Args:
            tokens: tokens that would be loaded.
            rest: tokens that are computed after them in any case; 0 where that is not known.
            context: tokens of the whole prompt, those that the server holds among them.
            beside: whether the load goes on beside the server's steps; else ``rest`` is computed meanwhile.

        Raises ValueError for ``tokens`` below 1 or a negative ``rest``.
        """
        if tokens < 1 or rest < 0:
            raise ValueError(f"tokens must be at least 1 and rest at least 0, not {tokens} and {rest}")
        with self._lock:
            return self._decide(tokens, rest, context or tokens + rest, beside)

    def load_seconds(self, tokens: int) -> float | None:
        """Return how long a load of so many tokens is expected to take, None if too little was measured."""
        with self._lock:
            return self._load.predict(tokens) if self._load.known else None

    def compute_seconds(self, tokens: int) -> float | None:
        """Return how long computing so many tokens is expected to take, None if too little was measured."""
        with self._lock:
            return self._compute.predict(tokens) if self._compute.known else None

    def explain(self) -> str:
        """Return what is known, in one line."""
        with self._lock:
            return f"load: {_rate(self._load)}; compute: {_rate(self._compute.overall)}"

    def _note(self, note: Callable[[S, float], bool], size: S, seconds: float) -> None:
        with self._lock:
            taken = note(size, seconds)
        if not taken:
            self.counters.add("break_even_ignored")

    def _decide(self, tokens: int, rest: int, context: int, beside: bool) -> Decision:
        for name, model in (("load", self._load), ("compute", self._compute)):
            if not model.known:
                self.counters.add("break_even_loads")
                return Decision(
                    True, f"load: too few measurements of {name} yet ({model.samples} of {_ENOUGH})"
                )
        load, compute = self._load.predict(tokens), self._computing(tokens + rest, context)
        after = self._computing(rest, context) if rest else 0.0
        wait = self._wait.predict(()) if beside and rest else 0.0
        whole = load + wait + after if beside else max(load, after)
        numbers = f"{tokens} tokens: load {_ms(load)}, compute {_ms(compute)}"
        if rest:
            numbers = (
                f"{tokens} tokens and {rest} after them: load {_ms(load)}, wait {_ms(wait)}, "
                f"compute the rest {_ms(after)}; compute all {_ms(compute)}"
            )
        if whole <= compute * (1.0 + self._margin):
            self._refused_in_a_row = 0
            self.counters.add("break_even_loads")
            return Decision(True, f"load: {numbers}", load, compute)
        if self._is_probe(tokens, rest, context):
            self.counters.add("break_even_probes")
            return Decision(True, f"load to measure anew: {numbers}", load, compute)
        self.counters.add("break_even_refused")
        return Decision(False, f"compute: {numbers}", load, compute)

    def _is_probe(self, *sizes: int) -> bool:
        """Return whether a load goes through although it was to be refused; counts it as refused else."""
        alike = tuple(size.bit_length() for size in sizes)
        self._refused_in_a_row += 1
        self._refused_alike[alike] = count = self._refused_alike.get(alike, 0) + 1
        if max(count, self._refused_in_a_row) < self._probe_every:
            return False
        self._refused_in_a_row = self._refused_alike[alike] = 0
        return True

    def _computing(self, tokens: int, context: int) -> float:
        """Return what computing tokens takes.

        That is no less than a step of as few behind as many others, and no more than computing those as well.
        """
        # A line through whole prompts says nothing of a few tokens, nor of what they look back on.
        alone, everything = self._compute.predict(tokens), self._compute.predict(context)
        return max(alone, min(everything, self._rest.predict((tokens, context))))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _rate(model: TimeModel) -> str:
    if not model.known:
        return f"{model.samples} of {_ENOUGH} measurements"
    rate = model.seconds_per_token
    return (
        f"{rate * 1e6:.3g} us a token and {_ms(model.predict(0))} at least, of {model.samples} measurements"
    )
