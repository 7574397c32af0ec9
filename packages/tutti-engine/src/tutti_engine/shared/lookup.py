# SPDX-License-Identifier: Apache-2.0
"""What a shared store holds, as far as it was seen lately: the scheduler's view, which never waits.

A thread asks the store, many names at a time. What it said counts for a while: ``hit_seconds`` for a chunk
that is there, ``miss_seconds`` for one that is not. A verdict that is out of date costs a load that fails and
is computed, or a hit that is not seen.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tutti_engine.counters import Counters
from tutti_engine.geometry import Geometry
from tutti_engine.plan import ChunkKey
from tutti_engine.planning.breaker import Breaker
from tutti_engine.shared.object_header import ObjectNames
from tutti_engine.shared.prompt_tree import shared_length, take_apart
from tutti_engine.shared.store import SharedStore
from tutti_engine.shared.verdicts import bound, keep, leading_fresh

__all__ = ["LookupSettings", "Seen", "SharedLookup"]

logger = logging.getLogger(__name__)

NAMES_A_CALL = 1024
"""Names that one question to the store has at most, but those of one chunk stay together; and one removal."""

FIRST_LOOK = 64
"""Chunks that a walk asks for at first; then twice as many each time, so that a miss costs little."""

MAX_ANSWERS = 64
"""Prefixes whose whole answers are kept, beside the verdicts on single chunks."""

MAX_FORGOTTEN = 2
"""Generations of prompts that wait to be taken apart; more wait only where the thread hangs in the store."""

MAX_WALKS = 1024
"""Prefixes that wait to be looked for; more are not asked about, their requests go by what is known."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """How long verdicts count, and how long the store may take for one.

    Attributes:
        hit_seconds: a chunk that was seen counts as there.
        miss_seconds: a chunk that was missing counts as missing.
        call_seconds: a question that takes longer means that the store is not there, until it answers.
        max_chunks: verdicts of either kind that are kept.
    """

    hit_seconds: float = 30.0
    miss_seconds: float = 2.0
    call_seconds: float = 1.0
    max_chunks: int = 1 << 18


@dataclass(frozen=True, slots=True)
class _Answer:
    """Some neighbouring chunks that are all there; void once any chunk was missed that had been there."""

    keys: Sequence[ChunkKey]
    chunks: int
    end: float
    losses: int


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of a prefix is there.

    Attributes:
        chunks: leading chunks that were seen.
        decided: whether that is the whole answer; else a verdict on the next chunk is missing and was asked
            for.
    """

    chunks: int
    decided: bool


class SharedLookup:
    """Verdicts on chunks, each over all its objects: every rank's, of every group that keeps all of a prefix.

    Its counters: ``shared_lookups`` (questions to the store), ``shared_lookup_names``,
    ``shared_lookup_errors``, ``shared_lookup_hangs``, ``shared_lookup_drops`` (too many prefixes waited).

    Args:
        store: who is asked.
        names: how objects are called.
        parts: ranks that store a part of each chunk.
        geometry: groups of a chunk.
        settings: times and bounds.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: SharedStore,
        names: ObjectNames,
        parts: int,
        geometry: Geometry,
        settings: LookupSettings | None = None,
        *,
        counters: Counters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.settings = LookupSettings() if settings is None else settings
        self.breaker = Breaker(cooldown=1.0, max_cooldown=15.0, clock=clock)
        self._store = store
        self._names = names
        self._clock = clock
        used = [number for number, group in enumerate(geometry.groups) if group.layers]
        self._whole = [number for number in used if not geometry.groups[number].is_partial]
        self._partial = [number for number in used if geometry.groups[number].is_partial]
        self._objects = [(part, group) for part in range(parts) for group in (*self._whole, *self._partial)]
        # Until when a verdict counts; of chunks that are there also the partial groups that are.
        self._there: dict[ChunkKey, float] = {}
        self._groups: dict[ChunkKey, frozenset[int]] = {}
        self._missing: dict[ChunkKey, float] = {}
        # By their first keys; the thread leaves new ones for the next look.
        self._answers: dict[ChunkKey, _Answer] = {}
        self._new_answers: deque[_Answer] = deque(maxlen=MAX_ANSWERS)
        self._losses = 0
        # What was forgotten: the thread has the time to take it apart.
        self._forgotten: deque[dict[ChunkKey, Any]] = deque(maxlen=MAX_FORGOTTEN)
        self._old_answers: deque[_Answer] = deque(maxlen=MAX_ANSWERS)
        self._changed = threading.Condition()
        self._walks: deque[Sequence[ChunkKey]] = deque()
        self._asked: set[ChunkKey] = set()
        self._call_began: float | None = None
        self._hang_counted = False
        self._bad_names: list[str] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tutti-shared-lookup", daemon=True)
        self._thread.start()

    def look(self, keys: Sequence[ChunkKey], start: int = 0, stop: int | None = None) -> Seen:
        """Return what is known of a prefix, and ask for what is not; never waits.

        Takes O(hits) without a Python loop, and O(log hits) where the thread or an earlier look has gone
        through the prefix. What is kept of ``keys`` is a copy.

        Args:
            keys: a prompt's chunks.
            start: the first one that is asked about.
            stop: the first one behind them; by default all are asked about.
        """
        now = self._clock()
        stop = len(keys) if stop is None else min(stop, len(keys))
        chunks = self._known(keys, range(start, stop), now)
        at = start + chunks
        if at >= stop:
            return Seen(chunks, True)
        if self._missing.get(keys[at], 0.0) > now or not self.is_available():
            return Seen(chunks, True)
        return Seen(chunks, not self._ask(keys, range(at, stop)))

    def has_group(self, key: ChunkKey, group: int) -> bool:
        """Return whether a chunk that is there has a partial group's pages, on every rank."""
        return group in self._groups.get(key, ())

    def is_there(self, key: ChunkKey, now: float | None = None) -> bool:
        """Whether a chunk was seen lately; ``now`` spares the look at the clock where many are asked for."""
        return self._there.get(key, 0.0) > (self._clock() if now is None else now)

    def is_available(self) -> bool:
        """Whether the store answers, as far as is known; finds out that a question hangs."""
        began = self._call_began
        if began is not None and self._clock() - began > self.settings.call_seconds:
            if not self._hang_counted:
                self._hang_counted = True
                self.counters.add("shared_lookup_hangs")
            return False
        return self.breaker.would_allow()

    def note_there(self, keys: Sequence[ChunkKey], groups: Sequence[frozenset[int]] = ()) -> None:
        """Take note of chunks that were written or read just now, and of their partial groups.

        Neighbouring ones that were seen before are better given to ``note_read``.
        """
        end = self._clock() + self.settings.hit_seconds
        with self._changed:
            for position, key in enumerate(keys):
                self._keep_there(key, end, groups[position] if groups else frozenset())

    def note_read(self, keys: Sequence[ChunkKey]) -> None:
        """Take note of neighbouring chunks of a prompt that were read just now; takes no longer for many."""
        self._remember(_Answer(keys, len(keys), self._clock() + self.settings.hit_seconds, self._losses))

    def note_gone(self, keys: Sequence[ChunkKey], *, damaged: bool = False) -> None:
        """Take note of chunks that could not be read; ``damaged`` objects are removed from the store."""
        with self._changed:
            # Also where no verdict is left: an answer may hold one of them.
            self._losses += 1
            for key in keys:
                self._keep_missing(key)
            if damaged:
                self._bad_names += [
                    self._names.name(part, group, key) for key in keys for part, group in self._objects
                ]
                self._changed.notify_all()

    def forget(self) -> None:
        """Forget all verdicts."""
        with self._changed:
            for verdicts in (self._there, self._groups, self._missing):
                verdicts.clear()
            self._losses += 1

    def let_go(self, forgotten: dict[ChunkKey, Any]) -> None:
        """Have the thread take apart what a ``PromptTree`` does not need any more."""
        with self._changed:
            self._forgotten.append(forgotten)
            self._changed.notify_all()

    def close(self, timeout: float = 2.0) -> None:
        """End the thread; one that hangs in the store is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _known(self, keys: Sequence[ChunkKey], places: range, now: float) -> int:
        """Return how many leading chunks of ``places`` count as there."""
        while self._new_answers:
            self._remember(self._new_answers.popleft())
        losses, at, end = self._losses, places.start, math.inf
        while at < places.stop:
            answer = self._answers.get(keys[at])
            if answer is None or answer.losses != losses or answer.end <= now:
                break
            at = min(places.stop, at + min(answer.chunks, shared_length(answer.keys, keys, at)))
            end = min(end, answer.end)
        more, until = leading_fresh(self._there, keys, now, start=at, stop=places.stop)
        at += more
        chunks = at - places.start
        if more:
            self._remember(_Answer(list(keys[places.start : at]), chunks, min(end, until), losses))
        return chunks

    def _remember(self, answer: _Answer) -> None:
        """Keep an answer for the next look."""
        answers = self._answers
        answers.pop(answer.keys[0], None)
        answers[answer.keys[0]] = answer
        if len(answers) > MAX_ANSWERS:
            self._old_answers.append(answers.pop(next(iter(answers))))

    def _ask(self, keys: Sequence[ChunkKey], places: range) -> bool:
        """Have the thread look for a part of a prompt; return whether it will."""
        first = keys[places.start]
        with self._changed:
            if first in self._asked:
                return True
            if self._closed or len(self._walks) >= MAX_WALKS:
                self.counters.add("shared_lookup_drops")
                return False
            self._asked.add(first)
            self._walks.append(keys[places.start : places.stop])
            self._changed.notify_all()
            return True

    # The thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed:
                    return
                bad, self._bad_names = self._bad_names[:NAMES_A_CALL], self._bad_names[NAMES_A_CALL:]
                keys = self._walks.popleft() if self._walks else None
            while self._forgotten:
                take_apart(self._forgotten.popleft())
            while self._old_answers:
                self._old_answers.popleft()
            if bad:
                self._remove(bad)
            if keys is not None:
                heads = {keys[0]}
                try:
                    self._walk(keys, heads)
                finally:
                    with self._changed:
                        self._asked -= heads

    def _has_work(self) -> bool:
        return bool(self._walks or self._bad_names or self._forgotten or self._closed)

    def _walk(self, keys: Sequence[ChunkKey], heads: set[ChunkKey]) -> None:
        """Ask for a prefix piece by piece, up to the first chunk that is missing.

        Adds each piece's first key to ``heads`` and to what is being asked for before it can be missed.
        """
        start, size = 0, FIRST_LOOK
        most = max(1, NAMES_A_CALL // len(self._objects))
        losses, end = self._losses, self._clock() + self.settings.hit_seconds
        while start < len(keys) and self.breaker.allow():
            piece = keys[start : start + min(size, most)]
            behind = keys[start + len(piece) : start + len(piece) + 1]
            with self._changed:
                heads.update(behind)
                self._asked.update(behind)
            there = self._look_up(piece)
            if there:
                self._new_answers.append(_Answer(keys, start + there, end, losses))
            if there is None or there < len(piece):
                return
            start, size = start + len(piece), 2 * size

    def _look_up(self, keys: Sequence[ChunkKey]) -> int | None:
        """Ask for some chunks; return how many leading ones are there, None if the store did not say."""
        width = len(self._objects)
        names = [self._names.name(part, group, key) for key in keys for part, group in self._objects]
        self.counters.add("shared_lookups")
        self.counters.add("shared_lookup_names", len(names))
        self._hang_counted = False
        self._call_began = began = self._clock()
        try:
            # Whatever kind of collection a store gives: what raises outside of here would end this thread.
            found = list(self._store.exists(names))
            if len(found) != len(names):
                raise OSError(f"the store gave {len(found)} answers for {len(names)} names")
        except Exception as error:
            self.counters.add("shared_lookup_errors")
            self._note_failure(str(error))
            return None
        finally:
            self._call_began = None
        if self._clock() - began > self.settings.call_seconds:
            # What it said is true, but nobody has time for it.
            self._note_failure("it takes too long")
        else:
            if self.breaker.is_open:
                logger.info("Tutti: the shared store says again what it holds.")
            self.breaker.succeeded()
        # All of a prefix, as a rule.
        leading = next((at for at, there in enumerate(found) if not there), len(found)) // width
        if self._partial:
            leading = 0
        self._take_whole(keys[:leading])
        rows = [found[at : at + width] for at in range(leading * width, len(found), width)]
        return leading + self._take(keys[leading:], rows)

    def _note_failure(self, why: str) -> None:
        if self.breaker.failed():
            logger.warning("Tutti: the shared store does not say what it holds, go on without: %s", why)

    def _take_whole(self, keys: Sequence[ChunkKey]) -> None:
        """Note that each object of some chunks is there, without a Python loop."""
        there, missing = self._there, self._missing
        with self._changed:
            for key in list(filter(missing.__contains__, keys)):
                del missing[key]
            there.update(dict.fromkeys(keys, self._clock() + self.settings.hit_seconds))
            bound(there, self.settings.max_chunks)

    def _take(self, keys: Sequence[ChunkKey], rows: Sequence[Sequence[bool]]) -> int:
        end = self._clock() + self.settings.hit_seconds
        leading = 0
        with self._changed:
            for at, (key, row) in enumerate(zip(keys, rows)):
                missing = {group for (_, group), there in zip(self._objects, row) if not there}
                partial = frozenset(self._partial) - missing
                if missing.isdisjoint(self._whole) and (self._whole or partial):
                    self._keep_there(key, end, partial)
                    leading += leading == at
                else:
                    self._keep_missing(key)
        return leading

    def _remove(self, names: Sequence[str]) -> None:
        self._begin_call()
        try:
            self._store.remove(names)
        except Exception as error:
            logger.warning("Tutti: damaged objects stay in the shared store: %s", error)
        finally:
            self._call_began = None

    def _begin_call(self) -> None:
        """Note since when the store is waited for: one that takes too long is not there."""
        self._hang_counted = False
        self._call_began = self._clock()

    def _keep_there(self, key: ChunkKey, end: float, groups: frozenset[int]) -> None:
        self._missing.pop(key, None)
        if self._partial:
            self._groups[key] = groups
        keep(self._there, key, end, self.settings.max_chunks)
        if len(self._groups) > 2 * self.settings.max_chunks:
            self._groups = {each: self._groups.get(each, frozenset()) for each in self._there}

    def _keep_missing(self, key: ChunkKey) -> None:
        self._losses += self._there.pop(key, None) is not None
        self._groups.pop(key, None)
        keep(self._missing, key, self._clock() + self.settings.miss_seconds, self.settings.max_chunks)
