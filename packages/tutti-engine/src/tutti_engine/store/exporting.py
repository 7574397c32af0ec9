# SPDX-License-Identifier: Apache-2.0
"""Writes a store's chunks to one file, beside the store's owner or without one."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti_engine.catalogue.reading import reading
from tutti_engine.catalogue.slot_table import Row
from tutti_engine.errors import ArchiveError, CatalogueError
from tutti_engine.movers.formulas import Checksum
from tutti_engine.store.archive import ABSENT, ArchiveHeader, ArchiveWriter, ChunkHead
from tutti_engine.store.capacity import CHECKSUM_BYTES
from tutti_engine.store.facts import StoreFacts
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.roots import sync_directory
from tutti_engine.store.verify import Reader, covered_bytes, data_sizes, layout_of, rows_now
from tutti_engine.store.view import fits

__all__ = ["ExportReport", "Wanted", "export", "header_of", "new_file", "select"]

BATCH = 64
"""Rows that are looked up at a time: they must still be of now when their chunks are read."""

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links say."""


@dataclass(slots=True)
class ExportReport:
    """What an export wrote, and what it did not.

    Attributes:
        written: chunks in the file.
        data_bytes: their segments' bytes.
        changed: chunks that an owner evicted or filled anew meanwhile.
        damaged: chunks that do not match their checksums, or cannot be read.
        absent: keys that were asked for and are not in the store.
        file_bytes: size of the file.
    """

    written: int = 0
    data_bytes: int = 0
    changed: int = 0
    damaged: int = 0
    absent: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which chunks to write.

    Attributes:
        slots: their places, in the file's order.
        absent: keys that were asked for and are not there.
    """

    slots: list[int]
    absent: int = 0


def header_of(store: StoreFacts, layout: StoreLayout) -> ArchiveHeader:
    """Return what a store's chunks are. Raises ArchiveError, CatalogueError where it does not say so."""
    if not store.facts:
        raise CatalogueError(f"{store.name} does not say what its chunks are; start its server once")
    header = ArchiveHeader(
        store.facts,
        store.number("ranks") or 1,
        layout.num_layers,
        layout.segment_bytes,
        layout.chunk_bytes,
        data_sizes(store, layout),
    )
    # Replicas of one namespace have its digest and a number as their name.
    if store.name.partition("-")[0] != header.namespace.digest:
        raise CatalogueError(
            f"the facts in {store.directories[0]} are those of {header.namespace.digest}, not the store's"
        )
    return header


def select(store: StoreFacts, keys: Sequence[bytes] | None = None) -> Wanted:
    """Return the places of all chunks, or of those with some keys; most recently used first.

    Of chunks used in the same second those nearer to their prompt's start come first: an import that has no
    room for all takes what can be hit. Raises CatalogueError.
    """
    with reading(store.catalogue) as connection:
        rows = connection.execute(
            "SELECT slot, key FROM chunks ORDER BY last_used DESC, generation"
        ).fetchall()
    if keys is None:
        return Wanted([slot for slot, _ in rows])
    asked = set(keys)
    found = [(slot, key) for slot, key in rows if key in asked]
    return Wanted([slot for slot, _ in found], len(asked) - len(found))


def export(
    store: StoreFacts,
    wanted: Wanted,
    checksum: Checksum,
    target: Path,
    *,
    replace: bool = False,
    on_progress: Callable[[int], object] = lambda count: None,
) -> ExportReport:
    """Write chunks to ``target``, which appears when it is complete and durable, and not before.

    Each chunk is compared with its checksums, and its row is looked at again afterwards: what an owner fills
    anew meanwhile is left out.

    Args:
        store: whose chunks.
        wanted: which of them, see ``select``.
        checksum: the namespace's formula.
        target: the file.
        replace: whether an existing file may go.
        on_progress: is told how many more places are done.

    Raises CatalogueError, ArchiveError, FileExistsError, OSError; then there is no new file.
    """
    layout = layout_of(store)
    header = header_of(store, layout)
    report = ExportReport(absent=wanted.absent)
    with new_file(target, replace=replace) as descriptor:
        need_room(descriptor, target, header, len(wanted.slots))
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            archive = ArchiveWriter(file, header)
            exporter = Exporter(store, layout, header, checksum, archive, report)
            for first in range(0, len(wanted.slots), BATCH):
                some = wanted.slots[first : first + BATCH]
                rows = rows_now(store, some)
                report.changed += len(some) - len(rows)
                for row in rows.values():
                    exporter.add(row)
                on_progress(len(some))
            archive.finish()
            report.file_bytes = file.tell()
    return report


class Exporter:
    """Takes chunks from a store to a file, one at a time."""

    def __init__(
        self,
        store: StoreFacts,
        layout: StoreLayout,
        header: ArchiveHeader,
        checksum: Checksum,
        archive: ArchiveWriter,
        report: ExportReport,
    ) -> None:
        self._store = store
        self._layout = layout
        self._header = header
        self._checksum = checksum
        self._archive = archive
        self._report = report
        self._reader = Reader(layout, header.data_bytes, checksum)

    def add(self, row: Row) -> None:
        """Write one chunk, or take it back and count why."""
        slot, key, generation, _, sums, last_used = row
        if not fits(row, self._layout, self._header.ranks):
            self._report.damaged += 1
            return
        head = ChunkHead(key, last_used, sums)
        self._archive.begin(head)
        written = self._add_segments(slot, head)
        # Only now is it known that what was read is what the row says.
        now = rows_now(self._store, [slot]).get(slot)
        if now is not None and now[1:3] == (key, generation) and written is not None:
            self._report.written += 1
            self._report.data_bytes += written
            return
        self._archive.undo()
        if now is None or now[1:3] != (key, generation):
            self._report.changed += 1
        else:
            self._report.damaged += 1

    def _add_segments(self, slot: int, head: ChunkHead) -> int | None:
        """Write a chunk's segments and return their bytes; None when one is not what it must be."""
        size, header = self._header.segment_bytes, self._header
        written = 0
        for rank in range(header.ranks):
            try:
                data = self._reader.read(slot, rank)
            except OSError:
                return None
            sums = head.part(rank, header.num_layers)
            for layer in range(header.num_layers):
                word = sums[layer * CHECKSUM_BYTES : (layer + 1) * CHECKSUM_BYTES]
                if word == ABSENT:
                    continue
                segment = data[layer * size : (layer + 1) * size]
                covered = covered_bytes(segment, word, header.data_bytes, self._checksum)
                if covered is None:
                    return None
                # What lies behind a segment's data is whatever was in memory once: not for others to see.
                self._archive.write(segment[:covered])
                self._archive.write(bytes(header.payload_bytes - covered))
                written += header.payload_bytes
        return written


def need_room(descriptor: int, target: Path, header: ArchiveHeader, chunks: int) -> None:
    """Raise ArchiveError at once when the file cannot fit, rather than after hours."""
    record = header.sums_bytes + header.ranks * header.num_layers * header.payload_bytes
    found = os.fstatvfs(descriptor)
    free = found.f_bavail * found.f_frsize
    if chunks * record > free:
        raise ArchiveError(
            f"up to {chunks * record} bytes are to be written and {target.absolute().parent} has {free} free;"
            " name another place, or fewer keys"
        )


@contextlib.contextmanager
def new_file(target: Path, *, replace: bool) -> Iterator[int]:
    """Open a file of another name, mode 0600; it gets its own when the block ends without an error.

    Raises FileExistsError when there is one and ``replace`` is false, OSError when the system refuses.
    """
    refuse_existing(target, replace)
    descriptor, name = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=".part", dir=target.absolute().parent
    )
    temporary = Path(name)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        refuse_existing(target, replace)
        give_name(temporary, target, replace=replace)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.absolute().parent)


def give_name(temporary: Path, target: Path, *, replace: bool) -> None:
    """Rename a file; without ``replace`` never over one that somebody has made meanwhile."""
    if not replace:
        try:
            target.hardlink_to(temporary)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
        else:
            temporary.unlink()
            return
    temporary.replace(target)


def refuse_existing(target: Path, replace: bool) -> None:
    """Raise FileExistsError unless a file of that name can be made."""
    if os.path.lexists(target) and not (replace and target.is_file() and not target.is_symlink()):
        raise FileExistsError(
            f"{target} is there already" + ("; it is no plain file" if replace else "; --force replaces it")
        )
