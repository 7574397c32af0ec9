# SPDX-License-Identifier: Apache-2.0
"""``tutti gc`` removes what nobody uses, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine.catalogue.catalogue import Record
from tutti_engine.errors import RootError, StoreBusyError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.collect import remove, why_kept
from tutti_engine.store.facts import find_stores
from tutti_engine.store.local_store import LocalStore
from tutti_engine.store.readers import READERS_NAME, without_readers
from tutti_engine.store.share import other_stores, reclaim
from tutti_engine.store.view import LocalStoreView
from tutti_engine.testing.small_server import NAMESPACE

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
OLD, NEW = (Namespace({"model": name}).digest for name in ("old", "new"))


def make(roots: list[Path], model: str, days: float) -> None:
    """Make a store of two chunks that was last used so many days ago."""
    namespace = Namespace({"model": model})
    with LocalStore.open(roots, namespace, GEOMETRY, ranks=1, capacity_bytes=16 << 20) as store:
        for number in store.layout.files():
            path = Path(store.layout.file_path(0, number))
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * store.layout.chunk_bytes)
    for root in roots:
        for path in (root / namespace.digest).rglob("*"):
            then = time.time() - days * 86400
            os.utime(path, (then, then))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make([tmp_path], "old", days=40)
    make([tmp_path], "new", days=2)
    (tmp_path / "mine.txt").write_text("keep me")
    (tmp_path / OLD / "notes.txt").write_text("keep me too")
    return tmp_path


def names(root: Path) -> set[str]:
    """Return the stores that have data in a root."""
    return {path.parents[1].name for path in root.glob("*/rank-0/*.seg")}


def test_only_what_is_old_goes_and_foreign_files_stay(tutti, root):
    found = tutti("gc", root, "--unused-days", 30, "--json").document
    assert [each["name"] for each in found["removed"]] == [OLD]
    assert [(each["name"], each["reason"]) for each in found["kept"]] == [(NEW, "it was used since")]
    assert found["freed_bytes"] > 0
    assert names(root) == {NEW}
    assert (root / "mine.txt").exists() and (root / OLD / "notes.txt").exists()


def test_a_dry_run_says_the_same_and_removes_nothing(tutti, root):
    found = tutti("gc", root, "--unused-days", 30, "--dry-run", "--json").document
    assert found["dry_run"] is True and [each["name"] for each in found["removed"]] == [OLD]
    assert f"would remove {OLD}" in tutti("gc", root, "--unused-days", 30, "--dry-run").stdout
    assert names(root) == {OLD, NEW}


def test_a_named_store_goes_whatever_its_age(tutti, root):
    found = tutti("gc", root, "--namespace", NEW[:8], "--json").document
    assert [each["name"] for each in found["removed"]] == [NEW]
    assert names(root) == {OLD}


def test_with_both_the_named_one_goes_only_if_it_is_old(tutti, root):
    assert "used since" in tutti("gc", root, "-n", NEW, "--unused-days", 30, code=2).stderr
    tutti("gc", root, "-n", OLD, "--unused-days", 30)
    assert names(root) == {NEW}


def test_a_running_servers_store_stays_and_its_pid_is_named(tutti, tmp_path, owned):
    pid = owned(tmp_path)
    found = tutti("gc", tmp_path, "--unused-days", 0, "--json").document
    assert found["removed"] == [] and str(pid) in found["kept"][0]["reason"]
    refused = tutti("gc", tmp_path, "--namespace", NAMESPACE.digest, code=2)
    assert str(pid) in refused.stderr and refused.stderr.count("\n") == 1
    assert names(tmp_path) == {NAMESPACE.digest}


def test_a_server_that_starts_in_between_wins(tutti, root, monkeypatch):
    from tutti_engine.store import collect as store_collect

    def busy(other, *, unused_since):
        assert time.time() - unused_since == pytest.approx(30 * 86400, abs=3600)
        raise StoreBusyError("in use by process 7", path=root, pid=7)

    monkeypatch.setattr(store_collect, "remove_store", busy)
    found = tutti("gc", root, "--unused-days", 30, "--json", code=1).document
    assert found["removed"] == [] and {each["reason"] for each in found["kept"]} >= {"in use by process 7"}


def look(root: Path, model: str) -> LocalStoreView:
    return LocalStoreView.open([root], Namespace({"model": model}), GEOMETRY, ranks=1)


def test_a_store_that_a_server_only_reads_stays_and_its_pid_is_named(tutti, root):
    with look(root, "old"):
        found = tutti("gc", root, "--unused-days", 30, "--json").document
        assert found["removed"] == [] and f"read by process {os.getpid()}" in found["kept"][0]["reason"]
        refused = tutti("gc", root, "--namespace", OLD, code=2)
        assert str(os.getpid()) in refused.stderr
        since = time.time() - 30 * 86400
        assert {each.name for each in reclaim(other_stores([root]), wanted=1 << 40, unused_since=since)} == {
            OLD,
            NEW,
        }
        assert names(root) == {OLD, NEW}
    tutti("gc", root, "--unused-days", 30)
    assert names(root) == {NEW}


def test_a_server_that_begins_to_read_in_between_wins(root):
    since = time.time() - 30 * 86400
    (old,) = [each for each in find_stores([root]) if each.name == OLD]
    assert why_kept(old, since) == ""
    with look(root, "old"):
        gone, ((_, reason),) = remove([old], since)
        assert gone == [] and "is read by" in reason
    assert names(root) == {OLD, NEW}


def test_a_store_that_was_used_after_it_was_looked_at_stays(root):
    """Its server has come and gone: nobody has it open, and it is not old any more."""
    since = time.time() - 30 * 86400
    (old,) = [each for each in find_stores([root]) if each.name == OLD]
    others = [each for each in other_stores([root]) if each.name == OLD]
    assert why_kept(old, since) == ""
    with LocalStore.open(
        [root], Namespace({"model": "old"}), GEOMETRY, ranks=1, capacity_bytes=16 << 20
    ) as store:
        store.catalogue.put(Record(b"key", 0, 1, (bytes(16),), 1))
        assert store.catalogue.flush(30)
    assert remove([old], since) == ([], [(old, "it was used since")])
    assert reclaim(others, wanted=1 << 40, unused_since=since) == others
    assert names(root) == {OLD, NEW}
    gone, left = remove([old])
    assert (gone, left) == ([old], []), "who names a store means it"


def test_nobody_begins_to_read_what_is_being_removed(root):
    with without_readers(root / OLD), pytest.raises(RootError, match="being removed"):
        look(root, "old")
    look(root, "old").close()


def test_a_store_of_an_earlier_version_is_read_without_a_lock(tutti, root):
    (root / OLD / READERS_NAME).unlink()
    before = sorted(each.name for each in (root / OLD).iterdir())
    with look(root, "old"):
        assert sorted(each.name for each in (root / OLD).iterdir()) == before, "a reader makes nothing"
        tutti("gc", root, "--unused-days", 30)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_something_else_in_the_locks_place_stops_nobody(tutti, root, tmp_path_factory, kind):
    path = root / OLD / READERS_NAME
    path.unlink()
    target = tmp_path_factory.mktemp("elsewhere") / "target"
    target.write_text("mine")
    {"link": lambda: path.symlink_to(target), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    look(root, "old").close()
    tutti("gc", root, "--namespace", OLD)
    assert names(root) == {NEW} and target.read_text() == "mine"


def test_parts_of_a_store_stay_until_all_roots_are_given(tutti, tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    make(roots, "old", days=40)
    for one, words in ((roots[0], "name " + str(roots[1])), (roots[1], "last use is not known")):
        found = tutti("gc", one, "--unused-days", 30, "--json").document
        assert found["removed"] == [] and words in found["kept"][0]["reason"]
    assert tutti("gc", *roots, "--unused-days", 30, "--json").document["removed"][0]["name"] == OLD
    assert names(roots[0]) == names(roots[1]) == set()


def test_what_is_left_of_a_lost_root_goes_by_its_name(tutti, tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    make(roots, "old", days=40)
    tutti("gc", roots[1], "--namespace", OLD)
    assert names(roots[1]) == set()


def test_a_part_that_was_used_of_late_is_not_reclaimed_by_another_server(tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    make(roots, "new", days=2)
    since = time.time() - 30 * 86400
    (left,) = reclaim(other_stores(roots[1:]), wanted=1 << 40, unused_since=since)
    assert left.name == NEW
    make(roots, "new", days=40)
    assert reclaim(other_stores(roots[1:]), wanted=1 << 40, unused_since=since) == []


def test_it_must_be_said_what_shall_go(tutti, root):
    assert "--unused-days" in tutti("gc", root, code=2).stderr
    tutti("gc", root, "--unused-days", "-1", code=2)
    assert "not inf" in tutti("gc", root, "--unused-days", "inf", code=2).stderr
    assert names(root) == {OLD, NEW}


def test_an_empty_name_removes_nothing(tutti, tmp_path):
    """As of a variable that is not set; a single store would be the one whose name begins so."""
    root = tmp_path / "root"
    root.mkdir()
    make([root], "new", 0)
    assert "empty" in tutti("gc", root, "--namespace", "", code=2).stderr
    assert [each.name for each in find_stores([root])] == [NEW]
