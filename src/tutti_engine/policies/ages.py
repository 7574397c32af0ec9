# SPDX-License-Identifier: Apache-2.0
"""Ages in buckets that grow with the age, three to the octave, from a second to half a year."""

from __future__ import annotations

from itertools import accumulate, pairwise

__all__ = ["NUM_BUCKETS", "STARTS", "WIDTHS", "bucket_of", "densities"]

BUCKETS_PER_OCTAVE = 3

NUM_BUCKETS = 24 * BUCKETS_PER_OCTAVE

STARTS = (0.0, *(2.0 ** (bucket / BUCKETS_PER_OCTAVE) for bucket in range(NUM_BUCKETS)))
"""Where each bucket starts, in seconds; one more for where the last one ends."""

WIDTHS = tuple(end - start for start, end in pairwise(STARTS))

_FINE = 256
# It must cost next to nothing: a table for small ages, for larger ones after shifts by whole octaves.
_BUCKETS = [max(b for b in range(NUM_BUCKETS) if STARTS[b] <= age) for age in range(_FINE)]


def bucket_of(age: int) -> int:
    """Return the bucket of an age in whole seconds; negative ages count as none, huge ones as the largest."""
    if age < _FINE:
        return _BUCKETS[age] if age > 0 else 0
    octaves = age.bit_length() - 8
    return min(NUM_BUCKETS - 1, _BUCKETS[age >> octaves] + octaves * BUCKETS_PER_OCTAVE)


def densities(rates: list[float]) -> list[float]:
    """Return what a place is worth that holds something, at each age: hits a second of holding it.

    It is held as long as that pays, so the value at age ``a`` is the largest over all ``b > a`` of (chance of
    a hit between ``a`` and ``b``) / (seconds it is held until the hit or ``b``). That is Gittins' index of
    the choice to hold or let go.

    Args:
        rates: hits a second at each age, of what has lived so long.
    """
    survival = [1.0]
    for rate, width in zip(rates, WIDTHS):
        # 1 - exp(-x) for small x, and never negative, without a call.
        x = rate * width
        survival.append(survival[-1] / (1.0 + x + 0.5 * x * x))
    held = (0.5 * (one + two) * width for one, two, width in zip(survival, survival[1:], WIDTHS))
    times = list(accumulate(held, initial=0.0))
    # The largest slope from point a to any later one is the slope of the upper hull of what lies behind a.
    values = [0.0] * NUM_BUCKETS
    hull = [NUM_BUCKETS]
    for a in range(NUM_BUCKETS - 1, -1, -1):
        while len(hull) > 1:
            near, far = hull[-1], hull[-2]
            gain_near, gain_far = survival[a] - survival[near], survival[a] - survival[far]
            if gain_near * (times[far] - times[a]) > gain_far * (times[near] - times[a]):
                break
            hull.pop()
        near = hull[-1]
        duration = times[near] - times[a]
        values[a] = (survival[a] - survival[near]) / duration if duration > 0 else 0.0
        hull.append(a)
    return values
