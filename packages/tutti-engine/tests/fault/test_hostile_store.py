# SPDX-License-Identifier: Apache-2.0
"""Things in a store's place that no store made, and a system that refuses: told, never waited for."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti_engine.catalogue.catalogue import CATALOGUE_NAME, Record
from tutti_engine.catalogue.slot_table import SLOT_TABLE_NAME
from tutti_engine.errors import GeometryError, RootError, TuttiError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.local_store import LocalStore, bytes_needed
from tutti_engine.store.share import other_stores
from tutti_engine.store.view import LocalStoreView

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
NAMESPACE = Namespace({"model": "hostile"})
OTHER = "0" * 32
SUMS = (b"s" * 16,)


def capacity(chunks: int = 100, roots: int = 1) -> int:
    return bytes_needed(chunks, geometry=GEOMETRY, ranks=1, roots=roots)


def open_store(*roots: Path, **options: Any) -> LocalStore:
    options.setdefault("capacity_bytes", capacity(roots=len(roots)))
    return LocalStore.open(roots, NAMESPACE, GEOMETRY, ranks=1, **options)


def filled(root: Path) -> Path:
    """Make a store of ten chunks and return its directory."""
    with open_store(root) as store:
        for slot in range(10):
            store.catalogue.put(Record(b"key-%d" % slot, slot, 1, SUMS, 1))
    return root / NAMESPACE.digest


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


OPENING = """
import sys
from pathlib import Path
from tutti_engine.errors import TuttiError
from tutti_engine.geometry import Geometry
from tutti_engine.store.local_store import LocalStore
from tutti_engine.namespace import Namespace
from tutti_engine.store.view import LocalStoreView
geometry = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=1, page_bytes=8192)
roots, namespace = [Path(sys.argv[1])], Namespace({"model": "hostile"})
for view in (True, False):
    try:
        if view:
            LocalStoreView.open(roots, namespace, geometry, ranks=1).close()
        else:
            LocalStore.open(roots, namespace, geometry, ranks=1, capacity_bytes=int(sys.argv[2])).close()
    except TuttiError as error:
        print(error)
"""


def open_in_time(root: Path) -> str:
    """Open a store and a view of it in a process of their own; return what they complained about."""
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(root), str(capacity())],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("whose", "make"),
    [("mine", make_fifo), ("mine", make_link), ("mine", make_directory), ("other", make_fifo)],
)
def test_nothing_in_a_files_place_is_waited_for_or_followed(
    whose: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    directory = filled(tmp_path / "root")
    if whose == "other":
        directory = tmp_path / "root" / OTHER
        shutil.copytree(tmp_path / "root" / NAMESPACE.digest, directory)
    for name in ("owner.lock", CATALOGUE_NAME, SLOT_TABLE_NAME, "namespace.json"):
        path, kept = directory / name, tmp_path / "kept"
        if path.exists():
            path.rename(kept)
        make(path)
        told = open_in_time(tmp_path / "root")
        if whose == "other":
            assert not told, "another store's oddities are not ours to complain about"
        elif name == SLOT_TABLE_NAME:
            assert not told, "only a slower start"
        elif name != "namespace.json" or make is make_directory:
            assert name in told
        if path.is_file() and not path.is_symlink():
            # The store made it anew.
            kept.unlink()
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(path)


@pytest.mark.parametrize("text", [b"[" * 200_000, b"\xff\x00", b'{"store_id": 1}', b" " * (2 << 20) + b"{}"])
def test_a_namespace_file_that_no_store_wrote_is_none(text: bytes, tmp_path: Path) -> None:
    directory = filled(tmp_path)
    (directory / "namespace.json").write_bytes(text)
    with pytest.raises(RootError, match="no store"):
        LocalStoreView.open([tmp_path], NAMESPACE, GEOMETRY, ranks=1)
    with open_store(tmp_path) as store:
        assert not store.records


@pytest.mark.parametrize("count", [10**7, 10**12, 10**18, 10**30])
def test_a_view_of_an_absurd_store_is_refused(count: int, tmp_path: Path) -> None:
    directory = filled(tmp_path)
    path = directory / "namespace.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_chunks": count}))
    with pytest.raises(TuttiError, match=r"damaged\?"):
        LocalStoreView.open([tmp_path], NAMESPACE, GEOMETRY, ranks=1)


@pytest.mark.parametrize("value", ["[" * 200_000, "1" * 5000, b"\x00\xff", "-3", "true", "null"])
@pytest.mark.parametrize("name", ["layout_facts", "chunks_per_file", "store_id"])
def test_absurd_settings_cost_the_chunks_at_most(name: str, value: Any, tmp_path: Path) -> None:
    directory = filled(tmp_path)
    with contextlib.closing(sqlite3.connect(directory / CATALOGUE_NAME)) as database, database:
        database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
    with open_store(tmp_path) as store:
        store.catalogue.put(Record(b"new", 3, 2, SUMS, 2))
        assert store.catalogue.flush(10)


def refuse_once(monkeypatch: pytest.MonkeyPatch, function: str, part: str, code: int) -> None:
    """Let ``os.<function>`` fail for paths that end with ``part``."""
    real = getattr(os, function)

    def refusing(path: Any, *arguments: Any, **named: Any) -> Any:
        if str(path).endswith(part):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, function, refusing)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_what_cannot_be_read_now_is_not_taken_for_a_foreign_drive(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    with monkeypatch.context() as patch:
        refuse_once(patch, "open", "namespace.json", code)
        with pytest.raises(RootError, match=r"namespace\.json cannot be read") as caught:
            open_store(tmp_path)
        assert caught.value.errno == code
    with open_store(tmp_path) as store:
        assert len(store.records) == 10, "a moment's trouble must not cost the chunks"


@pytest.mark.parametrize(
    ("function", "part"), [("scandir", OTHER), ("scandir", "rank-0"), ("open", f"{OTHER}/owner.lock")]
)
def test_other_stores_that_cannot_be_counted_now_are_no_room(
    function: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = tmp_path / OTHER / "rank-0"
    rank.mkdir(parents=True)
    (rank / "0.seg").write_bytes(bytes(8192))
    (tmp_path / OTHER / "owner.lock").touch()
    refuse_once(monkeypatch, function, part, errno.EMFILE)
    with pytest.raises(RootError, match="Too many open files"):
        other_stores([tmp_path])


@pytest.mark.parametrize("function", ["listdir", "scandir", "unlink", "truncate"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EROFS])
def test_whatever_the_system_refuses_at_a_start_names_the_store_and_leaves_it_free(
    function: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = filled(tmp_path)
    segments = directory / "rank-0"
    segments.mkdir()
    (segments / "0.seg").write_bytes(bytes(100 * GEOMETRY.chunk_bytes + 1))
    (segments / "9.seg").touch()

    def refusing(path: Any = ".", *arguments: Any, **named: Any) -> Any:
        raise OSError(code, os.strerror(code), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refusing)
        try:
            open_store(tmp_path).close()
        except TuttiError as error:
            assert str(tmp_path) in str(error)
    with open_store(tmp_path) as store:
        assert len(store.records) == 10


def test_the_tables_of_another_order_of_roots_are_removed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    open_store(one, other).close()
    stale = one / NAMESPACE.digest / SLOT_TABLE_NAME
    stale.write_bytes(bytes(1 << 20))
    open_store(other, one).close()
    assert not stale.exists(), "nobody counts it"


@pytest.mark.parametrize("days", [-1.0, float("nan")])
def test_reclaiming_what_is_used_in_the_future_is_refused(days: float, tmp_path: Path) -> None:
    with pytest.raises(GeometryError, match="reclaim_unused_days"):
        open_store(tmp_path, reclaim_unused_days=days)
