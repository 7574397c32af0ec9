# SPDX-License-Identifier: Apache-2.0
"""Puts the chunks of an exported file into a store, as its owner: what verified, and where room is."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tutti_engine.backends.local_files import open_file, prepare_files
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.catalogue.reading import reading
from tutti_engine.catalogue.slot_table import write_all
from tutti_engine.errors import ArchiveError, CatalogueError, StoreBusyError
from tutti_engine.movers.formulas import Checksum
from tutti_engine.planning.chunk_state import STATE_BITS, generation_of
from tutti_engine.store.archive import ArchiveHeader, ArchiveReader, ChunkHead
from tutti_engine.store.capacity import bytes_needed, chunks_that_fit, set_aside_bytes
from tutti_engine.store.facts import StoreFacts, read_use
from tutti_engine.store.layout import MAX_FILES_PER_ROOT
from tutti_engine.store.local_store import LocalStore
from tutti_engine.store.names import store_name
from tutti_engine.store.share import other_stores
from tutti_engine.store.verify import covered_bytes, data_sizes, layout_of

__all__ = [
    "ImportReport",
    "capacity_of",
    "check_fits",
    "check_keeps",
    "choose_target",
    "import_chunks",
    "open_target",
    "rehearse",
]

BATCH_BYTES = 256 << 20
"""Bytes that are made durable together."""

BATCH_CHUNKS = 4096

FLUSH_SECONDS = 60.0

REPLICA = re.compile(r"[0-9a-f]+-([0-9]+)of([0-9]+)")


@dataclass(slots=True)
class ImportReport:
    """What an import did with the chunks of a file.

    Attributes:
        chunks: those in the file, as far as it was read.
        imported: those that are in the store now and were not before.
        present: those that were there before.
        damaged: those that do not match their checksums.
        no_room: those for which the store has no free place.
    """

    chunks: int = 0
    imported: int = 0
    present: int = 0
    damaged: int = 0
    no_room: int = 0


def choose_target(stores: Sequence[StoreFacts], header: ArchiveHeader, name: str | None) -> StoreFacts | None:
    """Return the store of the file's namespace; None where there is none yet.

    Raises ArchiveError when ``name`` is another namespace's, or when there are several and no name.
    """
    digest = header.namespace.digest
    found = [each for each in stores if each.name.partition("-")[0] == digest]
    if name is not None:
        chosen = [each for each in found if each.name.startswith(name)]
        if not chosen and not digest.startswith(name):
            raise ArchiveError(
                f"the file is of namespace {digest} ({header.facts.get('model')!r}), not of {name}: its"
                " chunks would mean nothing there"
            )
        found = chosen
    if len(found) > 1:
        raise ArchiveError(
            "several stores have this namespace, name one: " + ", ".join(each.name for each in found)
        )
    return found[0] if found else None


def check_fits(store: StoreFacts, header: ArchiveHeader) -> None:
    """Raise ArchiveError, CatalogueError unless a store's chunks are shaped like the file's."""
    if store.owner is not None:
        who = "a process" if store.owner.pid is None else f"process {store.owner.pid}"
        raise StoreBusyError(
            f"{store.directories[0]} is in use by {who}; stop it first, nothing was changed",
            path=store.directories[0],
            pid=store.owner.pid,
        )
    layout = layout_of(store)
    if store.made_as != tuple(map(str, store.directories)):
        raise CatalogueError(f"the store {store.name} was moved; start its server there once")
    there = ArchiveHeader(
        header.facts,
        store.number("ranks") or 0,
        layout.num_layers,
        layout.segment_bytes,
        layout.chunk_bytes,
        data_sizes(store, layout),
    )
    for name in ("ranks", "num_layers", "segment_bytes", "chunk_bytes", "data_bytes"):
        mine, theirs = getattr(there, name), getattr(header, name)
        if mine != theirs:
            raise ArchiveError(f"{name} is {theirs} in the file and {mine} in the store {store.name}")


def capacity_of(store: StoreFacts, header: ArchiveHeader) -> int:
    """Return the capacity that keeps a store at its size.

    Raises ArchiveError beside other stores: then the roots' common capacity decides, which no store knows.
    """
    others = other_stores(sorted({each.parent for each in store.directories}), [store.name])
    if others:
        raise ArchiveError(
            f"there are other stores in these roots ({others[0].name}): give --capacity-bytes, as the"
            " server's settings have it"
        )
    assert store.capacity_chunks is not None, "layout_of has looked"
    size = bytes_needed(
        store.capacity_chunks,
        geometry=header.geometry(),
        ranks=header.ranks,
        roots=len(store.directories),
    )
    return (size + set_aside_bytes(store.directories)) * replica_of(store)[1]


def replica_of(store: StoreFacts) -> tuple[int, int]:
    """Return a store's number among its namespace's replicas, and how many share the capacity."""
    match = REPLICA.fullmatch(store.name)
    return (int(match[1]), int(match[2])) if match else (0, 1)


def check_keeps(store: StoreFacts, header: ArchiveHeader, capacity_bytes: int) -> None:
    """Raise ArchiveError when a store that is opened with this capacity would lose chunks.

    Raises GeometryError when not even one fits.
    """
    roots, replicas = len(store.directories), replica_of(store)[1]
    siblings = [store_name(header.namespace, each, replicas) for each in range(replicas)]
    others = other_stores(sorted({each.parent for each in store.directories}), siblings)
    share = capacity_bytes // replicas
    room = (capacity_bytes - sum(each.counted for each in others)) // replicas
    num_chunks = chunks_that_fit(
        share,
        geometry=header.geometry(),
        ranks=header.ranks,
        roots=roots,
        used=share - room + set_aside_bytes(store.directories),
    )
    layout = layout_of(store)
    first_lost = 0 if -(-num_chunks // roots) > layout.chunks_per_file * MAX_FILES_PER_ROOT else num_chunks
    with reading(store.catalogue) as connection:
        (lost,) = connection.execute("SELECT COUNT(*) FROM chunks WHERE slot >= ?", (first_lost,)).fetchone()
    if lost:
        raise ArchiveError(
            f"--capacity-bytes {capacity_bytes} makes room for {num_chunks} chunks in all: {lost} that the"
            f" store {store.name} has would go. It has {layout.num_chunks} places; give the server's"
            " capacity_bytes, or start the server with the new one first. Nothing was changed"
        )


def open_target(
    roots: Sequence[Path], store: StoreFacts | None, header: ArchiveHeader, capacity_bytes: int
) -> LocalStore:
    """Open the store as its server would, making it if need be. Raises what ``LocalStore.open`` does."""
    replica = (0, 1)
    if store is not None:
        roots, replica = [each.parent for each in store.directories], replica_of(store)
    return LocalStore.open(
        roots,
        header.namespace,
        header.geometry(),
        ranks=header.ranks,
        capacity_bytes=capacity_bytes,
        replica=replica,
    )


def rehearse(
    archive: ArchiveReader,
    store: StoreFacts | None,
    checksum: Checksum,
    report: ImportReport,
    on_progress: Callable[[int], object] = lambda count: None,
) -> None:
    """Count what ``import_chunks`` would do as the store is now, and change nothing.

    For a store that does not exist yet all chunks count as imported, whatever its capacity. Raises
    ArchiveError, CatalogueError.
    """
    known: set[bytes] = set()
    room: float = float("inf")
    if store is not None:
        with reading(store.catalogue) as connection:
            known = {key for (key,) in connection.execute("SELECT key FROM chunks")}
        room = (store.capacity_chunks or 0) - len(known) - read_use(store).retired
    sizes, before = archive.header.data_bytes, archive.position
    for head in archive.chunks():
        report.chunks += 1
        found = [covered_bytes(data, word, sizes, checksum) for _, _, word, data in archive.segments(head)]
        if head.key in known:
            report.present += 1
        elif None in found:
            report.damaged += 1
        elif report.imported >= room:
            report.no_room += 1
        else:
            known.add(head.key)
            report.imported += 1
        on_progress(archive.position - before)
        before = archive.position


def import_chunks(
    archive: ArchiveReader,
    store: LocalStore,
    checksum: Checksum,
    report: ImportReport,
    on_progress: Callable[[int], object] = lambda count: None,
) -> None:
    """Store the file's chunks in its order, until there is no place left. None that is there goes for it.

    A chunk's row is written once its bytes are durable, as servers do it: whatever happens, what the
    catalogue says is there.

    Args:
        archive: the file, just opened.
        store: opened by ``open_target``.
        checksum: the namespace's formula.
        report: is kept up to date, also when this raises.
        on_progress: is told how many more bytes of the file are done.

    Raises ArchiveError for a damaged file, OSError or CatalogueError when the store cannot be written.
    """
    with ExitStack() as stack:
        importer = Importer(archive.header, store, checksum, report)
        stack.callback(importer.close)
        before = archive.position
        for head in archive.chunks():
            report.chunks += 1
            importer.take(archive, head)
            on_progress(archive.position - before)
            before = archive.position
        importer.settle()


class Importer:
    """Writes chunks to free places, and their rows after them."""

    def __init__(
        self, header: ArchiveHeader, store: LocalStore, checksum: Checksum, report: ImportReport
    ) -> None:
        self._header = header
        self._store = store
        self._layout = store.layout
        self._checksum = checksum
        self._report = report
        records = store.records
        self._known = set(records.keys)
        self._number = max(records.generations, default=0) >> STATE_BITS
        taken = set(records.slots)
        self._free = deque(slot for slot in map(int, store.chunk_ids) if slot not in taken)
        records.clear()
        part_bytes = header.num_layers * header.segment_bytes
        self._batch = min(BATCH_CHUNKS, max(1, BATCH_BYTES // (header.ranks * part_bytes)))
        self._buffer = memoryview(mmap.mmap(-1, header.segment_bytes))
        self._waiting: list[Record] = []
        self._files: dict[str, int] = {}
        self._paths = [prepare_files(self._layout, rank) for rank in range(header.ranks)]

    def take(self, archive: ArchiveReader, head: ChunkHead) -> None:
        """Write one chunk, or read over it and count why."""
        segments = archive.segments(head)
        if head.key in self._known or not self._free:
            self._report.present += head.key in self._known
            self._report.no_room += head.key not in self._known
            for _ in segments:
                pass
            return
        slot = self._free[0]
        number, offset = self._layout.locate(slot, 0)
        sound = True
        for rank, layer, word, data in segments:
            self._buffer[: len(data)] = data
            covered = covered_bytes(self._buffer, word, self._header.data_bytes, self._checksum)
            sound = sound and covered is not None
            if sound:
                where = offset + layer * self._header.segment_bytes
                write_all(self._open(rank, number), self._buffer, where)
        if not sound:
            self._report.damaged += 1
            return
        self._free.popleft()
        self._known.add(head.key)
        self._number += 1
        sums = tuple(head.part(rank, self._header.num_layers) for rank in range(self._header.ranks))
        used = min(head.last_used, int(time.time()))
        self._waiting.append(Record(head.key, slot, generation_of(self._number, 0, 0), sums, used))
        if len(self._waiting) >= self._batch:
            self.settle()

    def settle(self) -> None:
        """Make what was written durable, then its rows. Raises OSError, CatalogueError."""
        for descriptor in self._files.values():
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        # One batch is in few of the files; all of them may be more than a process may have open.
        self.close()
        waiting, self._waiting = self._waiting, []
        catalogue = self._store.catalogue
        for record in waiting:
            catalogue.put(record)
        catalogue.add("imported_chunks", len(waiting))
        if waiting and not catalogue.flush(FLUSH_SECONDS):
            raise CatalogueError(
                f"{self._layout.directories[0]}: rows cannot be written: {catalogue.last_error}"
            )
        self._report.imported += len(waiting)

    def close(self) -> None:
        """Close the files. What was not settled is not in the store."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _open(self, rank: int, number: int) -> int:
        path = self._paths[rank][number]
        if path not in self._files:
            self._files[path] = open_file(Path(path))
        return self._files[path]
