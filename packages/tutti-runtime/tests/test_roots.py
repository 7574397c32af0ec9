# SPDX-License-Identifier: Apache-2.0
"""`root=`: what the caller knows of drives goes before what `st_dev` says."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_kit import PAGE, Setup, faulty, make, pages, run

import tutti_runtime as tr
from tutti_runtime import _core

DATA_PATHS = ["posix", "uring"]
DEPTH = 4


class Pair:
    """Two files, opened with tags. The device never answers for the first; it may hold DEPTH of one drive."""

    def __init__(self, name: str, folders: tuple[Path, Path], tags: tuple[str | None, str | None]) -> None:
        self.control = _core.FaultControl({})
        self.runtime = faulty(name, self.control, queue_depth=DEPTH, threads=DEPTH // 2)
        self.rows = []
        self.setups = []  # they keep the memory mapped
        for folder, file, tag in zip(folders, ("hangs", "works"), tags, strict=True):
            path = folder / file
            path.write_bytes(bytes(16 * PAGE))
            self.setups.append(Setup("posix", "off", folder, self.runtime))
            rows, _ = pages(self.setups[-1], tr.READ, 16)
            rows["target"] = self.runtime.open(path.as_uri(), root=tag)
            self.rows.append(rows)
        self.control.set_plan({"rules": [{"target": "hangs", "hang": True}]})
        self.held = self.runtime.submit(self.rows[0]).handle
        assert self.held is not None
        assert self.control.wait_held(DEPTH, 30)

    def end(self) -> None:
        self.control.set_plan({})
        self.control.release()
        assert not self.runtime.wait(self.held, 30).status.any()  # type: ignore[arg-type]
        assert self.runtime.shutdown(30)


def expect(pair: Pair, apart: bool) -> None:
    """The second file's reads end while the first one's hang; or they wait behind them, not begun."""
    handle = pair.runtime.submit(pair.rows[1]).handle
    assert handle is not None
    if not apart:
        pair.runtime.cancel(handle)  # spares what a device has begun
    done = pair.runtime.wait(handle, 30)
    assert (done.status == (0 if apart else errno.ECANCELED)).all()
    pair.end()


@pytest.mark.parametrize("name", DATA_PATHS)
@pytest.mark.parametrize(("tags", "apart"), [((None, None), False), (("a", "b"), True), (("a", None), True)])
def test_tags_part_files_of_one_file_system(
    name: str, tags: tuple[str | None, str | None], apart: bool, tmp_path: Path
) -> None:
    make(name, "off", tmp_path).shutdown()
    pair = Pair(name, (tmp_path, tmp_path), tags)
    expect(pair, apart)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    folder = Path("/dev/shm")
    if not folder.is_dir() or folder.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no second file system")
    path = folder / f"tutti-{tmp_path.name}"
    path.mkdir()
    try:
        yield path
    finally:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


@pytest.mark.parametrize("name", DATA_PATHS)
@pytest.mark.parametrize(("tag", "apart"), [(None, True), ("nvme0", False)])
def test_one_tag_joins_file_systems(
    name: str, tag: str | None, apart: bool, tmp_path: Path, tmpfs: Path
) -> None:
    make(name, "off", tmp_path).shutdown()
    pair = Pair(name, (tmp_path, tmpfs), (tag, tag))
    expect(pair, apart)


def test_query_tells_the_tag(setup: Setup) -> None:
    plain, tagged = setup.runtime.open(setup.uri(PAGE)), setup.runtime.open(setup.uri(PAGE), root="nvme0 é")
    facts = [setup.runtime.query(target) for target in (plain, tagged)]
    assert [fact["root_tag"] for fact in facts] == [None, "nvme0 é"]
    assert facts[0]["root"] == facts[1]["root"]
    opened = setup.runtime.open_batch([setup.uri(PAGE)] * 3, root="nvme1")
    assert [setup.runtime.query(each.target)["root_tag"] for each in opened] == ["nvme1"] * 3  # type: ignore[arg-type]


def test_a_striped_target_takes_a_tag_for_each_root(tmp_path: Path) -> None:
    for root in ("x", "y"):
        (tmp_path / root).mkdir()
        (tmp_path / root / "data").write_bytes(bytes(16 * PAGE))
    uri = f"striped://data?roots={tmp_path}/x,{tmp_path}/y&unit={PAGE}"
    with make("posix", "off", tmp_path) as runtime:
        target = runtime.open(uri, root=["nvme0", "nvme1"])
        facts = runtime.query(target)
        assert [shard["root_tag"] for shard in facts["shards"]] == ["nvme0", "nvme1"]
        assert facts["root_tag"] is None
        rows, data = pages(Setup("posix", "off", tmp_path, runtime), tr.WRITE, 16)
        rows["target"], data[:] = target, 5
        assert not run(runtime, rows).status.any()
        rows["direction"], data[:] = tr.READ, 0
        assert not run(runtime, rows).status.any()
        assert np.all(data[: 16 * PAGE] == 5)
        for wrong in ("nvme0", ["a", "b", "c"]):
            with pytest.raises(ValueError, match="is on 2; give one tag"):
                runtime.open(uri, root=wrong)


@pytest.mark.parametrize(
    ("root", "error", "words"),
    [
        ("", ValueError, "has 0 bytes"),
        ("x" * 256, ValueError, "has 256 bytes and must have 1 to 255"),
        (["a", "b"], ValueError, "names 2 drives, and the target .* is on 1"),
        ([], ValueError, "names no drive"),
        ("\udcff", ValueError, "valid Unicode"),
        (7, TypeError, "root=7"),
        ([b"a"], TypeError, "a list of str"),
    ],
)
def test_a_bad_tag_opens_nothing(root: object, error: type[Exception], words: str, setup: Setup) -> None:
    uri = setup.uri(PAGE)
    with pytest.raises(error, match=words):
        setup.runtime.open(uri, root=root)  # type: ignore[arg-type]
    setup.runtime.close(setup.runtime.open(uri))


def test_tags_are_bounded(setup: Setup) -> None:
    uri = setup.uri(PAGE)
    for number in range(1024):
        setup.runtime.close(setup.runtime.open(uri, root=f"drive {number}"))
    with pytest.raises(ValueError, match="1024 tags already"):
        setup.runtime.open(uri, root="one more")
    setup.runtime.close(setup.runtime.open(uri, root="drive 7"))  # one that it knows
