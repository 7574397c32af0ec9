# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutti_engine.catalogue import file as catalogue_file
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Catalogue, Record
from tutti_engine.catalogue.connection import DamagedError
from tutti_engine.catalogue.file import CHECKED_PAGES
from tutti_engine.catalogue.scrub import Scrub
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore, bytes_needed

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
NAMESPACE = Namespace({"test": "damage"})
CHUNKS = 100

damages = st.lists(
    st.tuples(
        # The first page has the header and the schema, where most of SQLite's parsing happens.
        st.integers(0, 4095) | st.integers(0, 100_000),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=6,
)


def open_store(root: Path) -> LocalStore:
    # Room for set-aside copies, which count.
    capacity = bytes_needed(CHUNKS, geometry=GEOMETRY, ranks=1, roots=1) + (1 << 20)
    return LocalStore.open([root], NAMESPACE, GEOMETRY, ranks=1, capacity_bytes=capacity)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    with open_store(root) as store:
        for slot in range(CHUNKS):
            store.catalogue.put(Record(b"%032d" % slot, slot, 1, (b"s" * 16,), 1))
    return root


@given(damage=damages, cut=st.none() | st.integers(0, 60_000))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_store_opens_and_works_whatever_the_catalogue_holds(
    damage: list[tuple[int, bytes]], cut: int | None, sound: Path, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(sound, root)
    path = root / NAMESPACE.digest / CATALOGUE_NAME
    content = bytearray(path.read_bytes())
    for place, junk in damage:
        start = place % len(content)
        content[start : start + len(junk)] = junk
    path.write_bytes(content[:cut])
    with open_store(root) as store:
        for record in store.records:
            assert isinstance(record.key, bytes)
            assert record.slot in store.chunk_ids
            assert [len(part) for part in record.checksums] == [16]
        assert len({record.slot for record in store.records}) == len(store.records)
    with open_store(root) as store:
        store.catalogue.put(Record(b"new", 3, 2, (b"t" * 16,), 2))
        assert store.catalogue.flush(10), store.catalogue.last_error
        assert b"new" in {record.key for record in store.catalogue.records()}


LARGE = 3000


def open_large(root: Path) -> LocalStore:
    capacity = bytes_needed(LARGE, geometry=WIDE, ranks=1, roots=1) + (64 << 20)
    return LocalStore.open([root], NAMESPACE, WIDE, ranks=1, capacity_bytes=capacity)


WIDE = Geometry(num_layers=400, block_tokens=16, blocks_per_chunk=1, page_bytes=4096)
"""So many checksums a row that few rows make a database that is not verified before it is used."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("large")
    with open_large(root) as store:
        for slot in range(LARGE):
            store.catalogue.put(Record(b"%032d" % slot, slot, 1, (b"s" * 3200,), 1))
    content = (root / NAMESPACE.digest / CATALOGUE_NAME).read_bytes()
    assert len(content) > CHECKED_PAGES * 4096
    return content


@pytest.mark.parametrize("first", [2, 700, 2500])
@pytest.mark.parametrize("count", [1, 300])
def test_store_opens_whatever_pages_of_a_large_catalogue_are_damaged(
    first: int, count: int, large: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_large(tmp_path).close()
    path = tmp_path / NAMESPACE.digest / CATALOGUE_NAME
    # The settings are those of this store, the rest is damaged.
    with closing(sqlite3.connect(path)) as database:
        settings_ = database.execute("SELECT * FROM meta").fetchall()
    path.write_bytes(large)
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", settings_)
    with path.open("r+b") as file:
        file.seek(first * 4096)
        file.write(b"\xa5" * (count * 4096))
    for _ in range(2):
        with open_large(tmp_path) as store:
            store.catalogue.put(Record(b"new", 3, 2, (b"t" * 3200,), 2))
            assert store.catalogue.flush(30), store.catalogue.last_error
    assert [each.levelname for each in caplog.records].count("WARNING") <= 1


def test_damage_found_beside_the_work_that_cannot_be_mended_yet_does_not_end_the_catalogue(
    large: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def refuse(*_: object) -> None:
        refused.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    def damaged(*_: object) -> bool:
        raise DamagedError("as if a page were")

    path = tmp_path / CATALOGUE_NAME
    path.write_bytes(large)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM meta")
    catalogue = Catalogue.open(path, layout_facts={})
    try:
        with monkeypatch.context() as patch:
            patch.setattr(catalogue_file, "set_aside", refuse)
            patch.setattr(Scrub, "step", damaged)
            catalogue.put(Record(b"one", LARGE, 2, (b"t" * 3200,), 2))
            patch.setattr(catalogue._ahead, "_scrub", Scrub(1))
            assert catalogue.flush(30)
            assert refused.wait(30)
        catalogue.put(Record(b"two", LARGE + 1, 2, (b"t" * 3200,), 2))
        assert catalogue.flush(30), catalogue.last_error
    finally:
        assert catalogue.close()
