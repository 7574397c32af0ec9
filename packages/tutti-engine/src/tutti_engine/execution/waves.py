# SPDX-License-Identifier: Apache-2.0
"""Segments that travel together, and the staging slots they hold until nothing can touch them any more."""

from __future__ import annotations

import errno
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tutti_engine.backend import SegmentBatch, SegmentHandle
from tutti_engine.block_rows import pick
from tutti_engine.columns import by_layer, id_column, numbers, slot_column
from tutti_engine.execution.ring_window import SlotBank
from tutti_engine.plan import LoadPlan, StorePlan

__all__ = ["Chosen", "Plan", "Submit", "Wait", "Wave"]

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05

Plan: TypeAlias = LoadPlan | StorePlan
Submit: TypeAlias = Callable[[SegmentBatch], SegmentHandle]
Wait: TypeAlias = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some chunks of a wave as a mover wants them: ``slots`` goes layer by layer."""

    positions: Sequence[int]
    block_ids: Sequence[Sequence[int]]
    slots: array[int]


class Wave:
    """Chunks of one plan, each in neighbouring slots, that travel in one batch.

    Attributes:
        plan: the plan.
        positions: the chunks' positions in it.
        layers: the layers of theirs that travel, all of one group.
        started: when the wave was made, in ``time.monotonic()`` seconds.
    """

    def __init__(
        self,
        plan: Plan,
        bank: SlotBank,
        positions: Sequence[int],
        first_slots: Sequence[int],
        layers: Sequence[int],
        group: int = 0,
    ) -> None:
        self.plan = plan
        self.positions = positions
        self.layers = layers
        self.started = time.monotonic()
        self.handle: SegmentHandle | None = None
        self._bank = bank
        self._group = group
        self._first_slots = first_slots
        # Of a store, for a backend that wants them: the checksums, layer by layer.
        self.sums: array[int] = array("Q")
        # What the handle stands for, as indices into positions x layers; None is all.
        self._segments: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.positions) * len(self.layers)

    def submit(self, submit: Submit) -> None:
        """Start what is still to be moved."""
        self.handle = submit(self._batch())

    def finish(self, submit: Submit, wait_for_room: Wait, deadline: float) -> dict[int, int] | None:
        """Wait for the end and repeat what the backend had no room for; return each failed position's errno.

        None stands for a wave that is still in flight when ``time.monotonic()`` reaches ``deadline``.
        """
        errors: dict[int, int] = {}
        pause = _FIRST_PAUSE
        while True:
            assert self.handle is not None
            if not self.handle.wait(deadline):
                return None
            refused = self._collect(errors)
            if not refused:
                return errors
            now = time.monotonic()
            if now >= deadline:
                for segment in refused:
                    errors.setdefault(self._position(segment), errno.EAGAIN)
                return errors
            wait_for_room(min(deadline, now + pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._segments = refused
            self.submit(submit)

    def quiet(self) -> bool:
        """Whether no I/O can reach the slots; a backend that cannot say is taken at its worst."""
        try:
            return self.handle is None or self.handle.poll()
        except Exception:
            return False

    def release(self) -> None:
        """Give all slots back."""
        self._bank.release_all(self._first_slots, len(self.layers))

    def choose(self, errors: Mapping[int, int]) -> Chosen:
        """Return what did not fail, for the mover."""
        positions, first_slots = self.positions, self._first_slots
        if errors:
            good = [index for index, position in enumerate(positions) if position not in errors]
            positions = [positions[index] for index in good]
            first_slots = [first_slots[index] for index in good]
        return Chosen(
            positions,
            pick(self.plan.columns.groups[self._group], positions),
            by_layer(slot_column(first_slots, len(self.layers)), len(self.layers)),
        )

    def read_sums(self, positions: Sequence[int]) -> array[int] | None:
        """Return the checksums that came with what was read, layer by layer, of some of the positions.

        None from a backend that keeps none: the plan has them.
        """
        find = getattr(self.handle, "checksums", None)
        if find is None:
            return None
        words, width = find(), len(self.layers)
        if len(words) != len(self):
            raise RuntimeError(f"the backend gave {len(words)} checksums for {len(self)} segments")
        if len(positions) == len(self.positions):
            return by_layer(words, width)
        place = {position: index * width for index, position in enumerate(self.positions)}
        chosen = array("Q")
        for position in positions:
            chosen.extend(words[place[position] : place[position] + width])
        return by_layer(chosen, width)

    def _batch(self) -> SegmentBatch:
        width = len(self.layers)
        chunk_ids = self.plan.columns.chunk_ids
        batch = SegmentBatch(
            id_column([chunk_ids[position] for position in self.positions], width),
            numbers(self.layers) * len(self.positions),
            slot_column(self._first_slots, width),
            by_layer(self.sums, len(self.positions)) if self.sums else (),
        )
        return batch if self._segments is None else batch.take(self._segments)

    def _collect(self, errors: dict[int, int]) -> list[int]:
        """Add the finished handle's failures to ``errors``; return the segments that found no room."""
        assert self.handle is not None
        statuses = self.handle.status()
        segments = range(len(self)) if self._segments is None else self._segments
        if len(statuses) != len(segments):
            raise RuntimeError(f"the backend gave {len(statuses)} statuses for {len(segments)} segments")
        if not any(statuses):
            return []
        refused = []
        for segment, code in zip(segments, statuses, strict=True):
            if code == errno.EAGAIN:
                refused.append(segment)
            elif code:
                errors.setdefault(self._position(segment), code)
        return refused

    def _position(self, segment: int) -> int:
        return self.positions[segment // len(self.layers)]
