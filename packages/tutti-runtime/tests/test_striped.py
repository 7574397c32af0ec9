# SPDX-License-Identifier: Apache-2.0
"""Striped targets: where every byte lies, what is refused, and how a shard's failure shows."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from runtime_kit import FILE_PATHS, KIB, PAGE, Buffer, batch, make, open_files, pair_id, request, run
from stripe_model import place_of, striped_size

import tutti_runtime as tr

UNIT = 8 * KIB


class Stripes:
    """Folders that stand for drives, a runtime and memory."""

    def __init__(self, folder: Path, runtime: tr.Runtime, memory_bytes: int = 512 * KIB) -> None:
        self.folder = folder
        self.runtime = runtime
        self.buffer = Buffer(memory_bytes)
        self.memory = runtime.register_memory(self.buffer.address, self.buffer.size)

    def roots(self, count: int) -> list[Path]:
        roots = [self.folder / f"drive {i}" for i in range(count)]
        for root in roots:
            root.mkdir(exist_ok=True)
        return roots

    def shards(self, name: str, sizes: list[int]) -> list[Path]:
        paths = [root / name for root in self.roots(len(sizes))]
        for path, size in zip(paths, sizes, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size)
        return paths

    def uri(self, name: str, count: int, **keys: int) -> str:
        roots = ",".join(quote(str(root)) for root in self.roots(count))
        more = "".join(f"&{key}={value}" for key, value in keys.items())
        return f"striped://{quote(name)}?roots={roots}{more}"

    def run(
        self, direction: int, target: int, offset: int, length: int, memory_offset: int = 0
    ) -> tr.Completion:
        return run(
            self.runtime, batch(request(direction, self.memory, memory_offset, target, offset, length))
        )


@pytest.fixture(params=FILE_PATHS, ids=pair_id)
def stripes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stripes]:
    runtime = make(*request.param, tmp_path)
    yield Stripes(tmp_path, runtime)
    runtime.shutdown(30.0)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_page_is_where_the_model_has_it(stripes: Stripes, count: int) -> None:
    rows, rotation = 4, count - 1
    paths = stripes.shards("x.seg", [rows * UNIT] * count)
    target = stripes.runtime.open(stripes.uri("x.seg", count, unit=UNIT, rot=rotation))
    size = rows * UNIT * count
    expected = stripes.buffer.fill_random(count)[:size]
    assert stripes.run(tr.WRITE, target, 0, size).status.tolist() == [0]
    held = [path.read_bytes() for path in paths]
    for offset in range(0, size, PAGE):
        shard, place = place_of(offset, UNIT, count, rotation)
        assert held[shard][place : place + PAGE] == expected[offset : offset + PAGE].tobytes(), offset


def test_random_requests_against_a_plain_file(stripes: Stripes) -> None:
    random = np.random.default_rng(7)
    for round_ in range(12):
        count = int(random.integers(1, 6))
        unit = PAGE << int(random.integers(0, 4))
        rotation = int(random.integers(0, count))
        sizes = [int(random.integers(0, 24)) * PAGE + int(random.integers(0, 2)) * 100 for _ in range(count)]
        stripes.shards(f"r{round_}", sizes)
        size = striped_size(sizes, unit, count, rotation)
        target = stripes.runtime.open(stripes.uri(f"r{round_}", count, unit=unit, rot=rotation))
        assert stripes.runtime.query(target)["size"] == size
        pages = size // PAGE
        if pages == 0:
            continue
        model = np.zeros(pages * PAGE, dtype=np.uint8)
        for step in range(6):
            first = int(random.integers(0, pages))
            length = int(random.integers(1, pages - first + 1)) * PAGE
            begin = first * PAGE
            if length > stripes.buffer.size:
                continue
            data = stripes.buffer.fill_random(round_ * 100 + step)[:length]
            done = stripes.run(tr.WRITE, target, begin, length)
            assert (done.status.tolist(), done.bytes.tolist()) == ([0], [length])
            model[begin : begin + length] = data
            stripes.buffer.bytes[:] = 0
            whole = min(len(model), stripes.buffer.size)
            stripes.run(tr.READ, target, 0, whole)
            assert np.array_equal(stripes.buffer.bytes[:whole], model[:whole])
        result = stripes.runtime.submit(
            batch(request(tr.READ, stripes.memory, 0, target, pages * PAGE, PAGE))
        )
        assert result.errors.tolist() == [errno.EINVAL]


def test_one_batch_holds_many_striped_and_plain_targets(stripes: Stripes) -> None:
    plain = stripes.folder / "plain"
    plain.write_bytes(bytes(UNIT))
    targets = [stripes.runtime.open(plain.as_uri())]
    for i, count in enumerate((3, 2, 4)):
        stripes.shards(f"t{i}", [2 * UNIT] * count)
        targets.append(stripes.runtime.open(stripes.uri(f"t{i}", count, unit=PAGE, rot=1)))
    expected = stripes.buffer.fill_random(3)
    writes = [request(tr.WRITE, stripes.memory, i * UNIT, t, 0, UNIT) for i, t in enumerate(targets)]
    reads = [request(tr.READ, stripes.memory, i * UNIT, t, 0, UNIT) for i, t in enumerate(targets)]
    flushes = [request(tr.FLUSH, 0, 0, t, 0, 0) for t in targets]
    done = run(stripes.runtime, batch(*writes))
    assert done.status.tolist() == [0] * 4
    assert done.bytes.tolist() == [UNIT] * 4
    assert run(stripes.runtime, batch(*flushes)).status.tolist() == [0] * 4
    stripes.buffer.bytes[:] = 0
    run(stripes.runtime, batch(*reads))
    assert np.array_equal(stripes.buffer.bytes[: 4 * UNIT], expected[: 4 * UNIT])
    stats = stripes.runtime.stats()
    assert (stats["accepted"], stats["completed"], stats["failed"]) == (12, 12, 0)
    assert stats["bytes_read"] == stats["bytes_written"] == 4 * UNIT


def test_a_failed_shard_gives_the_length_before_it(stripes: Stripes) -> None:
    paths = stripes.shards("x", [4 * UNIT] * 3)
    target = stripes.runtime.open(stripes.uri("x", 3, unit=UNIT))
    expected = stripes.buffer.fill_random(5)[: 12 * UNIT]
    stripes.run(tr.WRITE, target, 0, 12 * UNIT)
    os.truncate(paths[1], UNIT + PAGE)  # unit 4 of the target is half there
    stripes.buffer.bytes[:] = 0
    done = stripes.run(tr.READ, target, 0, 12 * UNIT)
    assert done.status.tolist() == [errno.EIO]
    assert done.bytes.tolist() == [4 * UNIT + PAGE]
    good = 4 * UNIT + PAGE
    assert np.array_equal(stripes.buffer.bytes[:good], expected[:good])
    assert stripes.run(tr.READ, target, 2 * UNIT, 2 * UNIT).status.tolist() == [0]
    done = stripes.run(tr.READ, target, 7 * UNIT, UNIT)
    assert (done.status.tolist(), done.bytes.tolist()) == ([errno.EIO], [0])


def test_size_narrows_the_target(stripes: Stripes) -> None:
    stripes.shards("x", [2 * UNIT] * 2)
    target = stripes.runtime.open(stripes.uri("x", 2, unit=UNIT, size=3 * UNIT))
    assert stripes.runtime.query(target)["size"] == 3 * UNIT
    with pytest.raises(tr.InvalidUriError, match=f"hold {4 * UNIT} bytes"):
        stripes.runtime.open(stripes.uri("x", 2, unit=UNIT, size=5 * UNIT))


def test_rotation_moves_the_first_unit(stripes: Stripes) -> None:
    paths = stripes.shards("x", [UNIT] * 4)
    stripes.buffer.bytes[:PAGE] = 7
    for rotation in range(4):
        target = stripes.runtime.open(stripes.uri("x", 4, unit=UNIT, rot=rotation))
        stripes.run(tr.WRITE, target, 0, PAGE)
        assert [path.read_bytes()[0] for path in paths] == [7 if i <= rotation else 0 for i in range(4)]


def test_a_shard_that_cannot_be_opened_closes_the_others(stripes: Stripes) -> None:
    paths = stripes.shards("x", [UNIT] * 4)
    before = open_files()
    paths[2].unlink()
    with pytest.raises(FileNotFoundError) as caught:
        stripes.runtime.open(stripes.uri("x", 4, unit=UNIT))
    assert caught.value.filename == str(paths[2])
    paths[2].symlink_to(paths[1])
    with pytest.raises(OSError, match="symbolic link"):
        stripes.runtime.open(stripes.uri("x", 4, unit=UNIT))
    paths[2].unlink()
    os.link(paths[1], paths[2])
    with pytest.raises(tr.InvalidUriError, match="one and the same file"):
        stripes.runtime.open(stripes.uri("x", 4, unit=UNIT))
    assert open_files() == before


def test_names_can_have_folders_and_odd_letters(stripes: Stripes) -> None:
    stripes.shards("name space/rank-0/ü,%&.seg", [UNIT] * 2)
    for uri in (
        stripes.uri("name space/rank-0/ü,%&.seg", 2, unit=UNIT),
        stripes.uri("name space/rank-0/ü,%&.seg", 2, unit=UNIT).replace("striped://", "striped:///"),
    ):
        target = stripes.runtime.open(uri)
        stripes.runtime.close(target)


def test_query_tells_the_shards(stripes: Stripes) -> None:
    paths = stripes.shards("x", [2 * UNIT] * 2)
    uri = stripes.uri("x", 2, unit=UNIT, rot=1)
    facts = stripes.runtime.query(stripes.runtime.open(uri, writable=False))
    assert facts["kind"] == "striped"
    assert facts["uri"] == uri
    assert (facts["size"], facts["unit"], facts["rotation"], facts["writable"]) == (4 * UNIT, UNIT, 1, False)
    assert [shard["path"] for shard in facts["shards"]] == [str(path) for path in paths]
    assert {shard["root"] for shard in facts["shards"]} == {paths[0].stat().st_dev}


BAD_STRIPED = {
    "striped://": "empty",
    "striped:///": "empty",
    "striped://x": "names no roots",
    "striped://x?": "names no roots",
    "striped://x?roots=": "absolute path",
    "striped://x?roots=relative": "absolute path",
    "striped://x?roots=/a,": "absolute path",
    "striped://x?roots=/a,/b,/a": "only once",
    "striped://x?roots=/a,/a/": "only once",
    "striped://x?roots=/a/../b": "'..'",
    "striped://x?roots=/a%2Fb": "encoded slash",
    "striped://x?roots=/a%00": "NUL",
    "striped://x?roots=/a#b": "%23",
    "striped://x?roots=/a&roots=/b": "twice",
    "striped://x?root=/a": "known keys: roots, unit, rot, size",
    "striped://x?roots=/a&unit": "known keys",
    "striped://x?roots=/a&&unit=4096": "known keys",
    "striped://x?roots=/a&unit=4095": "4096 to",
    "striped://x?roots=/a&unit=12288": "power of two",
    "striped://x?roots=/a&unit=2147483648": "4096 to",
    "striped://x?roots=/a&unit=99999999999999999999": "4096 to",
    "striped://x?roots=/a&unit=0x1000": "decimal",
    "striped://x?roots=/a&rot=1": "rot is less",
    "striped://x?rot=1&roots=/a": "rot is less",
    "striped://x?roots=/a&rot=-1": "decimal",
    "striped://x?roots=/a&rot=64": "0 to 63",
    "striped://x?roots=/a&size=0": "4096 to",
    "striped://x?roots=/a&size=5000": "multiple of 4096",
    "striped://a/../b?roots=/a": "'..'",
    "striped://../b?roots=/a": "'..'",
    "striped://a//b?roots=/a": "empty",
    "striped:////b?roots=/a": "empty",
    "striped://a/?roots=/a": "empty",
    "striped://./a?roots=/a": "'.'",
    "striped://a%00?roots=/a": "NUL",
    "striped://a%2Fb?roots=/a": "encoded slash",
    "striped://x?roots=" + ",".join(f"/r{i}" for i in range(65)): "at most 64",
}


@pytest.mark.parametrize("uri", BAD_STRIPED)
def test_a_bad_striped_uri_names_the_rule(uri: str) -> None:
    with (
        tr.make_file_runtime(data_path="posix", threads=1) as runtime,
        pytest.raises(tr.InvalidUriError) as caught,
    ):
        runtime.open(uri)
    assert BAD_STRIPED[uri] in str(caught.value)


def test_a_striped_runtime_has_roots_of_its_own(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir()
        (root / "x").write_bytes(bytes(2 * UNIT))
    with tr.make_runtime({"kind": "striped", "roots": roots, "unit": UNIT}) as runtime:
        facts = runtime.query(runtime.open("striped://x?rot=1"))
        assert (facts["unit"], facts["rotation"], facts["size"]) == (UNIT, 1, 4 * UNIT)
        assert [shard["path"] for shard in facts["shards"]] == [str(root / "x") for root in roots]
        with pytest.raises(tr.InvalidUriError, match="rot=2 must be less"):
            runtime.open("striped://x?rot=2")
        with pytest.raises(tr.InvalidUriError, match="mem://"):
            runtime.open("mem://x?size=4096")
        assert "striping" in runtime.caps()["features_used"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("roots", []),
        ("roots", "/a"),
        ("roots", ["a"]),
        ("roots", [5]),
        ("roots", ["/a", "/a"]),
        ("roots", ["/a\0"]),
        ("roots", [f"/{i}" for i in range(65)]),
        ("roots", None),
        ("unit", 4095),
        ("unit", 3 * 4096),
        ("unit", 1 << 31),
        ("unit", "4096"),
        ("unit", True),
        ("max_open_files", 0),
        ("max_open_files", 1.5),
        ("nofollow", "none"),
    ],
)
def test_a_bad_setting_names_its_key(key: str, value: object) -> None:
    spec = {"kind": "striped", "roots": ["/tmp"], key: value}
    with pytest.raises(ValueError, match=key):
        tr.make_runtime(spec)


def test_a_missing_or_unknown_key_is_named() -> None:
    with pytest.raises(ValueError, match="'roots' is missing"):
        tr.make_runtime({"kind": "striped"})
    with pytest.raises(ValueError, match="nearest known key is 'roots'"):
        tr.make_runtime({"kind": "striped", "rots": ["/a"]})
    with pytest.raises(ValueError, match="unknown key 'roots'"):
        tr.make_runtime({"kind": "file", "roots": ["/a"]})
