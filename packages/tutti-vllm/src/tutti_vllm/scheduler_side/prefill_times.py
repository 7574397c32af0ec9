# SPDX-License-Identifier: Apache-2.0
"""How long requests wait for their prefill, as far as vLLM's scheduler lets one see it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Prefill", "PrefillTimes"]


@dataclass(slots=True)
class Prefill:
    """A prefill under way: when it began, and from which token to which."""

    began: float
    first: int
    last: int


SMALL_REST = 8
"""A prefill of less than one in so many of its prompt's tokens takes the time of a step."""


class PrefillTimes:
    """Measures from a request's first step to the scheduling that knows its first new token.

    That is what the request waited, other requests' shares of its steps included. Requests whose step waits
    for a load are left out: the load would count as computation.
    """

    def __init__(
        self,
        note: Callable[[int, float], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        note_rest: Callable[[int, int, float], None] = lambda tokens, context, seconds: None,
    ) -> None:
        """``note`` is told tokens and seconds; ``note_rest``, of few tokens, the prompt's length as well."""
        self._note = note
        self._note_rest = note_rest
        self._clock = clock

    def begin(self, computed: int, wanted: int) -> Prefill:
        """Start to measure a request of ``wanted`` tokens, of which ``computed`` are there."""
        return Prefill(self._clock(), computed, wanted)

    def end(self, prefill: Prefill, tokens: int) -> bool:
        """Note a prefill if the request's ``tokens`` are more than at its begin; return whether."""
        if tokens <= prefill.last:
            return False
        count, seconds = prefill.last - prefill.first, self._clock() - prefill.began
        if 0 < count * SMALL_REST < prefill.last:
            self._note_rest(count, prefill.last, seconds)
        elif count > 0:
            self._note(count, seconds)
        return True
