# SPDX-License-Identifier: Apache-2.0
"""What is opened, what is refused and how the refusal reads."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_kit import KIB, PAGE, Setup, batch, make, open_files, request, run

import tutti_runtime as tr

SIZE = 64 * KIB


@pytest.fixture
def runtime() -> Iterator[tr.Runtime]:
    with tr.make_file_runtime(data_path="posix", threads=1) as made:
        yield made


BAD_URIS = {
    "": "a target is",
    "relative": "a target is",
    "/no/scheme": "a target is",
    "http:///x": "a target is",
    "FILE:///x": "a target is",
    "file://": "three slashes",
    "file://relative/path": "three slashes",
    "file://localhost/x": "three slashes",
    "file:/x": "a target is",
    "file:///a/../b": "'..'",
    "file:///..": "'..'",
    "file:///a/%2e%2E/b": "'..'",
    "file:///a%2Fb": "encoded slash",
    "file:///a\0b": "NUL",
    "file:///a%00b": "NUL",
    "file:///a%": "hexadecimal",
    "file:///a%4": "hexadecimal",
    "file:///a%zz": "hexadecimal",
    "file:///a?b": "%3F",
    "file:///a#b": "%23",
    "mem://x?size=4096": "striped:// and raw:// only",
}


@pytest.mark.parametrize("uri", BAD_URIS)
def test_a_bad_uri_names_the_rule(runtime: tr.Runtime, uri: str) -> None:
    with pytest.raises(tr.InvalidUriError) as caught:
        runtime.open(uri)
    assert BAD_URIS[uri] in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_an_enormous_uri_gives_a_short_message(runtime: tr.Runtime) -> None:
    with pytest.raises(tr.InvalidUriError) as caught:
        runtime.open("x" * 1_000_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "path", ["/" + "x" * 256, "/" + "a/" * 2048 + "b", "/" + "x" * 255 + "/" + "y" * 300]
)
def test_too_long(runtime: tr.Runtime, path: str) -> None:
    with pytest.raises(OSError, match="bytes, at most") as caught:
        runtime.open("file://" + path)
    assert caught.value.errno == errno.ENAMETOOLONG


@pytest.mark.parametrize("uri", [None, 5, b"file:///x", Path("/x")])
def test_only_str_is_a_uri(runtime: tr.Runtime, uri: object) -> None:
    with pytest.raises(TypeError):
        runtime.open(uri)  # type: ignore[arg-type]


BAD_MEMORY_URIS = {
    "mem://": "1 to 200",
    "mem://x": "size",
    "mem://x?": "size",
    "mem://x?size=": "decimal",
    "mem://x?size=0": "decimal",
    "mem://x?size=-1": "decimal",
    "mem://x?size=1k": "decimal",
    "mem://x?size=4096&size=1": "decimal",
    "mem://x?Size=4096": "only key",
    "mem://x?size=18446744073709551616": "decimal",
    "mem://x?size=9223372036854775808": "decimal",
    "mem://a/b?size=4096": "1 to 200",
    "mem://" + "x" * 201 + "?size=4096": "1 to 200",
    "file:///etc/hostname": "mem://name",
}


@pytest.mark.parametrize("uri", BAD_MEMORY_URIS)
def test_a_bad_memory_uri_names_the_rule(uri: str) -> None:
    with tr.make_memory_runtime() as runtime, pytest.raises(tr.InvalidUriError) as caught:
        runtime.open(uri)
    assert BAD_MEMORY_URIS[uri] in str(caught.value)


def test_a_memory_target_keeps_its_size() -> None:
    with tr.make_memory_runtime() as runtime:
        runtime.open("mem://x?size=4096")
        with pytest.raises(tr.InvalidUriError, match="exists with size=4096"):
            runtime.open("mem://x?size=8192")
        with pytest.raises(OSError, match="cannot reserve") as caught:
            runtime.open(f"mem://y?size={2**62}")
        assert caught.value.errno == errno.ENOMEM
        assert caught.value.filename == "mem://y"


def test_what_is_missing_is_not_created(file_setup: Setup) -> None:
    path = file_setup.folder / "missing"
    for writable in (True, False):
        with pytest.raises(FileNotFoundError) as caught:
            file_setup.runtime.open(path.as_uri(), writable=writable)
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == str(path)
    with pytest.raises(NotADirectoryError):
        (file_setup.folder / "plain").touch()
        file_setup.runtime.open((file_setup.folder / "plain").as_uri() + "/x")
    assert sorted(entry.name for entry in file_setup.folder.iterdir() if entry.name != "probe") == ["plain"]


def test_what_is_no_regular_file_is_refused(file_setup: Setup) -> None:
    folder = file_setup.folder
    (folder / "directory").mkdir()
    (folder / "file").write_bytes(bytes(SIZE))
    (folder / "link").symlink_to(folder / "file")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(folder)  # a socket's own name has room for 107 bytes only
    try:
        listener.bind("socket")
    finally:
        os.chdir(here)
    expected = {
        "directory": errno.EISDIR,
        "link": errno.ELOOP,
        "dangling": errno.ELOOP,
        "loop": errno.ELOOP,
        "fifo": errno.EINVAL,
        "socket": errno.EINVAL,
    }
    for name, error in expected.items():
        with pytest.raises(OSError, match="must") as caught:
            file_setup.runtime.open((folder / name).as_uri())
        assert caught.value.errno == error, name
        assert caught.value.filename == str(folder / name)
    with pytest.raises(OSError, match="device") as caught:
        file_setup.runtime.open("file:///dev/zero")
    assert caught.value.errno == errno.EINVAL
    assert not (folder / "nowhere").exists()
    listener.close()


def test_opening_does_not_change_the_file(file_setup: Setup) -> None:
    path = file_setup.folder / "odd size"
    path.write_bytes(b"x" * (SIZE + 100))
    target = file_setup.runtime.open(path.as_uri())
    _, memory = file_setup.memory(128 * KIB)
    result = file_setup.runtime.submit(
        batch(request(tr.READ, memory, 0, target, 0, SIZE), request(tr.READ, memory, 0, target, SIZE, PAGE))
    )
    assert result.errors.tolist() == [0, errno.EINVAL]  # the tail is shorter than a block
    assert result.handle is not None
    assert file_setup.runtime.wait(result.handle, 30).status.tolist() == [0]
    assert path.stat().st_size == SIZE + 100


@pytest.mark.parametrize("name", ["with space", "per%cent", "qu?stion", "h#sh", "ünïcode", "plus+", "a%2e"])
def test_percent_escapes_are_decoded_once(file_setup: Setup, name: str) -> None:
    path = file_setup.folder / name
    path.write_bytes(bytes(SIZE))
    file_setup.runtime.close(file_setup.runtime.open(path.as_uri()))
    escaped = "".join(f"%{byte:02X}" for byte in os.fsencode(name))
    file_setup.runtime.close(file_setup.runtime.open(f"{file_setup.folder.as_uri()}/{escaped}"))


def test_a_name_that_is_not_utf8(file_setup: Setup) -> None:
    raw = os.fsencode(file_setup.folder) + b"/\xff\xfe"
    Path(os.fsdecode(raw)).write_bytes(bytes(SIZE))
    file_setup.runtime.open(f"{file_setup.folder.as_uri()}/%FF%FE")
    with pytest.raises(FileNotFoundError) as caught:
        file_setup.runtime.open(f"{file_setup.folder.as_uri()}/%FF%FD")
    assert os.fsencode(caught.value.filename) == os.fsencode(file_setup.folder) + b"/\xff\xfd"


def test_permissions_keep_their_errno(tmp_path: Path, runtime: tr.Runtime) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may open everything")
    path = tmp_path / "secret"
    path.write_bytes(bytes(SIZE))
    path.chmod(0)
    with pytest.raises(PermissionError) as caught:
        runtime.open(path.as_uri())
    assert caught.value.filename == str(path)


def test_open_batch_reports_per_item_and_leaks_nothing(file_setup: Setup) -> None:
    good = [file_setup.uri(SIZE), file_setup.uri(SIZE)]
    before = open_files()
    results = file_setup.runtime.open_batch(
        [good[0], "file:///missing/file", "bad", good[1], file_setup.folder.as_uri()]
    )
    assert [result.target is not None for result in results] == [True, False, False, True, False]
    assert [type(result.error) for result in results] == [
        type(None),
        FileNotFoundError,
        tr.InvalidUriError,
        type(None),
        IsADirectoryError,
    ]
    targets = [result.target for result in results if result.target is not None]
    assert open_files() == before + 2
    errors = file_setup.runtime.close_batch([targets[0], 0, targets[1], targets[1]])
    assert [type(error) for error in errors] == [
        type(None),
        tr.InvalidHandleError,
        type(None),
        tr.InvalidHandleError,
    ]
    assert open_files() == before


def test_the_same_file_twice_is_two_targets(setup: Setup) -> None:
    uri = setup.uri(SIZE)
    one, two = setup.runtime.open(uri), setup.runtime.open(uri)
    assert one != two
    buffer, memory = setup.memory(SIZE)
    expected = buffer.fill_random(9)
    run(setup.runtime, batch(request(tr.WRITE, memory, 0, one, 0, SIZE)))
    setup.runtime.close(one)
    buffer.bytes[:] = 0
    run(setup.runtime, batch(request(tr.READ, memory, 0, two, 0, SIZE)))
    assert np.array_equal(buffer.bytes, expected)


def test_a_large_batch_keeps_its_order(file_setup: Setup) -> None:
    uris: list[object] = []
    for i in range(300):
        (file_setup.folder / f"many-{i}").write_bytes(bytes(PAGE * (1 + i % 7)))
        uris.append((file_setup.folder / f"many-{i}").as_uri())
    uris[7] = "file:///missing/file"
    uris[150] = None
    uris[299] = "bad"
    before = open_files()
    results = file_setup.runtime.open_batch(uris)  # type: ignore[arg-type]
    failed = {i: type(result.error) for i, result in enumerate(results) if result.error is not None}
    assert failed == {7: FileNotFoundError, 150: TypeError, 299: tr.InvalidUriError}
    for i, result in enumerate(results):
        if result.target is not None:
            facts = file_setup.runtime.query(result.target)
            assert (facts["uri"], facts["size"]) == (uris[i], PAGE * (1 + i % 7))
    assert open_files() == before + 297
    file_setup.runtime.close_batch([result.target for result in results if result.target is not None])
    assert open_files() == before
    assert file_setup.runtime.open_batch([]) == []


def test_query_says_what_was_opened(setup: Setup) -> None:
    uri = setup.uri(SIZE)
    target = setup.runtime.open(uri, writable=False)
    facts = setup.runtime.query(target)
    assert facts["uri"] == uri
    assert facts["kind"] == ("memory" if setup.name == "memory" else "file")
    assert (facts["size"], facts["offset"], facts["writable"]) == (SIZE, 0, False)
    assert facts["direct"] == (setup.direct == "on")
    if setup.name != "memory":
        assert facts["root"] == setup.folder.stat().st_dev
        assert Path(facts["path"]).parent == setup.folder
    setup.runtime.close(target)
    with pytest.raises(tr.InvalidHandleError):
        setup.runtime.query(target)


def test_symbolic_links_above_the_file(file_pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "data").write_bytes(bytes(SIZE))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "last").symlink_to(tmp_path / "real" / "data")
    plain = (tmp_path / "real" / "data").as_uri()
    through = f"{tmp_path.as_uri()}/link/data"
    last = f"{tmp_path.as_uri()}/real/last"
    make(*file_pair, tmp_path).shutdown()  # skips where this path cannot be had
    name, direct = file_pair
    with tr.make_file_runtime(data_path=name, direct=direct) as runtime:
        runtime.open(plain)
        runtime.open(through)
        with pytest.raises(OSError, match="symbolic link"):
            runtime.open(last)
    with tr.make_file_runtime(data_path=name, direct=direct, nofollow="all") as runtime:
        runtime.open(plain)
        for uri in (through, last, f"striped://data?roots={tmp_path}/link"):
            with pytest.raises(OSError, match="symbolic link") as caught:
                runtime.open(uri)
            assert caught.value.errno == errno.ELOOP
