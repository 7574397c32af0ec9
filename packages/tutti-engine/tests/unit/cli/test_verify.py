# SPDX-License-Identifier: Apache-2.0
"""``tutti verify`` over stores whose bytes are right, wrong, missing or somebody else's."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME
from tutti_engine.geometry import Geometry
from tutti_engine.movers.formulas import find_checksum
from tutti_engine.store import verify as store_verify
from tutti_engine.store.facts import find_stores
from tutti_engine.testing.small_server import NAMESPACE


def segments(root: Path) -> Path:
    return root / NAMESPACE.digest / "rank-0" / "0.seg"


def rows(root: Path) -> dict[int, bytes]:
    with closing(sqlite3.connect(root / NAMESPACE.digest / CATALOGUE_NAME)) as connection:
        return dict(connection.execute("SELECT slot, key FROM chunks"))


def spoil(root: Path, owning, slot: int, layer: int = 1, byte: int = 0) -> None:
    """Flip a byte of a segment's data."""
    geometry = owning.GEOMETRY
    with segments(root).open("r+b") as file:
        file.seek(slot * geometry.chunk_bytes + layer * geometry.segment_bytes + byte)
        (value,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ 1]))


def one(result):
    (found,) = result.document["stores"]
    return found


def test_a_sound_store_is_read_whole(tutti, store, owning):
    before = segments(store).read_bytes()
    found = one(tutti("verify", store, "--json"))
    assert (found["checked"], found["chunks"], found["damaged_chunks"], found["changed"]) == (6, 6, 0, 0)
    assert found["read_bytes"] == 6 * 2 * owning.GEOMETRY.segment_bytes
    assert segments(store).read_bytes() == before
    assert "6 of 6 chunks compared" in tutti("verify", store).stdout


@pytest.mark.parametrize("byte", [0, 5999])
def test_one_flipped_bit_is_found_and_named(tutti, store, owning, byte):
    slot = min(rows(store))
    spoil(store, owning, slot, layer=1, byte=byte)
    found = one(tutti("verify", store, "--json", code=1))
    assert found["damaged_chunks"] == 1 and found["dropped_chunks"] == 0
    assert found["damages"] == [
        {
            "place": slot,
            "key": rows(store)[slot].hex(),
            "rank": 0,
            "layers": [1],
            "reason": "its checksum differs",
        }
    ]
    shown = tutti("verify", store, code=1).stdout
    assert rows(store)[slot].hex() in shown and "--repair" in shown
    assert len(rows(store)) == 6, "looking changed something"


def test_bytes_between_segments_do_not_matter(tutti, store, owning):
    spoil(store, owning, min(rows(store)), byte=6000)
    tutti("verify", store)


def test_repair_drops_the_damaged_chunk_and_nothing_else(tutti, store, owning):
    slot = min(rows(store))
    key = rows(store)[slot]
    spoil(store, owning, slot)
    found = one(tutti("verify", store, "--repair", "--json", code=1))
    assert found["dropped_chunks"] == 1
    assert set(rows(store)) == set(range(6)) - {slot}
    tutti("verify", store)
    server = owning.start([store])
    try:
        assert server.load_chunk(key) == "miss"
        assert [server.load_chunk(each) for each in rows(store).values()] == ["right"] * 5
    finally:
        server.close()
    counters = tutti("stat", store, "--json").document["stores"][0]["counters"]
    assert counters["lost_chunks"] == counters["corrupt_chunks"] == 1


def test_beside_a_server_reading_works_and_repair_is_refused_with_its_pid(tutti, tmp_path, owned, owning):
    pid = owned(tmp_path)
    assert one(tutti("verify", tmp_path, "--json"))["checked"] == 6
    spoil(tmp_path, owning, 0)
    assert one(tutti("verify", tmp_path, "--json", code=1))["damaged_chunks"] == 1
    refused = tutti("verify", tmp_path, "--repair", code=2)
    assert str(pid) in refused.stderr and refused.stderr.count("\n") == 1
    assert len(rows(tmp_path)) == 6


def test_a_chunk_that_an_owner_replaces_meanwhile_is_no_damage(store, owning, monkeypatch):
    (facts,) = find_stores([store])
    spoil(store, owning, 2)
    real = store_verify.check_row

    def and_replaced(reader, ranks, row):
        found = real(reader, ranks, row)
        if found:
            with closing(sqlite3.connect(store / NAMESPACE.digest / CATALOGUE_NAME)) as connection:
                connection.execute("UPDATE chunks SET generation = generation + 1 WHERE slot = 2")
                connection.commit()
        return found

    monkeypatch.setattr(store_verify, "check_row", and_replaced)
    report = store_verify.verify(facts, range(9), find_checksum("blake2b-64"))
    assert (report.checked, report.damages) == (5, [])
    assert report.changed == 4, "three places are empty, one was filled anew"


def test_truncated_and_missing_files_are_damage_and_not_an_error(tutti, store, owning):
    os.truncate(segments(store), owning.GEOMETRY.chunk_bytes)
    found = one(tutti("verify", store, "--json", code=1))
    assert found["damaged_chunks"] == 5 and "too short" in found["damages"][0]["reason"]
    segments(store).unlink()
    segments(store).symlink_to("/dev/zero")
    found = one(tutti("verify", store, "--json", code=1))
    assert found["damaged_chunks"] == 6 and "cannot be read" in found["damages"][0]["reason"]


def test_a_sample_reads_so_many_and_no_more(tutti, store):
    assert one(tutti("verify", store, "--sample", 2, "--json"))["checked"] == 2
    assert one(tutti("verify", store, "--sample", 100, "--json"))["checked"] == 6
    tutti("verify", store, "--sample", 0, code=2)


def test_a_damaged_row_is_found_and_dropped(tutti, store):
    with closing(sqlite3.connect(store / NAMESPACE.digest / CATALOGUE_NAME)) as connection:
        connection.execute("UPDATE chunks SET checksums = 'text' WHERE slot = 1")
        connection.commit()
    found = one(tutti("verify", store, "--repair", "--json", code=1))
    assert found["damages"][0]["rank"] is None and found["dropped_chunks"] == 1
    assert set(rows(store)) == {0, 2, 3, 4, 5}


def test_a_single_root_may_have_moved_and_several_must_be_where_they_were(tutti, store, tmp_path, owning):
    tutti("verify", store.rename(tmp_path / "moved"))
    server = owning.start([tmp_path / "a", tmp_path / "b"])
    server.store_chunks([b"x", b"y", b"z"])
    server.close()
    assert one(tutti("verify", tmp_path / "b", tmp_path / "a", "--json"))["checked"] == 3
    assert one(tutti("verify", tmp_path / "a", "--json"))["checked"] == 3, "it knows its other root itself"
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "d")
    for roots in (["c", "d"], ["d", "c"], ["c"]):
        paths = [tmp_path / root for root in roots]
        assert "mount its drives" in tutti("verify", *paths, "--repair", code=2).stderr
        if len(roots) == 1:
            assert "name as many roots" in tutti("gc", *paths, "-n", NAMESPACE.digest, code=2).stderr


def test_what_a_store_does_not_say_is_asked_for(tutti, store):
    path = store / NAMESPACE.digest / "namespace.json"
    document = json.loads(path.read_text())
    del document["facts"]["checksum"]
    path.write_text(json.dumps(document))
    assert "--checksum" in tutti("verify", store, code=2).stderr
    tutti("verify", store, "--checksum", "blake2b-64")
    assert "md5" in tutti("verify", store, "--checksum", "md5", code=2).stderr
    del document["data_bytes"]
    path.write_text(json.dumps(document))
    assert "start its server once" in tutti("verify", store, "--checksum", "blake2b-64", code=2).stderr


def test_segments_that_were_never_stored_are_left_out_and_all_sizes_count(tmp_path):
    from tutti_engine.cache_group import CacheGroup
    from tutti_engine.store.layout import StoreLayout

    geometry = Geometry.of_groups(
        [CacheGroup((0, 1), 16, 4000), CacheGroup((2,), 32, 5000)], blocks_per_chunk=1
    )
    assert geometry.data_sizes == [5000, 8000]
    layout = StoreLayout.of([tmp_path], geometry, chunks_per_file=4, num_chunks=4, store_id="")
    data = os.urandom(geometry.chunk_bytes)
    path = Path(layout.file_path(0, 0))
    path.parent.mkdir()
    path.write_bytes(data)
    checksum = find_checksum("blake2b-64")
    size = geometry.segment_bytes
    sums = [
        checksum(memoryview(data)[layer * size : layer * size + used]).to_bytes(8, "little")
        for layer, used in enumerate((8000, 8000, 5000))
    ]
    reader = store_verify.Reader(layout, geometry.data_sizes, checksum)
    assert list(reader.bad_layers(0, 0, b"".join(sums))) == []
    assert list(reader.bad_layers(0, 0, b"".join([sums[0], bytes(8), sums[2]]))) == []
    assert list(reader.bad_layers(0, 0, b"".join([sums[1], sums[0], sums[2]]))) == [0, 1]


def test_the_kernels_checksum_is_the_one_that_their_mover_stores(tmp_path):
    kernels = pytest.importorskip("tutti_kv_kernels", reason="extra kernels")
    data = bytearray(os.urandom(100_000))
    import torch

    expected = kernels.checksum(torch.frombuffer(data, dtype=torch.uint8))
    assert find_checksum(kernels.CHECKSUM_NAME)(memoryview(data)) == expected
