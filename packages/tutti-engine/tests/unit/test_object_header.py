# SPDX-License-Identifier: Apache-2.0
"""The header of shared objects: whatever lies there is what was written, a miss, or refused."""

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti_engine.shared.object_header import (
    HeaderError,
    ObjectHeader,
    ObjectNames,
    decode_header,
    encode_header,
    header_bytes,
)

DIGEST = "0123456789abcdef" * 2

headers = st.builds(
    ObjectHeader,
    namespace=st.binary(min_size=16, max_size=16).map(bytes.hex),
    rank=st.integers(0, 2**32 - 1),
    group=st.integers(0, 2**32 - 1),
    key=st.binary(min_size=1, max_size=64),
    segment_bytes=st.integers(0, 2**64 - 1),
    checksums=st.lists(st.integers(0, 2**64 - 1), max_size=90).map(lambda words: array("Q", words)),
)


def padded(header):
    return encode_header(header).ljust(header_bytes(len(header.checksums)), b"\0")


@given(headers)
def test_a_header_comes_back_as_it_was(header):
    data = padded(header)
    assert len(data) % 4096 == 0
    assert decode_header(data) == decode_header(memoryview(data)) == header


@given(headers, st.data())
def test_any_changed_bit_is_seen(header, data):
    raw = bytearray(encode_header(header))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        found = decode_header(bytes(raw))
    except HeaderError:
        return
    # Only the version is looked at before anything is believed.
    assert found is None and 64 <= bit < 80


@given(headers, st.integers(0, 200))
def test_a_header_that_was_cut_off_is_refused(header, length):
    raw = encode_header(header)
    if length < len(raw):
        with pytest.raises(HeaderError):
            decode_header(raw[:length])


@given(st.binary(max_size=400))
def test_rubbish_is_refused_and_never_crashes(data):
    with pytest.raises(HeaderError):
        decode_header(data)
    for start in (b"TuttiObj", b"TuttiObj\x01\x00"):
        try:
            assert decode_header(start + data) is None or not data
        except HeaderError:
            pass


@given(headers, st.integers(0, 65535))
def test_another_version_is_a_miss(header, version):
    raw = bytearray(padded(header))
    struct.pack_into("<H", raw, 8, version)
    if version != 1:
        assert decode_header(bytes(raw)) is None


def test_what_does_not_fit_is_said():
    words = array("Q", [1])
    with pytest.raises(ValueError, match="1 to 64 bytes, not 65"):
        encode_header(ObjectHeader(DIGEST, 0, 0, bytes(65), 4096, words))
    with pytest.raises(ValueError, match="32 lower-case hex digits"):
        encode_header(ObjectHeader("../../etc", 0, 0, b"k", 4096, words))
    with pytest.raises(ValueError, match="does not fit"):
        encode_header(ObjectHeader(DIGEST, -1, 0, b"k", 4096, words))


@given(st.tuples(st.integers(0, 99), st.integers(0, 9), st.binary(min_size=1, max_size=64)))
def test_names_differ_as_their_parts_do(parts):
    names = ObjectNames(DIGEST)
    rank, group, key = parts
    name = names.name(rank, group, key)
    assert len(name) <= 255 and set(name) <= set("tutti-./0123456789abcdef")
    assert name not in {
        names.name(rank + 1, group, key),
        names.name(rank, group + 1, key),
        names.name(rank, group, key + b"\0"),
        ObjectNames("f" * 32).name(rank, group, key),
    }


def test_a_namespace_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"not '\.\./x'"):
        ObjectNames("../x")
