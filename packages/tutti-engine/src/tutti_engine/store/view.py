# SPDX-License-Identifier: Apache-2.0
"""A store that belongs to somebody else, seen without taking part in it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME
from tutti_engine.catalogue.checksum_table import ChecksumTable
from tutti_engine.catalogue.file import read_meta
from tutti_engine.catalogue.reading import reading
from tutti_engine.catalogue.record import is_sound
from tutti_engine.catalogue.residents import Residents
from tutti_engine.catalogue.slot_table import Row
from tutti_engine.errors import CatalogueError, RootError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.capacity import CHECKSUM_BYTES
from tutti_engine.store.layout import MAX_FILES_PER_ROOT, StoreLayout
from tutti_engine.store.names import check_replica, layout_facts, store_name
from tutti_engine.store.readers import ReaderLock
from tutti_engine.store.roots import absolute_roots, read_namespace

__all__ = ["LocalStoreView", "fits"]

READ_ROWS = 256


@dataclass(eq=False)
class LocalStoreView:
    """What a store held when it was looked at. Use ``LocalStoreView.open``.

    Nothing is written or made, and no other view or owner is kept out, so any number of views may stand
    beside an owner, or without one. A shared lock, until ``close``, keeps others from removing the store. The
    owner goes on storing and evicting: a chunk whose place it has filled anew since does not verify, which is
    a miss. ``ViewFollower`` tells a planner what changed since.

    Attributes:
        layout: where segments lie; ``read_only``, so that execution sides do not write either.
        records: what was resident.
        ranks: how many ranks share each chunk.
    """

    layout: StoreLayout
    records: Residents = field(repr=False)
    ranks: int
    _reading: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    @classmethod
    def open(
        cls,
        roots: Sequence[Path | str],
        namespace: Namespace,
        geometry: Geometry,
        *,
        ranks: int,
        replica: tuple[int, int] = (0, 1),
    ) -> LocalStoreView:
        """Look at the store of a namespace. Arguments are those of ``LocalStore.open``.

        Raises:
            RootError: there is no such store in these roots.
            CatalogueError: the catalogue cannot be read, or is of another shape.
        """
        name = store_name(namespace, *check_replica(replica))
        directories = [root / name for root in absolute_roots(roots)]
        with contextlib.ExitStack() as stack:
            for directory in directories:
                stack.callback(ReaderLock(directory).release)
            view = cls._looked_at(directories, geometry, ranks)
            view._reading.enter_context(stack.pop_all())
        return view

    @classmethod
    def _looked_at(cls, directories: list[Path], geometry: Geometry, ranks: int) -> LocalStoreView:
        facts = read_namespace(directories[0])
        store_id, num_chunks = facts.get("store_id"), facts.get("num_chunks")
        if not isinstance(store_id, str) or not isinstance(num_chunks, int) or num_chunks < 1:
            raise RootError(
                f"there is no store in {directories[0]} to read; start a server that writes there first",
                path=directories[0],
            )
        with reading(directories[0]) as connection:
            meta = read_meta(connection)
        if meta.get("layout_facts") != layout_facts(directories, geometry, ranks):
            raise CatalogueError(
                f"the store in {directories[0]} has other roots, ranks or sizes; give those of its owner"
            )
        chunks_per_file = meta.get("chunks_per_file")
        if not isinstance(chunks_per_file, int) or meta.get("store_id") != store_id:
            raise CatalogueError(f"the store in {directories[0]} is being made anew; try again")
        if chunks_per_file < 1 or -(-num_chunks // len(directories)) > chunks_per_file * MAX_FILES_PER_ROOT:
            raise CatalogueError(
                f"{num_chunks} chunks of {chunks_per_file} a file are no store; is {directories[0]} damaged?"
            )
        layout = StoreLayout.of(
            directories,
            geometry,
            chunks_per_file=chunks_per_file,
            num_chunks=num_chunks,
            store_id=store_id,
            read_only=True,
        )
        return cls(layout, read_records(layout, ranks), ranks)

    @property
    def chunk_ids(self) -> Sequence[int]:
        """Every chunk id of the store."""
        return range(self.layout.num_chunks)

    @property
    def directory(self) -> Path:
        """The directory with the catalogue, for ``read_counters`` and ``resident_chunks``."""
        return Path(self.layout.directories[0])

    def look(self) -> Residents:
        """Return what is resident now. Raises CatalogueError when the catalogue cannot be read."""
        return read_records(self.layout, self.ranks)

    def close(self) -> None:
        """Let others remove the store. Later calls do nothing."""
        self._reading.close()

    def __enter__(self) -> LocalStoreView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fits(row: Row, layout: StoreLayout, ranks: int) -> bool:
    """Return whether a row of the catalogue is one that the owner of such a store wrote."""
    width = ranks * layout.num_layers * CHECKSUM_BYTES
    return is_sound(row) and row[0] < layout.num_chunks and row[3] == ranks and len(row[4]) == width


def read_records(layout: StoreLayout, ranks: int) -> Residents:
    """Return the sound rows of the catalogue as they are at one moment."""
    part = layout.num_layers * CHECKSUM_BYTES
    path = Path(layout.directories[0]) / CATALOGUE_NAME
    try:
        found = Residents.from_rows([], ChecksumTable(layout.num_chunks, ranks, part))
        with reading(path.parent) as connection:
            rows = connection.execute("SELECT * FROM chunks")
            while some := rows.fetchmany(READ_ROWS):
                found.extend([row for row in some if fits(row, layout, ranks)])
    except (sqlite3.Error, OSError, OverflowError) as error:
        raise CatalogueError(f"cannot read the catalogue {path}: {error}") from error
    return found
