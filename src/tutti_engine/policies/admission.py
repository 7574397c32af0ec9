# SPDX-License-Identifier: Apache-2.0
"""Which chunks are worth a write: most are never used again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tutti_engine.policies.frequency import FrequencySketch

__all__ = ["AdmissionPolicy", "Always", "SecondSight", "TinyLfu"]


class AdmissionPolicy(ABC):
    """Says yes or no to single chunks. All calls come from one thread."""

    name: str

    @abstractmethod
    def begin(self, keys: Sequence[bytes]) -> None:
        """Take note of a prompt's chunks, stored or not."""

    @abstractmethod
    def admits(self, key: bytes, victim: Callable[[], bytes | None]) -> bool:
        """Return whether a chunk is to be stored.

        ``victim`` returns the key of who would have to go, None while there is room.
        """


class Always(AdmissionPolicy):
    """Every chunk."""

    name = "always"

    def begin(self, keys: Sequence[bytes]) -> None:
        pass

    def admits(self, key: bytes, victim: Callable[[], bytes | None]) -> bool:
        return True


class SecondSight(AdmissionPolicy):
    """A chunk that prompts had before: the second time by default.

    Halves the writes of a server whose prompts are mostly new, at the price of each chunk's first reuse.
    """

    name = "second_sight"

    def __init__(self, num_slots: int, sights: int = 2) -> None:
        self._sketch = FrequencySketch(num_slots)
        self._sights = sights

    def begin(self, keys: Sequence[bytes]) -> None:
        self._sketch.note(keys)

    def admits(self, key: bytes, victim: Callable[[], bytes | None]) -> bool:
        return self._sketch.estimate(key) >= self._sights


class TinyLfu(AdmissionPolicy):
    """A chunk that was seen at least as often lately as the one that would have to go.

    After Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy" (2017).
    """

    name = "tinylfu"

    def __init__(self, num_slots: int) -> None:
        self._sketch = FrequencySketch(num_slots)

    def begin(self, keys: Sequence[bytes]) -> None:
        self._sketch.note(keys)

    def admits(self, key: bytes, victim: Callable[[], bytes | None]) -> bool:
        other = victim()
        return other is None or self._sketch.estimate(key) >= self._sketch.estimate(other)
