# SPDX-License-Identifier: Apache-2.0
"""One runtime, a few thousand random operations on it, and the model beside it."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tutti_runtime.errors import BusyError, InvalidHandleError
from tutti_runtime.host_memory import HostMemory
from tutti_runtime.ordering import Gate, WordDependency
from tutti_runtime.requests import FLUSH, REQUEST_DTYPE
from tutti_runtime.testing import plans
from tutti_runtime.testing.fuzz.batches import Flight, Segment, bad_rows, make_segment, segment_rows
from tutti_runtime.testing.fuzz.model import PAGE, MemoryModel, TargetModel, as_pages, expect
from tutti_runtime.testing.subjects import faults_of, make_subject

__all__ = ["EpisodeReport", "run_episode"]

_PAGES = 512
_MAX_FLIGHTS = 6
_WORDS = 64  # pairs of gate words, and as many words to wait for, in one memory
_GIVE_UP = 60.0


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """What an episode did: ``operations`` are requests given to ``submit`` and calls of other methods."""

    kind: str
    operations: int
    accepted: int
    failed: int
    late: int


def run_episode(kind: str, seed: int, number: int, operations: int, folder: Path) -> EpisodeReport:
    """Run at least ``operations`` operations on a runtime of ``kind`` (see ``subjects.KINDS``).

    Raises :class:`Mismatch`, and ``OSError`` where this machine does not have what the kind needs.
    """
    episode = _Episode(kind, np.random.default_rng([seed, number]), folder)
    try:
        while episode.operations < operations:
            episode.step()
        return episode.finish()
    finally:
        episode.runtime.faults.heal()
        episode.words.view(np.uint64)[2 * _WORDS :] = 1
        episode.runtime.shutdown(_GIVE_UP)


class _Episode:
    """The model and the calls; one method for each kind of step."""

    def __init__(self, kind: str, random: np.random.Generator, folder: Path) -> None:
        self.random = random
        self.max_in_flight = int(random.choice([5, 200, 900, 4096, 4096]))
        self.subject = make_subject(kind, folder, max_in_flight=self.max_in_flight)
        self.runtime = faults_of(self.subject)
        self.noise = random.integers(0, 1 << 63, (61, PAGE // 8), dtype=np.uint64)
        self.memories = [self._memory() for _ in range(2)]
        self.targets = [self._target() for _ in range(3)]
        words, self.word_memory = self.subject.memory(PAGE)
        self.words = words.bytes
        self.flights: deque[Flight] = deque()
        self.unseen: list[Flight] = []
        self.stale_targets: list[int] = []
        self.stale_batches: list[int] = []
        self.may_fail = False
        self.stamp = 0
        self.words_used = 0
        self.operations = 8
        self.submitted = self.accepted = self.failed = self.late = 0
        self.steps: list[tuple[float, Callable[[], None]]] = [
            (0.40, self.submit),
            (0.30, self.collect),
            (0.05, self.poll),
            (0.03, self.cancel),
            (0.02, self.abandon),
            (0.04, self.reopen),
            (0.02, self.register_again),
            (0.05, self.change_plan),
            (0.03, self.release),
            (0.02, self.use_stale_handles),
            (0.02, self.check_facts),
            (0.02, self.drain),
        ]
        self.chances = np.cumsum([chance for chance, _ in self.steps])

    def _memory(self) -> MemoryModel:
        host = HostMemory(_PAGES * PAGE)
        return MemoryModel(host, self.runtime.register_memory(host.address, host.size))

    def _target(self) -> TargetModel:
        made = self.subject.target(_PAGES * PAGE)
        return TargetModel(made, self.runtime.open(made.uri), writable=True)

    def step(self) -> None:
        """One random step."""
        drawn = self.random.random() * self.chances[-1]
        self.steps[int(np.searchsorted(self.chances, drawn, side="right"))][1]()
        self.operations += 1

    # --- submission

    def submit(self) -> None:
        """A batch of one to three kinds of good requests, bad ones and flushes, in random order."""
        if len(self.flights) >= _MAX_FLIGHTS:
            self.collect()
            return
        segments = [segment for segment in map(self._segment, range(self._int(1, 4))) if segment is not None]
        if self.random.random() < 0.02:
            none = np.zeros((1, 0), np.intp)
            segments.append(Segment(FLUSH, self._open_target(), None, np.arange(1), none, none))
        bad, bad_errors = bad_rows(
            self.random,
            int(self.random.choice([0, 0, 2, 40])),
            self._open_target(),
            self.memories[0],
            self.stale_targets,
        )
        good = [segment_rows(segment) for segment in segments]
        rows = np.concatenate([np.zeros(0, REQUEST_DTYPE), *good, bad])
        wanted = np.zeros(len(rows), np.int32)
        wanted[len(rows) - len(bad) :] = bad_errors
        order = self.random.permutation(len(rows))
        self._submit(segments, rows[order], wanted[order], np.argsort(order))

    def _segment(self, _: int) -> Segment | None:
        target = self._open_target()
        memory = self.memories[self._int(0, len(self.memories))]
        length = int(self.random.choice([1, 1, 1, 2, 4, 16]))
        segment = make_segment(self.random, target, memory, length, int(self.random.choice([1, 8, 300])))
        if segment is not None and segment.direction and self.random.random() < 0.7:
            pages = segment.memory_pages.ravel()
            memory.fill(pages, self.noise, self.stamp)
            self.stamp += len(pages)
        return segment

    def _submit(
        self, segments: list[Segment], rows: np.ndarray, wanted: np.ndarray, places: np.ndarray
    ) -> None:
        timeout = float(self.random.choice([0.0, 0.0005, 5.0])) if self.random.random() < 0.1 else None
        number = self._free_word()
        gated = number is not None and self.random.random() < 0.2
        held = number is not None and self.random.random() < 0.05
        gate = Gate(self.word_memory, number * 16, 1) if gated and number is not None else None
        after = None
        if held and number is not None:
            after = WordDependency(self.word_memory, (2 * _WORDS + number) * 8, 1)
        result = self.runtime.submit(rows, timeout=timeout, gate=gate, after=after)
        self.operations += len(rows)
        self.submitted += len(rows)
        self._check_answers(result.accepted, result.errors, wanted)
        numbers = np.cumsum(result.accepted) - 1
        kept = []
        begin = 0
        for segment in segments:
            mine = places[begin : begin + len(segment.items)]
            begin += len(mine)
            segment.lock(free=True)
            taken = result.accepted[mine]
            if taken.any():
                kept.append(segment.part(taken, numbers[mine[taken]]))
        for segment in kept:
            segment.lock(free=False)
        count = int(result.accepted.sum())
        self.accepted += count
        expect((result.handle is None) == (count == 0), "a handle comes with accepted requests")
        if gated and result.handle is None:
            self._check_gate(number, result.errors)
        if result.handle is not None:
            self.flights.append(
                Flight(
                    result.handle,
                    count,
                    kept,
                    self.subject.whole_items,
                    may_fail=self.may_fail,
                    deadline=timeout is not None,
                    gate=(number, result.errors) if gated and number is not None else None,
                    held=number if held else None,
                )
            )

    def _check_answers(self, accepted: np.ndarray, errors: np.ndarray, wanted: np.ndarray) -> None:
        bad = wanted != 0
        expect((errors[bad] == wanted[bad]).all(), "errors of bad requests", errors[bad], wanted[bad])
        expect(np.array_equal(accepted, errors == 0), "what is accepted has no error")
        good = errors[~bad]
        expect(np.isin(good, (0, errno.EAGAIN)).all(), "errors of good requests", good)
        count = int((good == 0).sum())
        expect((good[:count] == 0).all(), "requests are accepted in their order", good)
        accept = self.runtime.faults.plan.accept
        most = len(good) if accept is None else min(len(good), accept)
        least = min(most, max(0, self.max_in_flight - self._outstanding()))
        expect(least <= count <= min(most, self.max_in_flight), "accepted requests", count, least, most)

    def _outstanding(self) -> int:
        return sum(flight.count for flight in [*self.flights, *self.unseen])

    # --- results

    def collect(self) -> None:
        """Take the results of a batch if they are there in a moment."""
        if self.flights:
            index = self._int(0, len(self.flights))
            self._let_go(self.flights[index])
            self._collect(index, float(self.random.choice([0.0, 0.002])))

    def _collect(self, index: int, timeout: float) -> bool:
        flight = self.flights[index]
        try:
            done = self.runtime.wait(flight.handle, timeout)
        except TimeoutError:
            return False
        del self.flights[index]
        self.stale_batches = [*self.stale_batches[-3:], flight.handle]
        if flight.gate is not None:
            errors = flight.gate[1].copy()
            errors[errors == 0] = done.status
            self._check_gate(flight.gate[0], errors)
        self.failed += int((done.status != 0).sum())
        late = flight.settle(done)
        if late is not None:
            self.flights.append(late)
            self.late += late.count
        if flight.deadline:
            self._check_late()
        return True

    def _check_late(self) -> None:
        """Every item that a device holds after its deadline is one of a batch that the model knows of."""
        stats = self.runtime.stats()
        known = sum(f.count for f in [*self.flights, *self.unseen] if f.deadline or f.late)
        expect(stats["late"] - stats["late_done"] <= known, "items are late that nobody was told of", stats)

    def poll(self) -> None:
        """A batch that has finished is there at once."""
        if self.flights:
            index = self._int(0, len(self.flights))
            if self.runtime.poll(self.flights[index].handle):
                expect(self._collect(index, 0.0), "a batch that has finished is waited for without waiting")

    def cancel(self) -> None:
        """Cancel a batch; its results still have to be collected."""
        if self.flights:
            flight = self.flights[self._int(0, len(self.flights))]
            self.runtime.cancel(flight.handle)
            flight.canceled = flight.canceled or not flight.late or not flight.whole_items

    def abandon(self) -> None:
        """Give a small batch up; what became of it is seen only at the next :meth:`drain`."""
        small = [i for i, flight in enumerate(self.flights) if flight.count <= 64]
        if small:
            flight = self.flights[small[0]]
            del self.flights[small[0]]
            self._let_go(flight)
            self.runtime.abandon(flight.handle)
            self.stale_batches = [*self.stale_batches[-3:], flight.handle]
            self.unseen.append(flight)

    def drain(self) -> None:
        """Let everything end, then compare all memory with the model."""
        self.change_plan(healthy=True)
        for flight in [*self.flights, *self.unseen]:
            self._let_go(flight)
        while self.flights:
            expect(self._collect(0, _GIVE_UP), f"a batch of a healthy device ends within {_GIVE_UP} s")
        give_up = time.monotonic() + _GIVE_UP
        while True:
            stats = self.runtime.stats()
            if stats["completed"] == stats["accepted"] and stats["late"] == stats["late_done"]:
                break
            expect(time.monotonic() < give_up, "everything ends", stats)
            time.sleep(0.0005)
        for flight in self.unseen:
            flight.settle_unseen()
        self.unseen.clear()
        for memory in self.memories:
            memory.check()

    # --- ordering

    def _free_word(self) -> int | None:
        """A gate and a word to wait for that nothing uses; all are used once between two drains."""
        self.words_used += 1
        number = self.words_used % _WORDS
        users = [*self.flights, *self.unseen]
        if any(number in (user.held, user.gate[0] if user.gate else None) for user in users):
            return None
        if any(user.late for user in users):
            return None  # the words of what is late are not known any more
        words = self.words.view(np.uint64)
        words[2 * number : 2 * number + 2] = 0
        words[2 * _WORDS + number] = 0
        return number

    def _let_go(self, flight: Flight) -> None:
        if flight.held is not None:
            self.words.view(np.uint64)[2 * _WORDS + flight.held] = 1
            flight.held = None

    def _check_gate(self, number: int | None, errors: np.ndarray) -> None:
        expect(number is not None, "a gate has a word")
        word, status = self.words.view(np.uint64)[2 * (number or 0) : 2 * (number or 0) + 2].tolist()
        failed = errors[errors != 0]
        expect(word == 1, "the gate of a batch that has finished is open", number)
        expect(status == (failed[0] if len(failed) else 0), "status of a gate", status, failed[:1])

    # --- everything else

    def reopen(self) -> None:
        """Close a target and open it again; one in use may be refused and then stays."""
        target = self.targets[self._int(0, len(self.targets))]
        assert target.handle is not None
        busy = any(s.target is target for f in [*self.flights, *self.unseen] for s in f.segments)
        try:
            self.runtime.close(target.handle)
        except BusyError:
            expect(busy, "a target without I/O can be closed")
            return
        self.stale_targets = [*self.stale_targets[-3:], target.handle]
        target.writable = bool(self.random.random() < 0.8)
        target.handle = self.runtime.open(target.made.uri, writable=target.writable)
        self.operations += 1

    def register_again(self) -> None:
        """Unregister memory and register it again; some in use may be refused and then stays."""
        memory = self.memories[self._int(0, len(self.memories))]
        busy = any(s.memory is memory for f in [*self.flights, *self.unseen] for s in f.segments)
        try:
            self.runtime.unregister_memory(memory.handle)
        except BusyError:
            expect(busy, "memory without I/O can be unregistered")
            return
        memory.handle = self.runtime.register_memory(memory.host.address, memory.host.size)
        self.operations += 1

    def change_plan(self, *, healthy: bool = False) -> None:
        """Make the device healthy, or ill in one way or two."""
        if healthy or self.random.random() < 0.4:
            self.runtime.faults.heal()
            self.may_fail = False
            return
        every = self._int(2, 40)
        ways = [
            plans.delayed((0.0, 0.002), every=every),
            plans.reordering(self._int(2, 33), seed=self._int(0, 1000)),
            plans.failing(errno.ENOSPC, every=every),
            plans.failing(errno.EIO, every=every, direction="read"),
            plans.short(PAGE * self._int(0, 3), every=every),
            plans.hanging(every=every, times=20),
            plans.accepting(self._int(0, 200)),
        ]
        first, second = (ways[i] for i in self.random.choice(len(ways), 2, replace=False))
        plan = first + second if self.random.random() < 0.3 else first
        self.runtime.faults.set_plan(plan)
        self.may_fail = any(rule.error or rule.short is not None for rule in plan.rules)
        for flight in self.flights:  # what waits in a queue meets the new plan
            flight.may_fail = flight.may_fail or self.may_fail

    def release(self) -> None:
        """Let what hangs go on."""
        self.runtime.faults.release()

    def use_stale_handles(self) -> None:
        """A handle that was given back is an error, and never somebody else's."""
        calls: list[tuple[Callable[[int], object], int]] = []
        calls += [(call, h) for h in self.stale_batches for call in (self.runtime.poll, self.runtime.abandon)]
        calls += [(call, h) for h in self.stale_targets for call in (self.runtime.query, self.runtime.close)]
        for call, handle in calls:
            self.operations += 1
            try:
                call(handle)
            except InvalidHandleError:
                continue
            expect(False, "a handle that was given back is refused", call, handle)

    def check_facts(self) -> None:
        """Counters and targets are what the model says."""
        stats = self.runtime.stats()
        counted = (stats["submitted"], stats["accepted"], stats["rejected"])
        expect(
            counted == (self.submitted, self.accepted, self.submitted - self.accepted), "counters", counted
        )
        target = self._open_target()
        assert target.handle is not None
        facts = self.runtime.query(target.handle)
        expect((facts["size"], facts["writable"]) == (target.made.size, target.writable), "query", facts)

    def finish(self) -> EpisodeReport:
        """End everything and compare all bytes, through the runtime and without it."""
        self.drain()
        memory = self.memories[0]
        for target in self.targets:
            assert target.handle is not None
            pages = np.arange(_PAGES)
            row = np.zeros(1, REQUEST_DTYPE)
            row["memory"], row["target"], row["length"] = memory.handle, target.handle, _PAGES * PAGE
            answer = self.runtime.submit(row)
            self.submitted += 1
            self.accepted += 1
            expect(answer.handle is not None, "the last read is accepted", answer.errors)
            done = self.runtime.wait(answer.handle or 0, _GIVE_UP)
            expect(not done.status.any(), "the last read succeeds", done.status)
            target.see(pages, memory.live, "the last read")
            if target.made.contents is not None:
                same = np.array_equal(as_pages(target.made.contents()), target.data)
                expect(same, f"the files of {target.made.uri} hold what the model says")
        self.check_facts()
        return EpisodeReport(self.subject.name, self.operations + 9, self.accepted, self.failed, self.late)

    def _open_target(self) -> TargetModel:
        return self.targets[self._int(0, len(self.targets))]

    def _int(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high))
