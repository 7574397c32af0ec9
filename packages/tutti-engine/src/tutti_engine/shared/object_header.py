# SPDX-License-Identifier: Apache-2.0
"""What travels before the bytes of each shared object, so that its reader need not trust who wrote it.

Little-endian: 8 bytes of magic, version (2), bytes of the key (2), rank (4), cache group (4), layers (4),
bytes of a segment (8), namespace digest (16), key (64, filled up with zeros), one 64-bit checksum a layer as
``Mover.gather`` made it, and BLAKE2b-64 over all of that. Zeros up to the header's size follow.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass

from tutti_engine.columns import pack_words, unpack_words
from tutti_engine.geometry import SEGMENT_ALIGNMENT, align_up

__all__ = [
    "MAX_KEY_BYTES",
    "OBJECT_VERSION",
    "HeaderError",
    "ObjectHeader",
    "ObjectNames",
    "decode_header",
    "encode_header",
    "header_bytes",
]

OBJECT_VERSION = 1
"""Raised when a header or what follows it changes meaning. Part of each name: versions do not even meet."""

MAX_KEY_BYTES = 64

_MAGIC = b"TuttiObj"
_FIXED = struct.Struct("<8sHHIIIQ16s64s")
_SEAL_BYTES = 8
_MAX_LAYERS = 1 << 16


class HeaderError(ValueError):
    """A header that is damaged, or not of the object that was asked for."""


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """Whose bytes follow.

    Attributes:
        namespace: digest of the namespace, 32 lower-case hex digits.
        rank: the part of the chunk, as ranks are counted that store.
        group: the cache group that the layers are of.
        key: the chunk's key, 1 to ``MAX_KEY_BYTES`` bytes.
        segment_bytes: bytes of a segment.
        checksums: one unsigned 64-bit number a segment, in their order.
    """

    namespace: str
    rank: int
    group: int
    key: bytes
    segment_bytes: int
    checksums: array[int]


def header_bytes(num_layers: int) -> int:
    """Return the size of a header for so many segments: a multiple of 4 KiB, as direct I/O wants it."""
    return align_up(_FIXED.size + 8 * num_layers + _SEAL_BYTES, SEGMENT_ALIGNMENT)


def encode_header(header: ObjectHeader) -> bytes:
    """Return a header's bytes without the zeros that fill it up. Raises ValueError for what does not fit."""
    if not 1 <= len(header.key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(header.key)}")
    check_digest(header.namespace)
    try:
        fixed = _FIXED.pack(
            _MAGIC,
            OBJECT_VERSION,
            len(header.key),
            header.rank,
            header.group,
            len(header.checksums),
            header.segment_bytes,
            bytes.fromhex(header.namespace),
            header.key,
        )
    except struct.error as error:
        raise ValueError(f"{header!r} does not fit a header: {error}") from None
    body = fixed + pack_words(array("Q", header.checksums))
    return body + _seal(body)


def decode_header(data: bytes | memoryview) -> ObjectHeader | None:
    """Return what a header says, None for one of another version of this format, whose reader we are not.

    Raises HeaderError for bytes that no version ever wrote, as far as one can tell.
    """
    if len(data) < _FIXED.size or bytes(data[:8]) != _MAGIC:
        raise HeaderError("these bytes do not begin as an object of Tutti does")
    (_, version, key_bytes, rank, group, layers, segment_bytes, digest, key) = _FIXED.unpack_from(data)
    if version != OBJECT_VERSION:
        return None
    end = _FIXED.size + 8 * layers
    if layers > _MAX_LAYERS or len(data) < end + _SEAL_BYTES:
        raise HeaderError(f"a header of {len(data)} bytes cannot hold checksums of {layers} layers")
    if bytes(data[end : end + _SEAL_BYTES]) != _seal(data[:end]):
        raise HeaderError("the header is damaged: its own checksum differs")
    if not 1 <= key_bytes <= MAX_KEY_BYTES or any(key[key_bytes:]):
        raise HeaderError(f"the header's key of {key_bytes} bytes is none")
    words = unpack_words(bytes(data[_FIXED.size : end]))
    return ObjectHeader(digest.hex(), rank, group, key[:key_bytes], segment_bytes, words)


def _seal(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_SEAL_BYTES).digest()


def check_digest(namespace: str) -> None:
    """Raise ValueError for a namespace digest that is none."""
    if len(namespace) != 32 or set(namespace) - set("0123456789abcdef"):
        raise ValueError(f"a namespace digest is 32 lower-case hex digits, not {namespace!r}")


class ObjectNames:
    """Names of one namespace's objects. The digest stands for everything that came from outside.

    Raises ValueError for a digest that is none.
    """

    def __init__(self, namespace: str) -> None:
        check_digest(namespace)
        self.namespace = namespace
        self._prefix = f"tutti-{OBJECT_VERSION}/{namespace}"

    def name(self, rank: int, group: int, key: bytes) -> str:
        """Return the name of one rank's layers of one group of a chunk."""
        return f"{self._prefix}/{rank}.{group}/{key.hex()}"
