# SPDX-License-Identifier: Apache-2.0
"""What becomes of prompts: how soon, and how often, another one goes on where one ended.

Learned while serving, from nothing but the prompts' own keys and times.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import NamedTuple

from tutti_engine.policies.ages import NUM_BUCKETS, WIDTHS, bucket_of, densities
from tutti_engine.policies.duel import Duel

__all__ = ["NUM_MARKS", "SHARED", "ReuseHistory", "length_class", "own_mark", "shared_mark"]

NUM_TURNS = 16
NUM_LENGTHS = 8
SHARED = NUM_TURNS * NUM_LENGTHS
"""First mark of what several prompts share; below it are the marks of what one conversation owns."""
NUM_SHARED = 16
NUM_MARKS = SHARED + NUM_SHARED

PRIOR_HITS = 20.0
"""Weight of the assumption that a class is like all: as much as so many hits."""

MIN_HITS = 64
"""Hits that have to be seen before anything is concluded."""

FIT_ROUNDS = 2

BACK = (0, 1, 2, 4, 8, 16, 32, 64)
"""How far before its end a prompt is recognised, in chunks, within the later half of what is its own."""

MIN_RECORDS, MAX_RECORDS = 4096, 16384


def length_class(num_chunks: int) -> int:
    """Return 0 to 7 for prompts of 1, 2, 4 … 128 and more chunks; one shorter than a chunk is in class 0.

    Its first whole chunk ends in the answer.
    """
    return min(NUM_LENGTHS, max(1, num_chunks).bit_length()) - 1


def own_mark(turn: int, num_chunks: int) -> int:
    """Return the mark of a prompt's own chunks.

    Args:
        turn: its number in its conversation, from 1.
        num_chunks: its length.
    """
    return (min(turn, NUM_TURNS) - 1) * NUM_LENGTHS + length_class(num_chunks)


def turn_of(mark: int) -> int:
    """Return the turn of an own mark, 0 of a shared one."""
    return 0 if mark >= SHARED else mark // NUM_LENGTHS + 1


def shared_mark(uses: int) -> int:
    """Return the mark of chunks that so many prompts started with: one class an octave."""
    return SHARED + min(NUM_SHARED, uses.bit_length()) - 1


class Record(NamedTuple):
    """The end of a prompt's own chunks, or of what it shares with others, at its last use.

    Attributes:
        mark: class of the chunks that end there.
        seconds: time of that use.
        uses: prompts that passed it, for a shared one.
        keys: the end and, for own chunks, some before it: the next turn may leave the last ones out.
        length: number of own chunks.
    """

    mark: int
    seconds: int
    uses: int
    keys: tuple[bytes, ...]
    length: int


class Match(NamedTuple):
    """What is known of a prompt's way. Depths are numbers of chunks, 0 for none.

    Attributes:
        depth: where the latest prompt that it goes on from is met.
        turn: that prompt's turn.
        shared: depth of what is known to be shared with others.
        uses: prompts that passed that.
    """

    depth: int = 0
    turn: int = 0
    shared: int = 0
    uses: int = 0


class ReuseHistory:
    """Remembers where the latest prompts ended, stored or not, and counts which were gone on with.

    For each mark and age: ends that were used again at that age, and ends that left the history then, or are
    that old. From those come rates. A rate is a product: of what all ends of one kind do at that age, of a
    factor of the turn and one of the length; or of a factor of the number of uses. Counts of a class alone
    would be too few to tell chance from habit.

    Args:
        num_records: ends to remember.
        num_chunks: chunks that the store holds.
    """

    def __init__(self, num_records: int, num_chunks: int) -> None:
        self.duel = Duel(num_chunks)
        self._num_records = max(MIN_RECORDS, min(MAX_RECORDS, num_records))
        self._records: OrderedDict[int, Record] = OrderedDict()
        # Key to number of its record and how far before the end it lies (see BACK), in one number.
        self._places: dict[bytes, int] = {}
        self._next = 0
        self._hits = [array("d", bytes(8 * NUM_BUCKETS)) for _ in range(NUM_MARKS)]
        self._ends = [array("d", bytes(8 * NUM_BUCKETS)) for _ in range(NUM_MARKS)]
        self._num_hits = 0.0
        self._until_fit = MIN_HITS
        self._until_aging = 4 * self._num_records
        self.table: list[list[float]] | None = None

    def known(self, keys: Sequence[bytes]) -> list[int]:
        """Return the positions of keys at which prompts ended, the deepest one first."""
        found = list(compress(range(len(keys)), map(self._places.__contains__, keys)))
        found.reverse()
        return found

    def find(self, keys: Sequence[bytes], known: Sequence[int] | None = None) -> Match:
        """Return what is known of a prompt's way; ``known``, if it is at hand, saves looking for it."""
        depth = turn = 0
        for position in self.known(keys) if known is None else known:
            record = self._records[self._places[keys[position]] // len(BACK)]
            if record.mark >= SHARED:
                return Match(depth, turn, position + 1, record.uses)
            if not depth:
                depth, turn = position + 1, turn_of(record.mark)
        return Match(depth, turn)

    def note(
        self,
        keys: Sequence[bytes],
        mark: int,
        shared_mark: int,
        shared: int,
        now: int,
        known: Sequence[int] | None = None,
    ) -> None:
        """Take note of a prompt: ends on its way were used again, and it has ends of its own.

        ``known``, if it is at hand, saves looking for it.
        """
        uses = 0
        # From the end: the first key of a record that is met is the deepest one.
        for position in self.known(keys) if known is None else known:
            place = self._places.get(keys[position])
            if place is not None:
                number, back = divmod(place, len(BACK))
                if self._records[number].mark < SHARED:
                    self.duel.use(number, self._records[number].length - BACK[back])
                record = self._forget(number)
                reused = max(0.0, 1.0 - BACK[back] / record.length)
                bucket = bucket_of(now - record.seconds)
                self._hits[record.mark][bucket] += reused
                self._ends[record.mark][bucket] += 1.0
                self._num_hits += reused
                if position + 1 == shared:
                    uses = record.uses
        if shared:
            self._remember(Record(shared_mark, now, uses + 1, (keys[shared - 1],), shared))
        own = len(keys) - shared
        if own > 0:
            ends = tuple(keys[-1 - back] for back in BACK if 2 * back <= own - 1)
            self._remember(Record(mark, now, 1, ends, own))
            self.duel.put(
                self._next, mark, own, now, None if self.table is None else partial(self._worth, now)
            )
        while len(self._records) > self._num_records:
            record = self._forget(next(iter(self._records)))
            self._ends[record.mark][bucket_of(now - record.seconds)] += 1.0
        self._until_aging -= 1
        if self._until_aging <= 0:
            self._age()
        self._until_fit -= 1
        if self._until_fit <= 0 and self._num_hits >= MIN_HITS:
            self._until_fit = max(MIN_HITS, len(self._records) // 16)
            self._fit(now)

    def _remember(self, record: Record) -> None:
        self._next += 1
        self._records[self._next] = record
        for back, key in enumerate(record.keys):
            self._places[key] = self._next * len(BACK) + back

    def _worth(self, now: int, mark: int, seconds: int) -> float:
        assert self.table is not None
        return self.table[mark][bucket_of(now - seconds)]

    def _forget(self, number: int) -> Record:
        record = self._records.pop(number)
        self.duel.drop(number)
        for key in record.keys:
            # A later record may have taken the place.
            if self._places.get(key, -1) // len(BACK) == number:
                del self._places[key]
        return record

    def _age(self) -> None:
        """Let old habits count half."""
        self._until_aging = 4 * self._num_records
        self._num_hits *= 0.5
        self.duel.fade()
        for counts in (*self._hits, *self._ends):
            for bucket in range(NUM_BUCKETS):
                counts[bucket] *= 0.5

    def _fit(self, now: int) -> None:
        ends = [array("d", counts) for counts in self._ends]
        for record in self._records.values():
            ends[record.mark][bucket_of(now - record.seconds)] += 1.0
        exposures = [exposure(counts) for counts in ends]
        own = fit_factors(
            self._hits[:SHARED],
            exposures[:SHARED],
            [[mark // NUM_LENGTHS for mark in range(SHARED)], [mark % NUM_LENGTHS for mark in range(SHARED)]],
        )
        shared = fit_factors(self._hits[SHARED:], exposures[SHARED:], [list(range(NUM_SHARED))])
        self.table = [densities(rates) for rates in (*own, *shared)]


def exposure(ends: array[float]) -> list[float] | None:
    """Return the seconds that a class spent in each bucket, from the ages at which its members ended.

    None if it has no members.
    """
    if not any(ends):
        return None
    seconds = [0.0] * NUM_BUCKETS
    alive = 0.0
    for bucket in range(NUM_BUCKETS - 1, -1, -1):
        here = ends[bucket]
        seconds[bucket] = (alive + 0.5 * here) * WIDTHS[bucket]
        alive += here
    return seconds


def fit_factors(
    hits: list[array[float]], exposures: list[list[float] | None], groupings: list[list[int]]
) -> list[list[float]]:
    """Return each class's hits a second at each age, as a product of factors.

    Args:
        hits: counts by class and bucket.
        exposures: seconds by class and bucket.
        groupings: for each factor the group of each class.
    """
    present = [n for n, seconds in enumerate(exposures) if seconds is not None]
    totals = [sum(counts) for counts in hits]
    hits_at = [sum(hits[n][bucket] for n in present) for bucket in range(NUM_BUCKETS)]
    factors = [[1.0] * (max(groups) + 1) for groups in groupings]
    product = [1.0] * len(hits)
    base = [0.0] * NUM_BUCKETS
    for _ in range(FIT_ROUNDS):
        weighted = [0.0] * NUM_BUCKETS
        for n in present:
            seconds, factor = exposures[n], product[n]
            assert seconds is not None
            weighted = [total + factor * one for total, one in zip(weighted, seconds)]
        base = [hit / total if total > 0 else 0.0 for hit, total in zip(hits_at, weighted)]
        expected = {n: sum(map(float.__mul__, base, exposures[n] or ())) for n in present}
        for factor_, groups in zip(factors, groupings):
            seen = [PRIOR_HITS] * len(factor_)
            due = [PRIOR_HITS] * len(factor_)
            for n in present:
                group = groups[n]
                seen[group] += totals[n]
                due[group] += expected[n] * product[n] / factor_[group]
            for group in range(len(factor_)):
                change = seen[group] / due[group] / factor_[group]
                factor_[group] *= change
                for n in present:
                    if groups[n] == group:
                        product[n] *= change
    for n in range(len(hits)):
        product[n] = 1.0
        for factor_, groups in zip(factors, groupings):
            product[n] *= factor_[groups[n]]
    return [[rate * product[n] for rate in base] for n in range(len(hits))]
