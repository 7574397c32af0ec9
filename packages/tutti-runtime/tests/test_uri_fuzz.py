# SPDX-License-Identifier: Apache-2.0
"""URIs of any shape are refused with a short reason or opened as written, and nothing is ever created."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tutti_runtime as tr

SIZE = 8192


@pytest.fixture(scope="module")
def runtime() -> Iterator[tr.Runtime]:
    with tr.make_file_runtime(data_path="posix", threads=1, direct="off") as made:
        yield made


SCHEMES = ["file://", "striped://", "raw://", "mem://"]
ESCAPES = ["%", "%2", "%2F", "%00", "%2e%2E", "..", ".", "/", "//"]
QUERY = ["?", "#", "&", "&&", "=", ",", "roots=", "unit=", "rot=", "size=", "offset=", "/a,/b", "/a"]
NUMBERS = ["4096", "0", "-1", "1e9", "18446744073709551616", "9223372036854775807"]
LETTERS = ["x", "\0", "\n", "é", "\U0001f4be", "\udcff", "x" * 300, "/y" * 2100, "tutti-nowhere"]
PIECES = st.sampled_from([*SCHEMES, *ESCAPES, *QUERY, *NUMBERS, *LETTERS])
URIS = st.one_of(
    st.text(max_size=60),
    st.lists(PIECES, max_size=12).map("".join),
    st.tuples(
        st.sampled_from(["file:///", "striped://x?", "raw:///tutti-nowhere?", "mem://x?"]),
        st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=8).map("".join),
    ).map("".join),
)


@settings(max_examples=600, deadline=None)
@given(URIS)
@example("striped://x?roots=" + ",".join(f"/tutti-nowhere-{i}" for i in range(64)))
@example("file:///" + "é" * 150)
def test_any_text_is_refused_or_opened(runtime: tr.Runtime, uri: str) -> None:
    try:
        target = runtime.open(uri, writable=False)
    except (tr.InvalidUriError, OSError) as error:
        assert 0 < len(str(error)) < 12_000  # an OSError shows its path, which can have 4095 bytes
        if isinstance(error, tr.InvalidUriError):
            assert len(str(error)) < 1000
        return
    # Directories and devices are refused, so all that can be met by chance is a regular file.
    assert Path(os.fsdecode(runtime.query(target)["path"])).is_file()
    runtime.close(target)


NAMES = (
    st.binary(min_size=1, max_size=40)
    .map(lambda raw: raw.translate(None, b"/\0"))
    .filter(lambda name: name not in (b"", b".", b".."))
)


def escape(path: bytes, *, all_of_it: bool) -> str:
    """Percent-encode what must be, or everything but slashes."""
    if all_of_it:
        return "".join("/" if byte == 0x2F else f"%{byte:02x}" for byte in path)
    return quote_from_bytes(path)


@settings(max_examples=150, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=3), st.booleans())
def test_every_name_can_be_written(runtime: tr.Runtime, names: list[bytes], all_of_it: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(os.fsencode(folder), *names)  # noqa: PTH118  (bytes)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as file:
            file.write(bytes(SIZE))
        written = escape(path, all_of_it=all_of_it)
        for uri in (f"file://{written}", f"raw://{written}"):
            facts = runtime.query(runtime.open(uri))
            assert os.fsencode(facts["path"]) == path
            assert facts["size"] == SIZE
        root, name = os.path.split(path)
        uri = f"striped://{escape(name, all_of_it=all_of_it)}?roots={escape(root, all_of_it=all_of_it)}"
        (shard,) = runtime.query(runtime.open(uri))["shards"]
        assert os.fsencode(shard["path"]) == path
        assert sum(len(files) for *_, files in os.walk(folder)) == 1  # nothing else came to be
