# SPDX-License-Identifier: Apache-2.0
"""The planning side of a store on local drives: one process owns directories, catalogue and capacity."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Catalogue
from tutti_engine.catalogue.file import MAX_KEY_BYTES, reserved_bytes
from tutti_engine.catalogue.record import MAX_NUMBER
from tutti_engine.catalogue.residents import Residents
from tutti_engine.catalogue.slot_table import SLOT_TABLE_NAME
from tutti_engine.errors import CatalogueError, GeometryError, TuttiError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.capacity import (
    CHECKSUM_BYTES,
    NAMESPACE_FILE_BYTES,
    bound_set_aside,
    bytes_needed,
    chunks_that_fit,
)
from tutti_engine.store.layout import MAX_FILES_PER_ROOT, StoreLayout, choose_chunks_per_file
from tutti_engine.store.names import check_replica, layout_facts, store_name
from tutti_engine.store.owner import OwnerLock
from tutti_engine.store.readers import make_readers_file
from tutti_engine.store.roots import (
    NAMESPACE_FILE,
    prepare_roots,
    read_namespace,
    read_store_id,
    refuse,
    trim_files,
    write_private,
)
from tutti_engine.store.share import opening_turn, other_stores, reclaim
from tutti_engine.store.slot_order import slot_order
from tutti_engine.store.space import SpaceKeeper, SpaceSettings

__all__ = ["LocalStore", "bytes_needed", "chunks_that_fit"]

log = logging.getLogger(__name__)

RETIRED_SHARE = 16
"""One place in so many may be retired for data that did not verify; more are a sign of lost files."""


def remove_stale_catalogues(directories: Sequence[Path]) -> None:
    """Remove the catalogues of when these later roots were first: their rows mean other places."""
    for directory in directories:
        for name in (*(f"{CATALOGUE_NAME}{tail}" for tail in ("-wal", "-shm", "")), SLOT_TABLE_NAME):
            (directory / name).unlink(missing_ok=True)


@contextlib.contextmanager
def told_as_root_error(directory: Path) -> Iterator[None]:
    """Raise RootError, which every caller expects, for whatever else the system refuses at a start."""
    try:
        yield
    except TuttiError:
        raise
    except OSError as error:
        raise refuse(directory, str(error), error.errno) from error


@dataclass(eq=False)
class LocalStore:
    """An open store. Use ``LocalStore.open``.

    Attributes:
        layout: where segments lie; give it to the execution sides.
        catalogue: what is resident.
        records: what was resident at start, each with a slot of this layout and checksums of the right size.
            The store itself does not need them: empty the list once they are taken over.
        dropped_records: rows that were not like that and are gone.
        places: hands out places, when the settings ask for more than letting the planner use all of them.
    """

    layout: StoreLayout
    catalogue: Catalogue
    records: Residents = field(repr=False)
    dropped_records: int
    _locks: contextlib.ExitStack = field(repr=False)
    _retired: list[int] = field(default_factory=list, repr=False)
    places: SpaceKeeper | None = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        roots: Sequence[Path | str],
        namespace: Namespace,
        geometry: Geometry,
        *,
        ranks: int,
        capacity_bytes: int,
        replica: tuple[int, int] = (0, 1),
        space: SpaceSettings | None = None,
        reclaim_unused_days: float | None = None,
    ) -> LocalStore:
        """Open ``<root>/<namespace digest>`` in every root, making what is missing; own it until ``close``.

        Another list of roots, shape or number of ranks than last time starts empty; a larger or smaller
        capacity keeps the chunks that still have a place.

        ``capacity_bytes`` bounds everything that stores have in these roots: other namespaces, of which each
        model and configuration has its own, count with what they occupy, running ones with what they may
        grow to; and so does the newest catalogue that was damaged and set aside (older ones are removed).
        One log line tells of others.

        Args:
            roots: directories, each best on a drive of its own.
            namespace: what must be equal for bytes to be interchangeable.
            geometry: shape of a chunk on one rank.
            ranks: how many ranks share each chunk.
            capacity_bytes: most bytes on disk.
            replica: number of this server among equal ones that run side by side, and how many they are. Each
                has a store of its own and an equal share of the capacity.
            space: how places are made and how much the file systems keep free; None for ``SpaceSettings()``.
            reclaim_unused_days: after how many days without an owner another namespace is removed when its
                room is needed; None never removes any.

        Raises:
            GeometryError: the capacity, or what others leave of it, is below one chunk; or another number is
                out of its range.
            RootError: a root is a link, no directory, or cannot be read or written.
            StoreBusyError: a running process owns the store.
            CatalogueError: the catalogue's database cannot be made.
        """
        if ranks < 1:
            raise GeometryError(f"ranks must be at least 1, not {ranks}")
        if reclaim_unused_days is not None and not reclaim_unused_days >= 0:
            raise GeometryError(f"reclaim_unused_days must be 0 or more, not {reclaim_unused_days!r}")
        number, replicas = check_replica(replica)
        share = capacity_bytes // replicas
        chunks_that_fit(share, geometry=geometry, ranks=ranks, roots=len(roots))
        directories = prepare_roots(roots, store_name(namespace, number, replicas))
        with told_as_root_error(directories[0]), contextlib.ExitStack() as stack:
            owners = contextlib.ExitStack()
            stack.callback(owners.close)
            locks = [owners.enter_context(OwnerLock(directory)) for directory in directories]
            catalogue = Catalogue.open(
                directories[0] / CATALOGUE_NAME,
                layout_facts=layout_facts(directories, geometry, ranks),
                owned=lambda: all(lock.current for lock in locks),
            )
            stack.pop_all()
            stack.callback(give_up, catalogue, owners)
            remove_stale_catalogues(directories[1:])
            for directory in directories:
                make_readers_file(directory)
            with opening_turn([directory.parent for directory in directories]):
                siblings = [store_name(namespace, each, replicas) for each in range(replicas)]
                others = bytes_of_others(directories, siblings, capacity_bytes, reclaim_unused_days)
                room = (capacity_bytes - others) // replicas
                smallest = bytes_needed(1, geometry=geometry, ranks=ranks, roots=len(roots))
                aside = bound_set_aside(directories, max(0, min(share // 4, room - smallest)))
                num_chunks = chunks_that_fit(
                    share, geometry=geometry, ranks=ranks, roots=len(roots), used=share - room + aside
                )
                layout = settle_layout(catalogue, directories, geometry, num_chunks)
                write_namespace(
                    layout,
                    namespace,
                    geometry,
                    bytes_needed(num_chunks, geometry=geometry, ranks=ranks, roots=len(roots)) // len(roots),
                )
            store = cls._settled(layout, catalogue, ranks, space or SpaceSettings(), owners)
            stack.pop_all()
            return store

    @classmethod
    def _settled(
        cls,
        layout: StoreLayout,
        catalogue: Catalogue,
        ranks: int,
        space: SpaceSettings,
        owners: contextlib.ExitStack,
    ) -> LocalStore:
        """Read the catalogue and make catalogue and files fit the layout."""
        dropped = drop_placeless(catalogue, layout)

        def drop_damaged() -> None:
            nonlocal dropped
            dropped += drop_unusable(catalogue, layout, ranks)

        records = catalogue.residents(
            layout.num_chunks, ranks, layout.num_layers * CHECKSUM_BYTES, before_reading=drop_damaged
        )
        trim_files(layout, ranks)
        shrink_catalogue(catalogue, layout, ranks)
        retired = catalogue.retired_slots(layout.num_chunks // RETIRED_SHARE)
        if retired:
            log.warning(
                "%s: %d places are not used any more, what was stored there twice did not verify",
                layout.directories[0],
                len(retired),
            )
        places = None
        if space.needs_keeper:
            places = SpaceKeeper(layout, ranks, records.slots, space, retired=retired)
        return cls(layout, catalogue, records, dropped, owners, retired, places)

    @property
    def chunk_ids(self) -> Sequence[int]:
        """Every chunk id of the store that may be used, in the order in which they should be filled."""
        order = slot_order(self.layout)
        if not self._retired:
            return order
        retired = frozenset(self._retired)
        return [slot for slot in order if slot not in retired]

    @property
    def directory(self) -> Path:
        """The directory with the catalogue, for ``read_counters`` and ``resident_chunks``."""
        return Path(self.layout.directories[0])

    def close(self) -> None:
        """Make the catalogue durable, as far as the disk allows within some seconds, and give the store up.

        While the disk does not answer, the catalogue's thread may outlast this call; the store stays owned
        until it has ended. Later calls do nothing.
        """
        if self.places is not None:
            self.places.close()
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
    return StoreLayout.of(
        directories, geometry, chunks_per_file=chunks_per_file, num_chunks=num_chunks, store_id=store_id
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


def bytes_of_others(
    directories: Sequence[Path],
    siblings: Sequence[str],
    capacity_bytes: int,
    reclaim_unused_days: float | None,
) -> int:
    """Return what other stores in the roots take of the capacity; say so in one line.

    With ``reclaim_unused_days`` those that nobody used for so long are removed first.
    """
    roots = [directory.parent for directory in directories]
    others = other_stores(roots, siblings)
    if reclaim_unused_days is not None:
        since = time.time() - reclaim_unused_days * 86400
        others = reclaim(others, wanted=sum(other.counted for other in others), unused_since=since)
    size = sum(other.counted for other in others)
    if others:
        log.warning(
            "%s: %d other stores in the same place take %d bytes of capacity_bytes (%d). Those that nobody"
            " uses any more (see their %s) can be removed: python -m tutti_engine.store.admin",
            ", ".join(map(str, roots)),
            len(others),
            size,
            capacity_bytes,
            NAMESPACE_FILE,
        )
    return size


def shrink_catalogue(catalogue: Catalogue, layout: StoreLayout, ranks: int) -> None:
    """Make the database file fit a store that became smaller."""
    path = Path(layout.directories[0]) / CATALOGUE_NAME
    limit = reserved_bytes(layout.num_chunks, ranks * layout.num_layers * CHECKSUM_BYTES)
    if path.stat().st_size > limit:
        try:
            catalogue.shrink()
        except CatalogueError as error:
            log.warning("%s stays larger than its share of the capacity: %s", path, error)


def write_namespace(
    layout: StoreLayout, namespace: Namespace, geometry: Geometry, reserved_bytes: int
) -> None:
    """Write the readable facts, the store's id and size beside the data, where they differ from before."""
    document = {
        **json.loads(namespace.to_json()),
        "store_id": layout.store_id,
        "num_chunks": layout.num_chunks,
        "reserved_bytes": reserved_bytes,
        "data_bytes": geometry.data_sizes,
    }
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    if len(text) > NAMESPACE_FILE_BYTES // 2:
        raise GeometryError(
            f"the namespace's facts take {len(text)} bytes, above {NAMESPACE_FILE_BYTES // 2}"
        )
    for directory in map(Path, layout.directories):
        if read_namespace(directory) != document:
            write_private(directory / NAMESPACE_FILE, text)
