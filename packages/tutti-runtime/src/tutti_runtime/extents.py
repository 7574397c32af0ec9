# SPDX-License-Identifier: Apache-2.0
"""Where a file's bytes lie on its block device, proven or refused with a reason."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tutti_runtime import _core
from tutti_runtime.errors import ExtentError

__all__ = [
    "EXTENT_DTYPE",
    "EXTENT_REASONS",
    "ExtentMap",
    "ExtentSignature",
    "Revalidation",
    "resolve_extents",
]

EXTENT_DTYPE: Final = np.dtype([("logical", "u8"), ("physical", "u8"), ("length", "u8")])
"""One extent, in bytes. ``physical`` counts from the beginning of the file system's block device."""

EXTENT_REASONS: Final = {
    "empty": "the file has no bytes",
    "hole": "part of the file has no blocks",
    "not_covered": "the extents end before the file does",
    "too_many": "more than 124 runs",
    "unwritten": "allocated, but reads as zeros whatever the blocks hold",
    "delalloc": "no place chosen yet",
    "unknown": "the file system does not say where",
    "inline": "inside the inode, or packed into a block with other files' ends",
    "shared": "another file has the same blocks",
    "encoded": "compressed or encrypted",
    "misaligned": "not on multiples of 4096 bytes",
    "journaled": "written data may be in the journal only",
    "realtime": "on the file system's realtime device",
    "unsupported": "the file system cannot tell extents",
    "file_system": "not ext4 or xfs: addresses are not proven to be those of one block device",
    "changed": "the file changed while it was looked at",
    "malformed": "an answer that no correct kernel gives",
}
"""Every ``ExtentError.reason`` and what it means."""


@dataclass(frozen=True, slots=True)
class ExtentSignature:
    """What tells whether extents may have moved: numbers of ``stat``, times in nanoseconds, the inode's
    generation (0 where the file system has none) and a hash over the extents."""

    device: int
    inode: int
    generation: int
    size: int
    mtime: int
    ctime: int
    extents_hash: int


@dataclass(frozen=True, slots=True)
class Revalidation:
    """What became of a file since its extents were resolved.

    ``differences`` names the fields of the signature that differ now, or holds the reason for which the file
    is refused now, or ``"missing"``.
    """

    differences: tuple[str, ...]

    @property
    def unchanged(self) -> bool:
        """Nothing differs, not even a time: the file was not touched."""
        return not self.differences

    @property
    def same_extents(self) -> bool:
        """The extents are proven to be the same now, although the file may have been written in place."""
        return set(self.differences) <= {"mtime", "ctime"}


@dataclass(frozen=True, slots=True, eq=False)
class ExtentMap:
    """A file's extents: written, unshared, on multiples of 4 KiB, at most 124, and together the whole file
    (up to its size rounded up to 4 KiB)."""

    path: str
    extents: NDArray[np.void]
    """One-dimensional array of :data:`EXTENT_DTYPE` in the file's order."""
    signature: ExtentSignature

    @property
    def block_device(self) -> tuple[int, int]:
        """Major and minor number of the device that ``physical`` counts on."""
        return os.major(self.signature.device), os.minor(self.signature.device)

    def revalidate(self) -> Revalidation:
        """Resolve the extents again, without making the file durable first, and compare."""
        try:
            now = resolve_extents(self.path, sync=False).signature
        except ExtentError as error:
            return Revalidation((error.reason,))
        except OSError:
            return Revalidation(("missing",))
        names = [field.name for field in fields(ExtentSignature)]
        differ = (name for name in names if getattr(now, name) != getattr(self.signature, name))
        return Revalidation(tuple(differ))


def resolve_extents(path: str | bytes | os.PathLike[str], *, sync: bool = True) -> ExtentMap:
    """Prove where the bytes of a regular file on ext4 or xfs lie on its block device.

    ``sync`` makes the file durable first, which gives delayed blocks a place. The last component of ``path``
    must not be a symbolic link. The proof holds at this moment only: whoever keeps it calls
    :meth:`ExtentMap.revalidate`, and keeps others from truncating, cloning, punching and defragmenting the
    file.

    Raises :class:`ExtentError` with its ``reason`` (see :data:`EXTENT_REASONS`) and ``OSError``.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"path={path!r} must not hold a NUL")
    try:
        columns, signature = _core.resolve_extents(name, bool(sync))
    except ExtentError as error:
        error.path = os.fsdecode(name)
        raise
    extents = np.ascontiguousarray(columns).view(EXTENT_DTYPE).reshape(-1)
    return ExtentMap(os.fsdecode(name), extents, ExtentSignature(*signature))
