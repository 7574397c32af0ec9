# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutti_engine.catalogue import CATALOGUE_NAME, Record
from tutti_engine.geometry import Geometry
from tutti_engine.local_store import LocalStore, bytes_needed
from tutti_engine.namespace import Namespace

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
