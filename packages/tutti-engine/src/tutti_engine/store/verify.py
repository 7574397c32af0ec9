# SPDX-License-Identifier: Apache-2.0
"""Every chunk of a store against its checksums, from the drive, beside an owner or without one."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tutti_engine.catalogue.catalogue import Catalogue
from tutti_engine.catalogue.file import CATALOGUE_NAME, read_meta
from tutti_engine.catalogue.lists import row_of_slot
from tutti_engine.catalogue.reading import reading
from tutti_engine.catalogue.slot_table import Row
from tutti_engine.errors import CatalogueError, StoreBusyError
from tutti_engine.movers.formulas import Checksum
from tutti_engine.store.archive import ABSENT
from tutti_engine.store.capacity import CHECKSUM_BYTES
from tutti_engine.store.facts import StoreFacts
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.owner import OwnerLock
from tutti_engine.store.view import fits

__all__ = [
    "Damage",
    "Reader",
    "Report",
    "chosen_slots",
    "covered_bytes",
    "data_sizes",
    "drop",
    "layout_of",
    "owning",
    "rows_now",
    "verify",
]

READERS = 4
"""Chunks that are read at a time."""

BATCH = 64
"""Rows that are looked up at a time: they must still be of now when their chunks are read."""

FLUSH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Damage:
    """A chunk that is not what it was stored as.

    Attributes:
        slot: its place.
        key: its key.
        rank: whose part it is; None when the row itself is damaged.
        layers: those that do not match; none when they cannot be read at all.
        reason: what is wrong.
    """

    slot: int
    key: bytes
    rank: int | None
    layers: tuple[int, ...]
    reason: str


@dataclass(slots=True)
class Report:
    """What a verification found.

    Attributes:
        checked: chunks that were read and compared, damaged ones too.
        read_bytes: bytes that were read for it.
        changed: chunks that an owner evicted or filled anew meanwhile.
        damages: what does not match, for each chunk and rank.
    """

    checked: int = 0
    read_bytes: int = 0
    changed: int = 0
    damages: list[Damage] = field(default_factory=list)

    @property
    def damaged_slots(self) -> list[int]:
        """The places of damaged chunks, each once, in ascending order."""
        return sorted({each.slot for each in self.damages})


def layout_of(store: StoreFacts) -> StoreLayout:
    """Return where a store's segments lie. Raises CatalogueError when that is not written down there."""
    if store.problem:
        raise CatalogueError(store.problem)
    # Which chunk lies in which root follows from their order; a single one may have moved.
    may_have_moved = len(store.directories) == len(store.made_as) == 1
    if not may_have_moved and store.made_as != tuple(map(str, store.directories)):
        raise CatalogueError(
            f"the store {store.name} was made in {', '.join(store.made_as) or 'places that it does not say'}"
            " and is not there now: mount its drives as its server has them, and name those roots"
        )
    with reading(store.catalogue) as connection:
        chunks_per_file = read_meta(connection).get("chunks_per_file")
    try:
        return StoreLayout(
            directories=tuple(map(str, store.directories)),
            num_layers=store.shape["num_layers"],
            segment_bytes=store.shape["segment_bytes"],
            chunk_bytes=store.shape["chunk_bytes"],
            chunks_per_file=chunks_per_file,  # type: ignore[arg-type]
            num_chunks=store.namespace["num_chunks"],
            read_only=True,
        )
    except (KeyError, ValueError) as error:
        raise CatalogueError(
            f"the store in {store.directories[0]} does not say how it is laid out ({error}); "
            "start its server once"
        ) from error


def data_sizes(store: StoreFacts, layout: StoreLayout) -> tuple[int, ...]:
    """Return how many bytes of a segment a checksum may cover. Raises CatalogueError if that is not there."""
    found: Any = store.namespace.get("data_bytes")
    numbers = isinstance(found, list) and found and all(isinstance(each, int) for each in found)
    if numbers and all(0 < each <= layout.segment_bytes for each in found):
        return tuple(found)
    raise CatalogueError(
        f"the store in {store.directories[0]} does not say how much of a segment its checksums cover:"
        " an earlier version wrote it; start its server once"
    )


def chosen_slots(store: StoreFacts, sample: int | None) -> list[int]:
    """Return the places of all resident chunks in ascending order, or of so many that chance picks."""
    with reading(store.catalogue) as connection:
        slots = [slot for (slot,) in connection.execute("SELECT slot FROM chunks ORDER BY slot")]
    return slots if sample is None or sample >= len(slots) else sorted(random.sample(slots, sample))


def verify(
    store: StoreFacts,
    slots: Sequence[int],
    checksum: Checksum,
    on_progress: Callable[[int], object] = lambda count: None,
) -> Report:
    """Compare the chunks in some places with their checksums.

    Reads past the page cache where the file system allows it: what counts is on the drive.

    Args:
        store: whose chunks.
        slots: their places, see ``chosen_slots``.
        checksum: the namespace's formula.
        on_progress: is told how many more places are done.

    Raises CatalogueError when the catalogue cannot be read.
    """
    layout = layout_of(store)
    ranks = store.number("ranks") or 1
    check = partial(check_row, Reader(layout, data_sizes(store, layout), checksum), ranks)
    report = Report()
    with ThreadPoolExecutor(READERS, "tutti-verify") as pool:
        for first in range(0, len(slots), BATCH):
            some = slots[first : first + BATCH]
            rows = rows_now(store, some)
            found = dict(zip(rows, pool.map(check, rows.values())))
            suspects = [slot for slot, damages in found.items() if damages]
            # A place that holds another filling by now rightly has other bytes.
            now = rows_now(store, suspects)
            replaced = {slot for slot in suspects if slot not in now or now[slot][1:3] != rows[slot][1:3]}
            report.changed += len(some) - len(rows) + len(replaced)
            report.checked += len(rows) - len(replaced)
            report.read_bytes += len(rows) * ranks * layout.num_layers * layout.segment_bytes
            for slot, damages in found.items():
                report.damages += [] if slot in replaced else damages
            on_progress(len(some))
    return report


def rows_now(store: StoreFacts, slots: Sequence[int]) -> dict[int, Row]:
    """Return the rows of those places that have one.

    By a connection of its own each time: one that was made without an owner never sees what a later one does.
    """
    if not slots:
        return {}
    with reading(store.catalogue) as connection:
        rows = ((slot, row_of_slot(connection, slot)) for slot in slots)
        return {slot: row for slot, row in rows if row is not None}


def covered_bytes(segment: memoryview, word: bytes, sizes: Sequence[int], checksum: Checksum) -> int | None:
    """Return how many bytes of a segment its checksum covers; None when it matches none of the sizes.

    A layer's kind is not known here; that another kind's size matches by chance is as unlikely as that damage
    does.
    """
    expected = int.from_bytes(word, "little")
    return next((each for each in sizes if checksum(segment[:each]) == expected), None)


class Reader:
    """Reads chunks and compares them. Any thread may use it."""

    def __init__(self, layout: StoreLayout, sizes: Sequence[int], checksum: Checksum) -> None:
        self.layout = layout
        self._sizes = sizes
        self._checksum = checksum
        self._own = threading.local()

    def bad_layers(self, slot: int, rank: int, sums: bytes) -> Iterator[int]:
        """Return the layers of one rank's part that do not match. Raises OSError for what cannot be read."""
        size = self.layout.segment_bytes
        data = self.read(slot, rank)
        for layer in range(self.layout.num_layers):
            word = sums[layer * CHECKSUM_BYTES : (layer + 1) * CHECKSUM_BYTES]
            if word == ABSENT:
                continue
            segment = data[layer * size : (layer + 1) * size]
            if covered_bytes(segment, word, self._sizes, self._checksum) is None:
                yield layer

    def read(self, slot: int, rank: int) -> memoryview:
        """Return a part's segments, in memory that this thread's next call overwrites. Raises OSError."""
        wanted = self.layout.num_layers * self.layout.segment_bytes
        buffer = getattr(self._own, "buffer", None)
        if buffer is None:
            buffer = self._own.buffer = memoryview(mmap.mmap(-1, wanted))
        number, offset = self.layout.locate(slot, 0)
        descriptor = open_segments(self.layout.file_path(rank, number))
        try:
            done = 0
            while done < wanted:
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
                if count <= 0:
                    raise OSError(errno.EIO, "the file is too short")
                done += count
        finally:
            os.close(descriptor)
        return buffer


def open_segments(path: str) -> int:
    """Open a file of segments, past the page cache where that is possible; never through a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags)


def check_row(reader: Reader, ranks: int, row: Row) -> list[Damage]:
    """Return what is wrong with the chunk of a row."""
    slot, key = row[0], row[1]
    if not fits(row, reader.layout, ranks):
        named = key if isinstance(key, bytes) else b""
        return [Damage(slot, named, None, (), "its row in the catalogue is not one that a server wrote")]
    part = reader.layout.num_layers * CHECKSUM_BYTES
    damages = []
    for rank in range(ranks):
        try:
            layers = tuple(reader.bad_layers(slot, rank, row[4][rank * part : (rank + 1) * part]))
        except OSError as error:
            damages.append(Damage(slot, key, rank, (), f"it cannot be read: {error.strerror or error}"))
            continue
        if layers:
            damages.append(Damage(slot, key, rank, layers, "its checksum differs"))
    return damages


@contextmanager
def owning(store: StoreFacts) -> Iterator[None]:
    """Be the store's owner, so that no server starts on it. Raises StoreBusyError while a process has it."""
    with ExitStack() as stack:
        for directory in store.directories:
            try:
                stack.enter_context(OwnerLock(directory))
            except StoreBusyError as error:
                who = "another process" if error.pid is None else f"process {error.pid}"
                raise StoreBusyError(
                    f"{directory} is in use by {who}; stop it first, nothing was changed",
                    path=error.path,
                    pid=error.pid,
                ) from error
        yield


def drop(store: StoreFacts, slots: Iterable[int]) -> int:
    """Make misses of the chunks in some places, durably; return how many. Only within ``owning``.

    A place that this happens to twice is not used again. Raises CatalogueError when it is not durable.
    """
    gone = list(slots)
    if not gone:
        return 0
    catalogue = Catalogue.open(store.catalogue / CATALOGUE_NAME, layout_facts=store.shape)
    try:
        catalogue.remove(gone, lambda slots: None, suspect=True)
        catalogue.add("corrupt_chunks", len(gone))
        catalogue.add("lost_chunks", len(gone))
        durable = catalogue.flush(FLUSH_SECONDS)
        reason = catalogue.last_error
    finally:
        catalogue.close()
    if not durable:
        raise CatalogueError(f"{store.directories[0]}: the damaged chunks could not be dropped: {reason}")
    return len(gone)
