# SPDX-License-Identifier: Apache-2.0
"""What users and their machines do to a store. docs/store.md has a line for each of these tests."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")

from tutti_engine import Geometry
from tutti_engine.catalogue.catalogue import CATALOGUE_NAME
from tutti_engine.errors import RootError
from tutti_engine.store.local_store import bytes_needed
from tutti_engine.store.space import SpaceSettings
from tutti_engine.testing.churn import run
from tutti_engine.testing.small_server import SmallServer

GEOMETRY = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=16 * 1024)
KEYS = [b"key-%02d" % number for number in range(12)]


def load_helper() -> ModuleType:
    path = Path(__file__).with_name("small_disk.py")
    spec = importlib.util.spec_from_file_location("tutti_small_disk", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disks = load_helper()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path, 64 << 20) as mount:
        yield mount


def capacity_for(chunks: int) -> int:
    return bytes_needed(chunks, geometry=GEOMETRY, ranks=1, roots=1)


def serve(root: Path, chunks: int = 32, **options: object) -> SmallServer:
    capacity = capacity_for(chunks)
    return SmallServer([root], capacity_bytes=capacity, geometry=GEOMETRY, batch=4, **options)


def store_all(server: SmallServer, keys: list[bytes] = KEYS) -> None:
    for start in range(0, len(keys), server.batch):
        assert server.store_chunks(keys[start : start + server.batch])
    assert server.store.catalogue.flush(30)


def outcomes(server: SmallServer, keys: list[bytes] = KEYS) -> list[str]:
    return [server.load_chunk(key) for key in keys]


def slots_of(server: SmallServer) -> list[int]:
    """Return the places of all keys."""
    slots = {record.key: record.slot for record in server.store.catalogue.records()}
    return [slots[key] for key in KEYS]


def segment_file(root: Path) -> Path:
    (path,) = root.rglob("*.seg")
    return path


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def flip_a_bit(path: Path, chunk: int) -> None:
    with path.open("r+b") as file:
        file.seek(chunk * GEOMETRY.chunk_bytes + 5000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))


def swap(path: Path, one: int, other: int) -> None:
    size = GEOMETRY.chunk_bytes
    with path.open("r+b") as file:
        content = file.read()
        for source, target in ((one, other), (other, one)):
            file.seek(target * size)
            file.write(content[source * size : (source + 1) * size])


@pytest.mark.parametrize(
    ("what", "running"),
    [("bit", False), ("swap", False), ("truncate", False), ("bit", True), ("swap", True)],
)
def test_damaged_swapped_and_truncated_segments_are_misses(
    what: str, running: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(tmp_path)
    store_all(server)
    order = slots_of(server)
    if not running:
        server.close()
    path = segment_file(tmp_path)
    hurt = {"bit": [3], "swap": [1, 2], "truncate": list(range(2, 12))}[what]
    if what == "bit":
        flip_a_bit(path, 3)
    elif what == "swap":
        swap(path, 1, 2)
    else:
        os.truncate(path, 2 * GEOMETRY.chunk_bytes)
    if not running:
        server = serve(tmp_path)
    with server:
        expected = ["miss" if slot in hurt else "right" for slot in order]
        assert outcomes(server) == expected
        assert outcomes(server) == expected, "asked again they are plain misses"
        assert server.engine.planner.counters["load_failed_chunks"] == len(hurt)
        if what != "truncate":
            assert server.engine.planner.counters["corrupt_chunks"] == len(hurt)
        missing = [key for key, outcome in zip(KEYS, expected) if outcome == "miss"]
        for key in missing:
            server.store_chunks([key])
        assert set(outcomes(server, missing)) == {"right"}, "stored anew they are hits again"
    assert caplog.records


def test_file_that_is_truncated_while_it_is_used_gives_misses_until_it_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(tmp_path) as server:
        store_all(server)
        by_place = [key for _, key in sorted(zip(slots_of(server), KEYS))]
        os.truncate(segment_file(tmp_path), 2 * GEOMETRY.chunk_bytes)
        # Reads beyond the end fail like a drive: after some the cache is left alone for a while.
        assert outcomes(server, by_place) == ["right"] * 2 + ["miss"] * 10
        assert "wrong" not in outcomes(server)
    assert "the server goes on without and tries again later" in caplog.text
    with serve(tmp_path) as server:
        assert outcomes(server, by_place[:2]) == ["right"] * 2
        assert server.load_chunk(by_place[5]) == "miss"
        server.store_chunks([by_place[5]])
        assert server.load_chunk(by_place[5]) == "right"


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        store_all(server)
        directory = server.store.directory
    foreign = [
        tmp_path / "readme.txt",
        directory / "core.1234",
        directory / "rank-0" / "notes",
        directory / "rank-0" / "007.seg",
        directory / "rank-00" / "0.seg",
        tmp_path / ("f" * 32) / "thesis.tex",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    with serve(tmp_path) as server:
        assert set(outcomes(server)) == {"right"}
    assert [path.read_text() for path in foreign] == ["mine"] * len(foreign)


def test_directory_in_a_segments_place_is_named(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        place = Path(server.store.layout.file_path(0, 0))
    place.unlink()
    place.mkdir()
    with pytest.raises(RootError, match=r"0\.seg: it is not a plain file"):
        serve(tmp_path)


def test_clock_that_goes_back_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with serve(tmp_path) as server:
        store_all(server, KEYS[:4])
    monkeypatch.setattr(time, "time", lambda: now - 10 * 365 * 86400)
    with serve(tmp_path, reclaim_unused_days=1) as server:
        store_all(server, KEYS[4:8])
        assert set(outcomes(server, KEYS[:8])) == {"right"}
    monkeypatch.setattr(time, "time", lambda: -5.0)
    with serve(tmp_path) as server:
        store_all(server, KEYS[8:])
        assert set(outcomes(server)) == {"right"}
        assert server.store.catalogue.flush(30)
        assert all(record.last_used >= 0 for record in server.store.catalogue.records())


def test_clock_of_another_century_that_is_set_right_again_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 500 * 365 * 86400)
        with serve(tmp_path) as server:
            store_all(server)
            assert set(outcomes(server)) == {"right"}
    with serve(tmp_path, chunks=16) as server:
        assert set(outcomes(server)) == {"right"}
        for number in range(16):
            key = b"fresh-%02d" % number
            wait_until(lambda key=key: server.store_chunks([key]), "room for one more")
            # What was used in the future is no newer than what is used now: it goes first.
            assert outcomes(server, [key]) == ["right"]


def test_catalogue_of_a_newer_version_is_kept_and_the_store_starts_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(tmp_path, chunks=200) as server:
        store_all(server)
        path = server.store.directory / CATALOGUE_NAME
    content = bytearray(path.read_bytes())
    content[60:64] = (77).to_bytes(4, "big")  # user_version
    path.write_bytes(content)
    with serve(tmp_path, chunks=200) as server:
        assert set(outcomes(server)) == {"miss"}
        store_all(server)
        assert set(outcomes(server)) == {"right"}
    assert sum("schema is version 77" in entry.message for entry in caplog.records) == 1
    assert path.with_name(f"{CATALOGUE_NAME}.newer-1").read_bytes() == content


def test_lower_capacity_keeps_what_has_a_place_and_frees_the_rest(tmp_path: Path) -> None:
    with serve(tmp_path, chunks=32) as server:
        store_all(server)
    before = sum(path.stat().st_blocks for path in tmp_path.rglob("*.seg"))
    with serve(tmp_path, chunks=5) as server:
        found = outcomes(server)
        assert found.count("right") == 5
        assert "wrong" not in found
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.seg")) == 5 * GEOMETRY.chunk_bytes
    assert sum(path.stat().st_blocks for path in tmp_path.rglob("*.seg")) < before


def test_disk_that_others_fill_keeps_min_free_and_heals(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    minimum = 16 << 20
    space = SpaceSettings(min_free_bytes=minimum, check_seconds=0.02, ahead_bytes=1 << 20)

    def free() -> int:
        found = os.statvfs(disk)
        return found.f_bavail * found.f_frsize

    with serve(disk / "kv", chunks=160, space=space) as server:
        keys = [b"many-%03d" % number for number in range(120)]
        store_all(server, keys)
        stored = server.engine.planner.resident_chunks
        assert stored == 120
        disks.fill_up(disk / "others", leave=minimum - (4 << 20))
        assert server.store.places is not None
        wait_until(lambda: server.store.places.stores_stopped, "nobody noticed")

        def given_back() -> bool:
            server.engine.planner.settle_places()
            return free() >= minimum

        wait_until(given_back, "nothing was given back")
        assert server.store_chunks([b"while short"]) == 0
        left = server.engine.planner.resident_chunks
        assert 0 < left < stored
        assert outcomes(server, keys).count("right") == left, "what stays is served"
        (disk / "others").unlink()
        wait_until(lambda: not server.store.places.stores_stopped, "it did not heal")
        wait_until(lambda: server.store_chunks([b"after"]), "nothing is stored")
        assert server.load_chunk(b"after") == "right"
    assert sum("min_free_bytes" in entry.message for entry in caplog.records) == 1
    assert sum("has room again" in entry.message for entry in caplog.records) == 1


def test_root_that_becomes_read_only_serves_what_it_has_and_heals_when_it_is_mounted_again(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(disk / "kv")
    store_all(server)
    # As after an error of the drive: a plain remount is refused while files are open for writing.
    done = subprocess.run(["mount", "-o", "remount,abort", str(disk)], capture_output=True, text=True)
    if done.returncode:
        server.close()
        pytest.skip(f"the file system cannot be made read-only under a store: {done.stderr.strip()}")
    assert set(outcomes(server)) == {"right"}
    server.store_chunks([b"lost"])
    assert server.load_chunk(b"lost") == "miss"
    assert server.engine.planner.counters["store_failed_chunks"] == 1
    server.close()
    assert any(
        "the last changes are lost" in entry.message or "cannot" in entry.message for entry in caplog.records
    )
    disks.unmount(disk)
    subprocess.run(["mount", "-o", "loop", str(disk.with_name("disk.img")), str(disk)], check=True)
    with serve(disk / "kv") as server:
        assert set(outcomes(server)) == {"right"}
        assert server.store_chunks([b"after"]) == 1
        assert server.load_chunk(b"after") == "right"


def test_root_that_was_read_only_at_a_start_works_at_the_next(disk: Path) -> None:
    with serve(disk / "kv") as server:
        store_all(server)
    disks.remount(disk, "ro")
    with pytest.raises(RootError, match="Read-only file system"):
        serve(disk / "kv")
    disks.remount(disk, "rw")
    with serve(disk / "kv") as server:
        assert set(outcomes(server)) == {"right"}


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from pathlib import Path
from tutti_engine.store import layout as store_layout
store_layout.MIN_FILE_BYTES = 1
from tutti_engine.testing.small_server import SmallServer
from tutti_engine import Geometry
geometry = Geometry(num_layers=2, block_tokens=16, blocks_per_chunk=2, page_bytes=16384)
with SmallServer([Path(sys.argv[1])], capacity_bytes=16 << 20, geometry=geometry) as server:
    files = len(server.store.layout.files())
    keys = [b"%d" % number for number in range(64)]
    for start in range(0, 64, 8):
        server.store_chunks(keys[start:start + 8])
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    print(files, open_now, {server.load_chunk(key) for key in keys})
"""


def test_sixty_four_descriptors_are_enough(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    files, open_now, found = done.stdout.split(maxsplit=2)
    assert int(files) > 25, "a store of many files was meant"
    assert int(open_now) < 64
    assert found.strip() == "{'right'}"


def test_capacity_is_never_passed_in_a_churn(tmp_path: Path) -> None:
    result = run(3, directory=tmp_path, capacity_bytes=24 << 20, times=2, seed=1)
    shutil.rmtree(tmp_path / "kv")
    assert result["passed_by_bytes"] == 0
    assert result["wrong"] == 0
    assert result["right"] > 0
    assert result["samples"] > 10
