# SPDX-License-Identifier: Apache-2.0
"""The planning side of a store on local drives: one process owns directories, catalogue and capacity."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tutti_engine.catalogue import CATALOGUE_NAME, Catalogue
from tutti_engine.catalogue_file import MAX_KEY_BYTES, remove_set_aside, reserved_bytes
from tutti_engine.catalogue_mirror import MIN_SLOTS
from tutti_engine.catalogue_record import MAX_NUMBER
from tutti_engine.catalogue_residents import Residents
from tutti_engine.errors import CatalogueError, GeometryError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.owner import OwnerLock
from tutti_engine.slot_table import table_bytes
from tutti_engine.store_layout import MAX_FILES_PER_ROOT, StoreLayout, choose_chunks_per_file
from tutti_engine.store_roots import (
    NAMESPACE_FILE,
    other_namespaces,
    prepare_roots,
    read_store_id,
    trim_files,
    write_private,
)

__all__ = ["LocalStore", "bytes_needed", "chunks_that_fit"]

log = logging.getLogger(__name__)

CHECKSUM_BYTES = 8

BLOCK_BYTES = 4096

RETIRED_SHARE = 16
"""One place in so many may be retired for data that did not verify; more are a sign of lost files."""

EXTENT_BYTES = 16
"""Bytes that a file system spends on mapping one separately written segment (ext4: 4096 for 340 extents)."""

NAMESPACE_FILE_BYTES = 16 * BLOCK_BYTES
"""Room for ``namespace.json`` and for the copy that replaces it."""


def bytes_needed(num_chunks: int, *, geometry: Geometry, ranks: int, roots: int) -> int:
    """Return an upper bound of what a store of ``num_chunks`` occupies on disk, everything included.

    That is: chunk slots of all ranks; the file system's mapping of them; database, write-ahead log and its
    index as ``catalogue_file.reserved_bytes`` bounds them, and the slot table; in each root
    directories, lock and ``namespace.json``.
    """
    data = num_chunks * ranks * (geometry.chunk_bytes + geometry.num_layers * EXTENT_BYTES)
    checksum_bytes = ranks * geometry.num_layers * CHECKSUM_BYTES
    catalogue = reserved_bytes(num_chunks, checksum_bytes)
    if num_chunks >= MIN_SLOTS:
        catalogue += table_bytes(num_chunks, checksum_bytes)
    files = ranks * min(MAX_FILES_PER_ROOT, num_chunks)
    fixed = roots * ((ranks + 2 + files) * BLOCK_BYTES + NAMESPACE_FILE_BYTES)
    return data + catalogue + fixed


def chunks_that_fit(capacity_bytes: int, *, geometry: Geometry, ranks: int, roots: int, used: int = 0) -> int:
    """Return the largest store that stays within ``capacity_bytes`` of which ``used`` are taken.

    Raises GeometryError, with the smallest capacity that works, if not even one chunk fits.
    """
    room = capacity_bytes - used
    smallest = bytes_needed(1, geometry=geometry, ranks=ranks, roots=roots)
    if room < smallest:
        beside = f" beside {used} bytes of set-aside catalogues" if used else ""
        raise GeometryError(
            f"capacity_bytes {capacity_bytes} does not hold one chunk ({ranks} x {geometry.chunk_bytes} bytes"
            f" and bookkeeping){beside}; the smallest that works is {smallest + used}"
        )
    low, high = 1, room // (ranks * geometry.chunk_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_needed(middle, geometry=geometry, ranks=ranks, roots=roots) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def bound_set_aside(directories: Sequence[Path], limit: int) -> int:
    """Remove set-aside catalogues but for the newest, and that one too above ``limit`` bytes.

    Returns the bytes that what is kept occupies.
    """
    for directory in directories:
        remove_set_aside(directory / CATALOGUE_NAME, keep=1)
    used = set_aside_bytes(directories)
    if used <= limit:
        return used
    log.warning("%s: a set-aside catalogue of %d bytes is removed to make room", directories[0], used)
    for directory in directories:
        remove_set_aside(directory / CATALOGUE_NAME, keep=0)
    return set_aside_bytes(directories)


def set_aside_bytes(directories: Sequence[Path]) -> int:
    """Return what earlier damaged catalogues still occupy."""
    pattern = f"{CATALOGUE_NAME}.damaged-*"
    return sum(path.lstat().st_blocks * 512 for each in directories for path in each.glob(pattern))


def remove_stale_catalogues(directories: Sequence[Path]) -> None:
    """Remove the catalogues of when these later roots were first: their rows mean other places."""
    for directory in directories:
        for tail in ("-wal", "-shm", ""):
            (directory / f"{CATALOGUE_NAME}{tail}").unlink(missing_ok=True)


@dataclass(eq=False)
class LocalStore:
    """An open store. Use ``LocalStore.open``.

    Attributes:
        layout: where segments lie; give it to the execution sides.
        catalogue: what is resident.
        records: what was resident at start, each with a slot of this layout and checksums of the right size.
            The store itself does not need them: empty the list once they are taken over.
        dropped_records: rows that were not like that and are gone.
    """

    layout: StoreLayout
    catalogue: Catalogue
    records: Residents = field(repr=False)
    dropped_records: int
    _locks: contextlib.ExitStack = field(repr=False)
    _retired: list[int] = field(default_factory=list, repr=False)

    @classmethod
    def open(
        cls,
        roots: Sequence[Path | str],
        namespace: Namespace,
        geometry: Geometry,
        *,
        ranks: int,
        capacity_bytes: int,
    ) -> LocalStore:
        """Open ``<root>/<namespace digest>`` in every root, making what is missing; own it until ``close``.

        Another list of roots, shape or number of ranks than last time starts empty; a larger or smaller
        capacity keeps the chunks that still have a place. ``capacity_bytes`` bounds all roots together, the
        newest catalogue that was damaged and set aside included; older ones are removed. It bounds this
        namespace alone: each model and configuration has its own directories, which nobody but the user
        deletes. One log line tells of others in the same roots.

        Raises:
            GeometryError: the capacity is below one chunk.
            RootError: a root is a link, no directory, or cannot be written.
            StoreBusyError: a running process owns the store.
            CatalogueError: the catalogue's database cannot be made.
        """
        if ranks < 1:
            raise GeometryError(f"ranks must be at least 1, not {ranks}")
        chunks_that_fit(capacity_bytes, geometry=geometry, ranks=ranks, roots=len(roots))
        directories = prepare_roots(roots, namespace.digest)
        with contextlib.ExitStack() as stack:
            owners = contextlib.ExitStack()
            stack.callback(owners.close)
            locks = [owners.enter_context(OwnerLock(directory)) for directory in directories]
            facts = {
                "roots": [str(directory) for directory in directories],
                "ranks": ranks,
                "num_layers": geometry.num_layers,
                "segment_bytes": geometry.segment_bytes,
                "chunk_bytes": geometry.chunk_bytes,
            }
            catalogue = Catalogue.open(
                directories[0] / CATALOGUE_NAME,
                layout_facts=facts,
                owned=lambda: all(lock.current for lock in locks),
            )
            stack.pop_all()
            stack.callback(give_up, catalogue, owners)
            remove_stale_catalogues(directories[1:])
            room = capacity_bytes - bytes_needed(1, geometry=geometry, ranks=ranks, roots=len(roots))
            used = bound_set_aside(directories, min(capacity_bytes // 4, room))
            num_chunks = chunks_that_fit(
                capacity_bytes, geometry=geometry, ranks=ranks, roots=len(roots), used=used
            )
            layout = settle_layout(catalogue, directories, geometry, num_chunks)
            dropped = drop_placeless(catalogue, layout)

            def drop_damaged() -> None:
                nonlocal dropped
                dropped += drop_unusable(catalogue, layout, ranks)

            records = catalogue.residents(
                layout.num_chunks, ranks, layout.num_layers * CHECKSUM_BYTES, before_reading=drop_damaged
            )
            trim_files(layout, ranks)
            shrink_catalogue(catalogue, layout, ranks)
            write_namespace(layout, namespace)
            tell_other_namespaces(directories, capacity_bytes)
            retired = catalogue.retired_slots(layout.num_chunks // RETIRED_SHARE)
            if retired:
                log.warning(
                    "%s: %d places are not used any more, what was stored there twice did not verify",
                    directories[0],
                    len(retired),
                )
            stack.pop_all()
            return cls(layout, catalogue, records, dropped, owners, retired)

    @property
    def chunk_ids(self) -> Sequence[int]:
        """Every chunk id of the store that may be used."""
        if not self._retired:
            return range(self.layout.num_chunks)
        retired = frozenset(self._retired)
        return [slot for slot in range(self.layout.num_chunks) if slot not in retired]

    @property
    def directory(self) -> Path:
        """The directory with the catalogue, for ``read_counters`` and ``resident_chunks``."""
        return Path(self.layout.directories[0])

    def close(self) -> None:
        """Make the catalogue durable, as far as the disk allows within some seconds, and give the store up.

        While the disk does not answer, the catalogue's thread may outlast this call; the store stays owned
        until it has ended. Later calls do nothing.
        """
        give_up(self.catalogue, self._locks)

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def give_up(catalogue: Catalogue, locks: contextlib.ExitStack) -> None:
    """Close the catalogue, and release the store once nothing writes to it any more."""
    catalogue.close()
    catalogue.when_stopped(locks.close)


def settle_layout(
    catalogue: Catalogue, directories: Sequence[Path], geometry: Geometry, num_chunks: int
) -> StoreLayout:
    """Return the layout of the store as it was; of a new one if there was none or it cannot go on."""
    roots = len(directories)
    store_id = catalogue.meta.get("store_id")
    chunks_per_file = catalogue.meta.get("chunks_per_file")
    reason = None
    if not isinstance(store_id, str) or not isinstance(chunks_per_file, int) or chunks_per_file < 1:
        reason = ""
    elif -(-num_chunks // roots) > chunks_per_file * MAX_FILES_PER_ROOT:
        reason = "the larger capacity needs larger files"
    else:
        for directory in directories:
            if read_store_id(directory) != store_id:
                reason = f"{directory} does not belong to this store (is its drive mounted?)"
    if reason is not None:
        lost = catalogue.drop_rows("1")
        if lost:
            log.warning("%s: %s; its %d chunks are dropped", directories[0], reason or "it is new", lost)
        store_id = secrets.token_hex(8)
        chunks_per_file = choose_chunks_per_file(
            chunk_bytes=geometry.chunk_bytes, num_chunks=num_chunks, num_roots=roots
        )
        catalogue.set_meta(store_id=store_id, chunks_per_file=chunks_per_file)
    assert isinstance(store_id, str) and isinstance(chunks_per_file, int)
    return StoreLayout(
        directories=tuple(map(str, directories)),
        num_layers=geometry.num_layers,
        segment_bytes=geometry.segment_bytes,
        chunk_bytes=geometry.chunk_bytes,
        chunks_per_file=chunks_per_file,
        num_chunks=num_chunks,
        store_id=store_id,
    )


def drop_placeless(catalogue: Catalogue, layout: StoreLayout) -> int:
    """Delete rows without a place and return how many."""
    gone = catalogue.drop_rows("slot < 0 OR slot >= ?", (layout.num_chunks,))
    if gone:
        log.info("%s: %d chunks have no place in the smaller store", layout.directories[0], gone)
    return gone


def drop_unusable(catalogue: Catalogue, layout: StoreLayout, ranks: int) -> int:
    """Delete rows that are not what a planner wrote; return how many."""
    bad = catalogue.drop_rows(
        "typeof(key) <> 'blob' OR length(key) NOT BETWEEN 1 AND ?"
        " OR typeof(generation) <> 'integer' OR generation NOT BETWEEN 0 AND ?"
        " OR typeof(last_used) <> 'integer' OR last_used NOT BETWEEN 0 AND ?"
        " OR ranks <> ? OR typeof(checksums) <> 'blob' OR length(checksums) <> ?",
        (MAX_KEY_BYTES, MAX_NUMBER, MAX_NUMBER, ranks, ranks * layout.num_layers * CHECKSUM_BYTES),
    )
    if bad:
        log.warning("%s: %d damaged rows are dropped", layout.directories[0], bad)
    return bad


def tell_other_namespaces(directories: Sequence[Path], capacity_bytes: int) -> None:
    """Say in one line what else lies in the roots: it is not part of the capacity."""
    count, size = other_namespaces(directories)
    if count:
        log.warning(
            "%s: %d other stores in the same place occupy %d bytes. capacity_bytes (%d) is for each model and"
            " configuration; directories that nobody uses any more (see their %s) can be deleted",
            ", ".join(str(directory.parent) for directory in directories),
            count,
            size,
            capacity_bytes,
            NAMESPACE_FILE,
        )


def shrink_catalogue(catalogue: Catalogue, layout: StoreLayout, ranks: int) -> None:
    """Make the database file fit a store that became smaller."""
    path = Path(layout.directories[0]) / CATALOGUE_NAME
    limit = reserved_bytes(layout.num_chunks, ranks * layout.num_layers * CHECKSUM_BYTES)
    if path.stat().st_size > limit:
        try:
            catalogue.shrink()
        except CatalogueError as error:
            log.warning("%s stays larger than its share of the capacity: %s", path, error)


def write_namespace(layout: StoreLayout, namespace: Namespace) -> None:
    """Write the readable facts and the store's id beside the data, where they differ from what is there."""
    document = {**json.loads(namespace.to_json()), "store_id": layout.store_id}
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    if len(text) > NAMESPACE_FILE_BYTES // 2:
        raise GeometryError(
            f"the namespace's facts take {len(text)} bytes, above {NAMESPACE_FILE_BYTES // 2}"
        )
    for directory in map(Path, layout.directories):
        if read_store_id(directory) != layout.store_id:
            write_private(directory / NAMESPACE_FILE, text)
