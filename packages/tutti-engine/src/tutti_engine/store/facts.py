# SPDX-License-Identifier: Apache-2.0
"""What lies in some roots, for people who look after them: nothing is written, made or kept locked.

Whether a store has an owner is asked by a shared lock that is given back at once; owners that start in that
moment wait for it (see ``OwnerLock``).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti_engine.catalogue.file import CATALOGUE_NAME, read_meta
from tutti_engine.catalogue.lists import MAX_FAILURES
from tutti_engine.catalogue.reading import reading
from tutti_engine.errors import CatalogueError, RootError
from tutti_engine.store.owner import Owner, read_owner
from tutti_engine.store.roots import absolute_roots, read_namespace
from tutti_engine.store.share import OtherStore, is_owned, other_stores

__all__ = ["AGES", "StoreFacts", "StoreUse", "choose", "find_stores", "read_use"]

AGES = (("1 hour", 3600), ("1 day", 86400), ("7 days", 7 * 86400), ("30 days", 30 * 86400))
"""Upper bounds of the classes of age, in seconds, with their names."""

PIECE_SLOTS = 8192
"""Rows that one statement reads: while it runs, an owner cannot empty its log."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One store as it is now.

    Attributes:
        name: its directories' name, the digest of its namespace.
        directories: all that it has, in its own order; of the given roots alone where its catalogue does not
            say.
        catalogue: the one of them with its catalogue; the first where none has it.
        elsewhere: those of them that are in none of the given roots.
        namespace: its ``namespace.json``, empty when that cannot be read.
        owner: the process that has it open; None if none has.
        occupied: bytes on disk in the given roots.
        used_at: when its catalogue was last written, seconds since 1970.
        shape: the catalogue's ``layout_facts``: ranks, layers, bytes; empty when it cannot be read.
        chunks: how many are resident; None when the catalogue cannot be read.
        problem: why the catalogue cannot be read; empty when it can.
    """

    name: str
    directories: tuple[Path, ...]
    catalogue: Path
    elsewhere: tuple[Path, ...]
    namespace: dict[str, Any]
    owner: Owner | None
    occupied: int
    used_at: float
    shape: dict[str, Any]
    chunks: int | None
    problem: str

    @property
    def facts(self) -> dict[str, Any]:
        """What the server said about model and cache."""
        found = self.namespace.get("facts")
        return found if isinstance(found, dict) else {}

    @property
    def model(self) -> str:
        """The model's name; empty when nobody said one."""
        found = self.facts.get("model")
        return found if isinstance(found, str) else ""

    @property
    def capacity_chunks(self) -> int | None:
        """For how many chunks there are places."""
        return self.number("num_chunks")

    def number(self, key: str) -> int | None:
        """Return a positive whole number of ``namespace.json`` or of the shape; None if there is none."""
        found = self.namespace.get(key, self.shape.get(key))
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    @property
    def made_as(self) -> tuple[str, ...]:
        """Its directories when its last owner ran; empty when nobody says."""
        found = self.shape.get("roots")
        named = isinstance(found, list) and all(isinstance(each, str) for each in found)
        return tuple(found or ()) if named else ()

    @property
    def data_bytes(self) -> int | None:
        """Bytes of the resident chunks' places, over all ranks and roots."""
        ranks, size = self.number("ranks"), self.number("chunk_bytes")
        return None if self.chunks is None or not ranks or not size else self.chunks * ranks * size


def find_stores(roots: Sequence[Path | str]) -> list[StoreFacts]:
    """Return the stores in some roots, the one unused for longest first.

    Raises RootError for a root that is no directory, or when the system cannot read now what it could else.
    """
    paths = absolute_roots(roots)
    for path in paths:
        if not path.is_dir():
            raise RootError(f"{path} is no directory; name the directories of 'root'", path=path)
    return [look_at(other) for other in other_stores(paths)]


def look_at(other: OtherStore) -> StoreFacts:
    """Return what can be known of one store."""
    namespace: dict[str, Any] = {}
    with contextlib.suppress(RootError):
        namespace = read_namespace(other.directories[0])
    shape: dict[str, Any] = {}
    chunks, problem = None, ""
    catalogues = [each for each in other.directories if (each / CATALOGUE_NAME).exists()]
    if not catalogues:
        problem = "there is no catalogue in these roots; name the store's first root as well"
    else:
        try:
            with reading(catalogues[0]) as connection:
                found = read_meta(connection).get("layout_facts")
                shape = found if isinstance(found, dict) else {}
                chunks = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
        except CatalogueError as error:
            problem = str(error)
    directories = directories_of(other, shape)
    owner = next((each for each in other.directories if other.owned and is_owned(each)), None)
    return StoreFacts(
        name=other.name,
        directories=directories,
        catalogue=catalogues[0] if catalogues else directories[0],
        elsewhere=tuple(each for each in directories if each not in other.directories),
        namespace=namespace,
        owner=None if owner is None else read_owner(owner),
        occupied=other.occupied,
        used_at=other.used_at,
        shape=shape,
        chunks=chunks,
        problem=problem,
    )


def directories_of(other: OtherStore, shape: dict[str, Any]) -> tuple[Path, ...]:
    """Return the store's directories in its order; what no store wrote is not believed."""
    named = shape.get("roots")
    if isinstance(named, list) and all(isinstance(each, str) for each in named):
        paths = tuple(map(Path, named))
        if {*other.directories} <= {*paths} and all(
            path.is_absolute() and path.name == other.name for path in paths
        ):
            return paths
    return tuple(other.directories)


def choose(stores: Sequence[StoreFacts], namespace: str) -> StoreFacts:
    """Return the store whose name begins so. Raises ValueError when none does, or several do."""
    found = [each for each in stores if each.name == namespace] or [
        each for each in stores if each.name.startswith(namespace)
    ]
    if len(found) != 1:
        names = ", ".join(each.name for each in (found or stores)) or "none"
        what = "no store's name begins" if not found else "several stores' names begin"
        raise ValueError(f"{what} with {namespace!r}; there are: {names}")
    return found[0]


@dataclass(frozen=True, slots=True)
class StoreUse:
    """How a store was used.

    Attributes:
        counters: lifetime totals, see ``Planner``.
        ages: how many chunks were last used within each of ``AGES`` but not the one before; then the rest.
        oldest: the longest unused chunk's last use, seconds since 1970; None without chunks.
        newest: the last use of all.
        retired: places that are not used any more, since what they held did not verify twice.
    """

    counters: dict[str, int]
    ages: tuple[int, ...]
    oldest: int | None
    newest: int | None
    retired: int


def read_use(store: StoreFacts, now: float | None = None) -> StoreUse:
    """Read a store's whole catalogue, in pieces. Raises CatalogueError."""
    if store.problem:
        raise CatalogueError(store.problem)
    now = time.time() if now is None else now
    bounds = [now - seconds for _, seconds in AGES]
    counts = [0] * (len(bounds) + 1)
    oldest, newest = [], []
    with reading(store.catalogue) as connection:
        counters = dict(connection.execute("SELECT name, value FROM counters"))
        # Catalogues of schema 1 have no such list.
        retired = 0
        with contextlib.suppress(sqlite3.OperationalError):
            retired = connection.execute(
                "SELECT count(*) FROM suspects WHERE failures >= ?", (MAX_FAILURES,)
            ).fetchone()[0]
        last = connection.execute("SELECT max(slot) FROM chunks").fetchone()[0]
        for first in range(0, 0 if last is None else last + 1, PIECE_SLOTS):
            used = connection.execute(
                "SELECT last_used FROM chunks WHERE slot BETWEEN ? AND ?", (first, first + PIECE_SLOTS - 1)
            ).fetchall()
            times = [at for (at,) in used if isinstance(at, int)]
            for at in times:
                counts[next((n for n, bound in enumerate(bounds) if at >= bound), len(bounds))] += 1
            if times:
                oldest.append(min(times))
                newest.append(max(times))
    return StoreUse(counters, tuple(counts), min(oldest, default=None), max(newest, default=None), retired)
