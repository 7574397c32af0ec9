# SPDX-License-Identifier: Apache-2.0
"""How often keys were seen lately, in a few bytes a key."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FrequencySketch"]

ROWS = 4
MAX_COUNT = 15
AGE_AFTER = 10
"""The counts are halved after so many notes a slot of the store, as in TinyLFU."""

_HALVES = bytes(count // 2 for count in range(256))
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MASK64 = (1 << 64) - 1


class FrequencySketch:
    """A count-min sketch with conservative update: it may count too much, never too little.

    Args:
        num_keys: keys that it is to tell apart well; it takes 16 bytes for each.
    """

    def __init__(self, num_keys: int) -> None:
        self._shift = 64 - max(8, (4 * num_keys - 1).bit_length())
        self._rows = [bytearray(1 << (64 - self._shift)) for _ in range(ROWS)]
        self._until_aging = self._aging = AGE_AFTER * max(64, num_keys)

    def note(self, keys: Sequence[bytes]) -> None:
        """Count each key once more."""
        for key in keys:
            places = self._places(key)
            counts = [row[place] for row, place in zip(self._rows, places)]
            least = min(counts)
            if least < MAX_COUNT:
                for row, place, count in zip(self._rows, places, counts):
                    if count == least:
                        row[place] = least + 1
        self._until_aging -= len(keys)
        if self._until_aging <= 0:
            self._until_aging = self._aging
            self._rows = [row.translate(_HALVES) for row in self._rows]

    def estimate(self, key: bytes) -> int:
        """Return how often a key was seen lately, 0 to 15."""
        return min(row[place] for row, place in zip(self._rows, self._places(key)))

    def _places(self, key: bytes) -> list[int]:
        # Keys are digests or short names of tests: their first bytes tell them apart, once mixed.
        number = int.from_bytes(key[:8], "little") ^ len(key)
        return [((number * odd ^ number >> 31) & _MASK64) >> self._shift for odd in _ODD]
