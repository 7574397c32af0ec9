# SPDX-License-Identifier: Apache-2.0
"""Chunks of one namespace as one file: to move them to another machine, or to keep them.

Format, little-endian. A head: ``TUTTIARC``, version, length of the description; the description, JSON in
ASCII; 16 bytes of BLAKE2b over all of that. Then a record for each chunk: ``CHNK``, length of its key, last
use; the key; a checksum a rank and layer, as in the catalogue; 16 bytes of BLAKE2b over that; then, rank by
rank and layer by layer, the bytes of each segment whose checksum is not zero: as many as the largest kind of
layer has, those beyond a segment's own being zero. At the end: ``TEND``, the number of records; 32 bytes of
BLAKE2b over the whole file up to there; and nothing more.

Nothing in the file names a place: whoever reads it says where chunks go.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

from tutti_engine.cache_group import CacheGroup
from tutti_engine.catalogue.file import MAX_KEY_BYTES
from tutti_engine.catalogue.record import MAX_NUMBER
from tutti_engine.errors import ArchiveError, GeometryError
from tutti_engine.geometry import Geometry
from tutti_engine.namespace import Namespace
from tutti_engine.store.capacity import CHECKSUM_BYTES

__all__ = ["ABSENT", "ArchiveHeader", "ArchiveReader", "ArchiveWriter", "ChunkHead"]

MAGIC = b"TUTTIARC"
VERSION = 1
PREFIX = struct.Struct("<8sII")
RECORD = struct.Struct("<4sB3xQ")
END = struct.Struct("<4s4xQ")
RECORD_MARK, END_MARK = b"CHNK", b"TEND"

DIGEST_BYTES = 16
FILE_DIGEST_BYTES = 32

MAX_DESCRIPTION = 1 << 20
MAX_PARTS = 1 << 20
"""Ranks times layers; what a file claims beyond it is not believed."""

ABSENT = bytes(CHECKSUM_BYTES)
"""Stands for a segment that was never stored: of a layer that needs less, or that its rank does not have."""


def short_digest(*parts: bytes) -> bytes:
    """Return what guards heads against damage."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class ArchiveHeader:
    """What the chunks of a file are.

    Attributes:
        facts: the namespace's.
        ranks: parts of a chunk.
        num_layers: segments of a part.
        segment_bytes: bytes of a segment in a store.
        chunk_bytes: bytes of a part's place in a store.
        data_bytes: how many bytes of a segment carry data, a number for each kind of layer, ascending.
    """

    facts: dict[str, Any]
    ranks: int
    num_layers: int
    segment_bytes: int
    chunk_bytes: int
    data_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("ranks", "num_layers", "segment_bytes", "chunk_bytes"):
            check_number(name, getattr(self, name))
        if not self.data_bytes:
            raise ArchiveError("data_bytes is empty; the file is not one that this program wrote")
        for each in self.data_bytes:
            check_number("data_bytes", each)
        if self.ranks * self.num_layers > MAX_PARTS:
            raise ArchiveError(f"{self.ranks} ranks of {self.num_layers} layers are more than {MAX_PARTS}")
        geometry = self.geometry()
        for name in ("segment_bytes", "chunk_bytes"):
            if getattr(self, name) != getattr(geometry, name):
                raise ArchiveError(
                    f"{name} is {getattr(self, name)}, stores of such data have {getattr(geometry, name)}"
                )

    @property
    def namespace(self) -> Namespace:
        """What must be equal for the bytes to be interchangeable."""
        return Namespace(self.facts)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one segment in the file."""
        return self.data_bytes[-1]

    @property
    def sums_bytes(self) -> int:
        """Bytes of one chunk's checksums."""
        return self.ranks * self.num_layers * CHECKSUM_BYTES

    def geometry(self) -> Geometry:
        """Return a shape with these sizes; of tokens and blocks it says nothing. Raises ArchiveError."""
        try:
            # A store asks for sizes only; which layers are of which kind is the server's business.
            groups = [CacheGroup((), 1, size) for size in self.data_bytes]
            geometry = Geometry.of_groups(groups, blocks_per_chunk=1, num_layers=self.num_layers)
            sizes = tuple(geometry.data_sizes)
        except GeometryError as error:
            raise ArchiveError(f"the file describes no chunk: {error}") from error
        if sizes != self.data_bytes:
            raise ArchiveError(f"data_bytes {self.data_bytes} must be different numbers in ascending order")
        return geometry

    def to_bytes(self) -> bytes:
        """Return the head of a file."""
        document = {
            "namespace": self.namespace.digest,
            "facts": self.facts,
            "ranks": self.ranks,
            "num_layers": self.num_layers,
            "segment_bytes": self.segment_bytes,
            "chunk_bytes": self.chunk_bytes,
            "data_bytes": self.data_bytes,
        }
        text = json.dumps(document, sort_keys=True).encode("ascii")
        if len(text) > MAX_DESCRIPTION:
            raise ArchiveError(f"the namespace's facts take {len(text)} bytes, above {MAX_DESCRIPTION}")
        prefix = PREFIX.pack(MAGIC, VERSION, len(text))
        return prefix + text + short_digest(prefix, text)

    @classmethod
    def parse(cls, text: bytes) -> ArchiveHeader:
        """Read a description. Raises ArchiveError for one that no export wrote."""
        try:
            found = json.loads(text.decode("ascii"))
            sizes = found["data_bytes"]
            if not isinstance(sizes, list) or not isinstance(found["facts"], dict):
                raise ArchiveError("the file's description is none that an export wrote")
            header = cls(
                found["facts"],
                found["ranks"],
                found["num_layers"],
                found["segment_bytes"],
                found["chunk_bytes"],
                tuple(sizes),
            )
            digest = header.namespace.digest
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, ArchiveError):
                raise
            raise ArchiveError(f"the file's description cannot be read ({error!r})") from error
        if found.get("namespace") != digest:
            raise ArchiveError(
                f"the file says namespace {found.get('namespace')!r}, its facts say {digest}: it was changed,"
                " or another version counts other facts"
            )
        return header


def check_number(name: str, value: object) -> None:
    """Raise ArchiveError unless a size makes sense."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_NUMBER:
        raise ArchiveError(f"{name} must be a positive whole number, not {value!r}")


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """What a file says of one chunk.

    Attributes:
        key: its key.
        last_used: seconds since 1970.
        sums: a checksum a rank and layer, as in the catalogue.
    """

    key: bytes
    last_used: int
    sums: bytes

    def to_bytes(self) -> bytes:
        """Return the record without its data."""
        head = RECORD.pack(RECORD_MARK, len(self.key), self.last_used) + self.key + self.sums
        return head + short_digest(head)

    def part(self, rank: int, num_layers: int) -> bytes:
        """Return one rank's checksums."""
        width = num_layers * CHECKSUM_BYTES
        return self.sums[rank * width : (rank + 1) * width]


class ArchiveWriter:
    """Writes a file from its head to its end. Every method raises OSError when the system refuses.

    Args:
        file: open for writing, at its begin.
        header: what the chunks are.
    """

    def __init__(self, file: BufferedWriter, header: ArchiveHeader) -> None:
        self._file = file
        self._digest = hashlib.blake2b(digest_size=FILE_DIGEST_BYTES)
        self._count = 0
        self._before: tuple[int, Any] | None = None
        self.write(header.to_bytes())

    def begin(self, head: ChunkHead) -> None:
        """Start a chunk's record; its segments follow by ``write``."""
        self._before = self._file.tell(), self._digest.copy()
        self._count += 1
        self.write(head.to_bytes())

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes."""
        self._digest.update(data)
        self._file.write(data)

    def undo(self) -> None:
        """Take the last chunk back: it turned out not to be what its record says."""
        assert self._before is not None
        offset, self._digest = self._before
        self._before = None
        self._file.seek(offset)
        self._file.truncate()
        self._count -= 1

    def finish(self) -> None:
        """Write the end and make all of it durable."""
        self.write(END.pack(END_MARK, self._count))
        self._file.write(self._digest.digest())
        self._file.flush()
        os.fsync(self._file.fileno())


class ArchiveReader:
    """Reads a file from its head to its end. Use ``open``; every method raises ArchiveError for damage.

    Attributes:
        header: what its chunks are.
        size: bytes of the file.
    """

    def __init__(self, file: BufferedReader, size: int) -> None:
        self._file = file
        self.size = size
        self._digest = hashlib.blake2b(digest_size=FILE_DIGEST_BYTES)
        prefix = self._take(PREFIX.size)
        magic, version, length = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise ArchiveError("it is not a file that 'tutti export' wrote")
        if version != VERSION:
            raise ArchiveError(f"its format is version {version}, this program reads {VERSION}")
        if length > MAX_DESCRIPTION:
            raise ArchiveError(f"its description takes {length} bytes, above {MAX_DESCRIPTION}")
        text = self._take(length)
        if self._take(DIGEST_BYTES) != short_digest(prefix, text):
            raise ArchiveError("its head is damaged")
        self.header = ArchiveHeader.parse(text)
        if self.header.sums_bytes > size:
            raise ArchiveError("the file is shorter than one chunk of what it describes")
        self._payload = memoryview(bytearray(min(self.header.payload_bytes, size)))

    @classmethod
    def open(cls, path: Path) -> ArchiveReader:
        """Open a file and read its head. Raises ArchiveError, OSError."""
        # A FIFO must not make it wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        file = os.fdopen(descriptor, "rb")
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ArchiveError("it is not a plain file")
            return cls(file, found.st_size)
        except BaseException:
            file.close()
            raise

    def chunks(self) -> Iterator[ChunkHead]:
        """Return the chunks in the file's order, then check its end.

        ``segments`` has to be asked for each chunk before the next.
        """
        count = 0
        while True:
            # The end's fixed part is as long as a record's.
            start = self._take(RECORD.size)
            if start[: len(END_MARK)] == END_MARK:
                break
            mark, key_bytes, last_used = RECORD.unpack(start)
            if mark != RECORD_MARK or not 1 <= key_bytes <= MAX_KEY_BYTES or last_used > MAX_NUMBER:
                raise ArchiveError(f"record {count} is damaged")
            rest = self._take(key_bytes + self.header.sums_bytes)
            if self._take(DIGEST_BYTES) != short_digest(start, rest):
                raise ArchiveError(f"record {count} is damaged")
            count += 1
            yield ChunkHead(rest[:key_bytes], last_used, rest[key_bytes:])
        expected = self._digest.digest()
        if END.unpack(start)[1] != count:
            raise ArchiveError(f"it says that it has {END.unpack(start)[1]} chunks and has {count}")
        if self._take(FILE_DIGEST_BYTES) != expected:
            raise ArchiveError("its digest is another one: something in it is damaged")
        if self._file.read(1):
            raise ArchiveError("something follows its end")

    def segments(self, head: ChunkHead) -> Iterator[tuple[int, int, bytes, memoryview]]:
        """Return rank, layer, checksum and bytes of each segment that a chunk has.

        The bytes are overwritten by the next one's.
        """
        layers = self.header.num_layers
        for number in range(self.header.ranks * layers):
            word = head.sums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]
            if word != ABSENT:
                self._fill(self._payload)
                if len(self._payload) != self.header.payload_bytes:
                    raise ArchiveError("it ends too early")
                yield number // layers, number % layers, word, self._payload

    def check(self, on_progress: Callable[[int], object] = lambda count: None) -> int:
        """Read the whole file, compare its digests and return how many chunks it has.

        Args:
            on_progress: is told how many more bytes are read.
        """
        count, before = 0, self.position
        for head in self.chunks():
            count += 1
            for _ in self.segments(head):
                pass
            on_progress(self.position - before)
            before = self.position
        return count

    @property
    def position(self) -> int:
        """Bytes that were read."""
        return self._file.tell()

    def close(self) -> None:
        """Give the file up."""
        self._file.close()

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise ArchiveError("it ends too early")
        self._digest.update(data)
        return data

    def _fill(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            some = self._file.readinto(target[done:])
            if not some:
                raise ArchiveError("it ends too early")
            done += some
        self._digest.update(target)
