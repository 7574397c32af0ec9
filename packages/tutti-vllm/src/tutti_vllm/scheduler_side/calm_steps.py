# SPDX-License-Identifier: Apache-2.0
"""Which steps need not be looked at, because their requests only go on within their chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CalmSteps"]


@dataclass(slots=True)
class _Batch:
    requests: int
    last: str
    steps: int


class CalmSteps:
    """Counts down until the first request of a batch ends its chunk, if each computes a token a step.

    A server makes thousands of such steps a minute, and what they touch drives the model's own data from the
    processor's caches: so a batch is known by its first and its last request and their number. Pipeline
    stages hold several batches, which take turns.

    Attributes:
        lasts: whether the last step was one of them, or they begin after it.
    """

    def __init__(self) -> None:
        self._batches: dict[str, _Batch] = {}
        self.lasts = False

    def end(self) -> None:
        """Have every batch looked at again: there is news."""
        self._batches.clear()
        self.lasts = False

    def begin(self, scheduled_tokens: dict[str, int], left: int) -> None:
        """Take note of a step that was looked at: its batch ends no chunk before the step number ``left``."""
        self.lasts = left > 1 and bool(scheduled_tokens)
        if self.lasts:
            last = next(reversed(scheduled_tokens))
            self._batches[next(iter(scheduled_tokens))] = _Batch(len(scheduled_tokens), last, left - 1)

    def goes_on(self, scheduled_tokens: dict[str, int], draft_tokens: Mapping[str, Sequence[int]]) -> bool:
        """Return whether a step is one of those, and count it; one that is not is to be looked at."""
        self.lasts = self._counted(scheduled_tokens, draft_tokens)
        return self.lasts

    def _counted(self, scheduled_tokens: dict[str, int], draft_tokens: Mapping[str, Sequence[int]]) -> bool:
        if not self._batches or not scheduled_tokens:
            return False
        first, count = next(iter(scheduled_tokens)), len(scheduled_tokens)
        batch = self._batches.get(first)
        if batch is None:
            return False
        if count != batch.requests or next(reversed(scheduled_tokens)) != batch.last:
            # Requests may have gone from one batch to another.
            self._batches.clear()
            return False
        if draft_tokens or not batch.steps or sum(scheduled_tokens.values()) != count:
            del self._batches[first]
            return False
        batch.steps -= 1
        return True
