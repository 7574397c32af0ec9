# SPDX-License-Identifier: Apache-2.0
"""Places of a store, made ahead of need and given back when the file system runs short: in the background."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from tutti_engine.errors import GeometryError
from tutti_engine.plan import ChunkId
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.slot_order import slot_order
from tutti_engine.store.slots import PREPARATIONS, SlotFiles

__all__ = ["SpaceKeeper", "SpaceSettings"]

log = logging.getLogger(__name__)

LEAVING_SECONDS = 10.0
"""How long places that were asked back may be in use by loads before more are asked for."""

HEALED_CHUNKS = 8
"""Chunks that must fit above ``min_free`` before places are handed out again: no flapping at the border."""


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """How a store takes room from its file systems.

    Attributes:
        min_free_bytes: each root's file system keeps as much free; below that nothing is stored and resident
            chunks are given back, least useful first.
        prepare: ``sparse`` leaves it to each write to get its blocks; ``fallocate`` gets them ahead of need;
            ``written`` also writes them, for data paths that need proven extents.
        ahead_bytes: how much is prepared beyond what is in use.
        check_seconds: time between two looks at the free room.
    """

    min_free_bytes: int = 0
    prepare: str = "sparse"
    ahead_bytes: int = 1 << 30
    check_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.prepare not in PREPARATIONS:
            raise GeometryError(f"prepare must be one of {', '.join(PREPARATIONS)}, not {self.prepare!r}")
        for name in ("min_free_bytes", "ahead_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise GeometryError(f"{name} must be a whole number of bytes, not {value!r}")
        if not self.check_seconds > 0:
            raise GeometryError(f"check_seconds must be above 0, not {self.check_seconds!r}")

    @property
    def needs_keeper(self) -> bool:
        """Whether anything has to be done beside the work."""
        return self.min_free_bytes > 0 or self.prepare != "sparse"


def free_bytes(directory: str) -> int:
    """Return what a file system has left for this user."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class SpaceKeeper:
    """The ``Places`` of a local store. Its thread does all that touches a disk.

    A place is in stock, ready, or with the planner. Only places in stock are prepared or emptied, so nothing
    here ever meets a chunk's data.
    """

    def __init__(
        self,
        layout: StoreLayout,
        ranks: int,
        resident: Iterable[int],
        settings: SpaceSettings,
        *,
        retired: Iterable[int] = (),
        free: Callable[[str], int] = free_bytes,
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._free = free
        self._files = SlotFiles(layout, ranks, settings.prepare)
        self._place_bytes = ranks * layout.chunk_bytes
        resident = set(resident)
        taken = resident.union(retired)
        self._stock = deque(slot for slot in slot_order(layout) if slot not in taken)
        self._with_planner = len(resident)
        self._ready: deque[int] = deque()
        self._returned: list[int] = []
        self._wanted = 0
        self._excess = 0
        self._leaving = 0
        self._patience = self._next_look = 0.0
        self._short = False
        self._refused: str | None = None
        self._warned = False
        self._stopped = False
        self._changed = threading.Condition()
        self._room = 0
        if settings.prepare == "sparse":
            # Costs nothing, and the first store need not wait.
            self._look()
            self._fill()
        self._thread = threading.Thread(target=self._run, name="tutti-space", daemon=True)
        self._thread.start()

    # What the planner asks; see ``Places``.

    def ready(self, wanted: int) -> Sequence[ChunkId]:
        """Return up to ``wanted`` prepared places."""
        with self._changed:
            self._wanted = max(self._wanted, wanted)
            given = [self._ready.popleft() for _ in range(min(wanted, len(self._ready)))]
            self._with_planner += len(given)
            if self._settings.prepare == "sparse":
                self._room -= len(given) * self._place_bytes
            self._changed.notify_all()
        return given

    def coming(self) -> int:
        """Return how many places are being prepared; 0 while the disk has no room for them."""
        with self._changed:
            if self._short or self._refused is not None:
                return 0
            return len(self._ready) + min(len(self._stock), self._target())

    def take_excess(self) -> int:
        """Return how many places the file systems need back. They are expected soon, and asked for once."""
        if not self._excess:
            return 0
        with self._changed:
            excess, self._excess = self._excess, 0
            self._leaving = excess
            self._patience = time.monotonic() + LEAVING_SECONDS
        return excess

    def let_go(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Take places back; their blocks are freed in the background."""
        slots = cast("Sequence[int]", chunk_ids)
        with self._changed:
            self._returned += slots
            self._with_planner -= len(slots)
            self._leaving = max(0, self._leaving - len(slots))
            self._changed.notify_all()

    @property
    def stores_stopped(self) -> bool:
        """Whether nothing is handed out because a file system is short of room."""
        return self._short

    def close(self) -> None:
        """Stop the thread. Later calls do nothing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(5.0)

    # The thread.

    def _target(self) -> int:
        """Return how many places shall be ready."""
        return max(self._wanted, self._settings.ahead_bytes // self._place_bytes, 1)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._settings.check_seconds)
                if self._stopped:
                    return
                returned, self._returned = self._returned, []
            try:
                self._empty(returned)
                self._look()
                self._fill()
            except Exception:
                # Whatever it is: places are merely not handed out.
                log.exception("%s: space could not be managed", self._layout.directories[0])

    def _has_work(self) -> bool:
        few = len(self._ready) < max(1, self._target() // 2)
        return bool(self._stopped or self._returned or (few and self._can_make()))

    def _can_make(self) -> bool:
        """Return whether there is a place to make, and room for it."""
        if self._short or self._refused is not None or not self._stock:
            return False
        # Places that are only promised have not taken their room yet.
        promised = len(self._ready) if self._settings.prepare == "sparse" else 0
        return self._room >= (promised + 1) * self._place_bytes

    def _empty(self, slots: Sequence[int]) -> None:
        for slot in slots:
            try:
                self._files.empty(slot)
            except OSError as error:
                self._refuse(f"place {slot} cannot be emptied: {error}")
        with self._changed:
            self._stock.extend(slots)

    def _room_above_minimum(self) -> int:
        """Return the bytes that may still be used, by the root that has least; negative when short."""
        directories = self._layout.directories
        room = min(self._free(directory) for directory in directories)
        return (room - self._settings.min_free_bytes) * len(directories)

    def _look(self) -> None:
        if time.monotonic() < self._next_look:
            # What was handed out since is not written yet, and must not be promised twice.
            return
        self._next_look = time.monotonic() + self._settings.check_seconds
        self._refused = None
        try:
            self._room = self._room_above_minimum()
        except OSError as error:
            self._refuse(str(error))
            return
        with self._changed:
            if self._room < 0 and self._settings.min_free_bytes:
                self._stop_stores()
            elif self._short and self._room >= HEALED_CHUNKS * self._place_bytes:
                self._short = False
                log.info("%s: the file system has room again", self._layout.directories[0])

    def _stop_stores(self) -> None:
        if not self._short:
            log.warning(
                "%s: less than min_free_bytes (%d) are free: nothing is stored, and chunks are given back",
                self._layout.directories[0],
                self._settings.min_free_bytes,
            )
        self._short = True
        # Prepared places go back first.
        self._returned += self._ready
        self._ready.clear()
        if (self._leaving and time.monotonic() < self._patience) or self._returned:
            return
        needed = -(self._room // self._place_bytes)
        self._excess = min(needed, self._with_planner)

    def _fill(self) -> None:
        """Prepare places until there are enough."""
        while True:
            with self._changed:
                if len(self._ready) >= self._target():
                    self._wanted = 0
                    return
                if self._stopped or not self._can_make():
                    return
                slot = self._stock.popleft()
            try:
                self._files.prepare(slot)
            except OSError as error:
                self._refuse(f"place {slot} cannot be made: {error}")
                with self._changed:
                    self._stock.appendleft(slot)
                return
            with self._changed:
                self._ready.append(slot)
                if self._settings.prepare != "sparse":
                    self._room -= self._place_bytes
            self._warned = False

    def _refuse(self, why: str) -> None:
        if not self._warned:
            log.warning("%s: %s", self._layout.directories[0], why)
        self._refused, self._warned = why, True
