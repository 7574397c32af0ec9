# SPDX-License-Identifier: Apache-2.0
"""Whether loading a hit is faster than computing it again: measured, never assumed (DESIGN section 8).

A request whose hit is loaded beside the server's steps waits for the load, then until the server has heard
of it and plans its step, then for what is left of its prompt, however little that is: a step has a fixed
cost. Together that is compared with computing all of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tutti_engine.counters import Counters
from tutti_engine.planning.time_models import ENOUGH, RecentTimes, SizedTimes, TimeModel

__all__ = ["BreakEven", "Decision"]

S = TypeVar("S")


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
                    True, f"load: too few measurements of {name} yet ({model.samples} of {ENOUGH})"
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
        return f"{model.samples} of {ENOUGH} measurements"
    rate = model.seconds_per_token
    return (
        f"{rate * 1e6:.3g} us a token and {_ms(model.predict(0))} at least, of {model.samples} measurements"
    )
