# SPDX-License-Identifier: Apache-2.0
"""``tutti ls`` and ``tutti stat`` over real stores."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME
from tutti_engine.namespace import Namespace
from tutti_engine.store.owner import LOCK_NAME, OwnerLock
from tutti_engine.testing.small_server import NAMESPACE


def everything(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in root.rglob("*"):
        state = path.lstat()
        found[str(path)] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def test_ls_names_model_chunks_bytes_and_that_nobody_has_it_open(tutti, store):
    before = everything(store)
    (found,) = tutti("ls", store, "--json").document["stores"]
    assert (found["name"], found["model"], found["chunks"]) == (NAMESPACE.digest, "small server", 6)
    assert found["owner"] is None and found["problem"] is None
    on_disk = sum(path.lstat().st_blocks * 512 for path in (store / NAMESPACE.digest).rglob("*.seg"))
    assert found["occupied_bytes"] >= on_disk > 0
    assert found["data_bytes"] == 6 * found["chunk_bytes"]
    assert found["directories"] == [str(store / NAMESPACE.digest)]
    shown = tutti("ls", store).stdout
    assert NAMESPACE.digest in shown and "small server" in shown and "none" in shown
    assert everything(store) == before, "looking changed something"


def test_ls_and_stat_work_beside_a_server_and_name_its_pid(tutti, tmp_path, owned, owning):
    pid = owned(tmp_path)
    (found,) = tutti("ls", tmp_path, "--json").document["stores"]
    assert (found["owner"]["pid"], found["chunks"]) == (pid, 6)
    assert f"pid {pid}" in tutti("ls", tmp_path).stdout
    (found,) = tutti("stat", tmp_path, "--json").document["stores"]
    assert found["counters"]["store_chunks"] == 6
    assert found["owner"]["pid"] == pid


def test_stat_tells_capacity_ages_and_what_was_loaded(tutti, store, owning):
    server = owning.start([store])
    assert server.load_chunk(b"chunk 1") == "right"
    places = server.store.layout.num_chunks
    server.close()
    (found,) = tutti("stat", store, "--json").document["stores"]
    assert found["capacity_chunks"] == places
    assert found["counters"]["load_chunks"] == 1 and found["counters"]["store_chunks"] == 6
    assert sum(age["chunks"] for age in found["ages"]) == 6
    assert found["ages"][0] == {"below_seconds": 3600, "chunks": 6}
    assert abs(found["newest_use"] - time.time()) < 3600
    shown = tutti("stat", store).stdout
    assert f"{places - 6:,} free" in shown and "load_chunks" in shown


def test_ages_are_counted_over_more_than_one_piece(tutti, store, monkeypatch):
    from tutti_engine.store import facts as store_facts

    monkeypatch.setattr(store_facts, "PIECE_SLOTS", 2)
    (facts,) = store_facts.find_stores([store])
    use = store_facts.read_use(facts, now=time.time() + 2 * 86400)
    assert use.ages == (0, 0, 6, 0, 0)
    assert store_facts.read_use(facts, now=time.time() + 99 * 86400).ages == (0, 0, 0, 0, 6)


def test_stat_takes_the_begin_of_a_name_and_refuses_any_other(tutti, store):
    other = Namespace({"model": "other"}).digest
    (store / other).mkdir()
    assert len(tutti("stat", store, "--json").document["stores"]) == 2
    (found,) = tutti("stat", store, "-n", NAMESPACE.digest[:6], "--json").document["stores"]
    assert found["name"] == NAMESPACE.digest
    refused = tutti("stat", store, "-n", "nothing", code=2)
    assert "'nothing'" in refused.stderr and NAMESPACE.digest in refused.stderr
    refused = tutti("stat", store, "-n", "", code=2)
    assert "several" in refused.stderr


def test_a_store_over_two_roots_tells_what_lies_elsewhere(tutti, tmp_path, owning):
    roots = [tmp_path / "a", tmp_path / "b"]
    server = owning.start(roots)
    server.store_chunks([b"x", b"y"])
    server.close()
    (both,) = tutti("ls", *roots, "--json").document["stores"]
    assert both["elsewhere"] == [] and len(both["directories"]) == 2
    (first,) = tutti("ls", roots[0], "--json").document["stores"]
    assert first["elsewhere"] == [str(roots[1] / NAMESPACE.digest)]
    assert first["occupied_bytes"] < both["occupied_bytes"]
    (second,) = tutti("ls", roots[1], "--json").document["stores"]
    assert second["chunks"] is None and "first root" in second["problem"]
    assert tutti("stat", roots[1], "--json").document["stores"][0]["name"] == NAMESPACE.digest


@pytest.mark.parametrize("content", [b"", b"no database at all", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_catalogue_is_a_remark_and_no_failure(tutti, store, content):
    path = store / NAMESPACE.digest / CATALOGUE_NAME
    path.write_bytes(content)
    for command in ("ls", "stat"):
        (found,) = tutti(command, store, "--json").document["stores"]
        assert found["chunks"] is None and str(path) in found["problem"]
    assert path.read_bytes() == content


def test_what_a_stranger_wrote_is_not_believed_or_shown_raw(tutti, store):
    path = store / NAMESPACE.digest / "namespace.json"
    document = json.loads(path.read_text())
    document["facts"]["model"] = "\x1b[31m[bold]evil"
    document["num_chunks"] = -5
    path.write_text(json.dumps(document))
    (store / NAMESPACE.digest / LOCK_NAME).write_text('{"pid": "many"}')
    assert "\x1b[31m" not in tutti("ls", store).stdout
    assert "[bold]evil" in tutti("ls", store).stdout
    (found,) = tutti("stat", store, "--json").document["stores"]
    assert found["capacity_chunks"] is None
    os.truncate(store / NAMESPACE.digest / LOCK_NAME, 0)
    with OwnerLock(store / NAMESPACE.digest):
        (store / NAMESPACE.digest / LOCK_NAME).write_text("[")
        assert tutti("ls", store, "--json").document["stores"][0]["owner"]["pid"] is None
        assert "a process" in tutti("ls", store).stdout


def test_a_root_that_is_none_and_an_empty_one(tutti, tmp_path):
    refused = tutti("ls", tmp_path / "missing", code=2)
    assert refused.stderr.count("\n") == 1 and "is no directory" in refused.stderr
    assert "no stores" in tutti("ls", tmp_path).stdout
    assert tutti("ls", tmp_path, "--json").document == {"stores": []}
    refused = tutti("ls", tmp_path, tmp_path, code=2)
    assert "named twice" in refused.stderr
    assert tutti("ls", code=2)
