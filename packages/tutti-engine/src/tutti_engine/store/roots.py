# SPDX-License-Identifier: Apache-2.0
"""Directories and files of a store: made private, never reached through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutti_engine.errors import RootError
from tutti_engine.namespace import DIGEST_BYTES
from tutti_engine.store.layout import StoreLayout

__all__ = [
    "NAMESPACE_FILE",
    "absolute_roots",
    "prepare_directory",
    "prepare_roots",
    "read_namespace",
    "read_store_id",
    "store_directories",
    "trim_files",
    "write_private",
]

log = logging.getLogger(__name__)

NAMESPACE_FILE = "namespace.json"

NAMESPACE_FILE_LIMIT = 1 << 20
"""Bytes that are read of one; stores write some kilobytes."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""The system's own trouble, which says nothing about what lies there."""

RANK_DIRECTORY = re.compile(r"rank-(0|[1-9][0-9]*)")
SEGMENT_FILE = re.compile(r"(0|[1-9][0-9]*)\.seg")
STORE_DIRECTORY = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}(-[0-9]+of[0-9]+)?")
"""The namespace's digest; for one of several replicas also its number and theirs."""


def refuse(path: Path, why: str, number: int | None = None) -> RootError:
    """Return the error for a directory that cannot be used."""
    return RootError(f"the store cannot use {path}: {why}; name another root", path=path, errno=number)


def prepare_directory(path: Path) -> None:
    """Make a directory with mode 0700 if it is missing, its parents too.

    Raises RootError when it is a link, no directory, cannot be made or cannot be written.
    """
    try:
        if not path.parent.exists():
            prepare_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            sync_directory(path.parent)
        found = path.lstat()
    except OSError as error:
        raise refuse(path, str(error.strerror), error.errno) from error
    if stat.S_ISLNK(found.st_mode):
        raise refuse(path, "it is a symbolic link (give the directory that it points to)")
    if not stat.S_ISDIR(found.st_mode):
        raise refuse(path, "it is not a directory")
    probe_writing(path)
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in (os.geteuid(), 0):
        log.warning("%s can be written by other users; make it private (chmod 700)", path)


def probe_writing(path: Path) -> None:
    """Raise RootError if no file can be made in ``path``:

    Permission bits would not show a read-only mount.
    """
    try:
        os.close(os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        # Other errors come from file systems without O_TMPFILE and from full ones, which may have room later.
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise refuse(path, f"it cannot be written ({error.strerror})", error.errno) from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def absolute_roots(roots: Sequence[Path | str]) -> list[Path]:
    """Return the roots as absolute paths. Raises RootError when there is none or one is named twice."""
    if not roots:
        raise RootError("a store needs at least one root", path=Path())
    # Normalised as text: resolving would follow the very links that are refused.
    paths = [Path(os.path.abspath(Path(root).expanduser())) for root in roots]  # noqa: PTH100
    for position, path in enumerate(paths):
        if path in paths[:position]:
            raise refuse(path, "it is named twice")
    return paths


def prepare_roots(roots: Sequence[Path | str], name: str) -> list[Path]:
    """Make and check ``<root>/<name>`` for every root and return them, absolute. Raises RootError."""
    paths = absolute_roots(roots)
    for path in paths:
        prepare_directory(path)
    directories = [path / name for path in paths]
    for directory in directories:
        prepare_directory(directory)
    return directories


def write_private(path: Path, text: str) -> None:
    """Replace a file's content durably, mode 0600. Raises RootError."""
    temporary = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, flags, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise refuse(path.parent, f"{path.name} cannot be written ({error.strerror})", error.errno) from error


def read_namespace(directory: Path) -> dict[str, Any]:
    """Return a directory's ``namespace.json``; empty when there is none, or something that no store wrote.

    Raises RootError when the system refuses to read it: what is there must not be taken for nothing.
    """
    path = directory / NAMESPACE_FILE
    try:
        # Opening a FIFO must not wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {}
            text = file.read(NAMESPACE_FILE_LIMIT + 1)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return {}
        raise refuse(directory, f"{path.name} cannot be read ({error.strerror})", error.errno) from error
    document: Any = None
    if len(text) <= NAMESPACE_FILE_LIMIT:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(text.decode("ascii"))
    return document if isinstance(document, dict) else {}


def read_store_id(directory: Path) -> str | None:
    """Return the id in a directory's ``namespace.json``; None when there is none. Raises RootError."""
    store_id = read_namespace(directory).get("store_id")
    return store_id if isinstance(store_id, str) else None


def store_directories(root: Path) -> list[Path]:
    """Return the directories of stores in a root; nothing when it cannot be read."""
    return [
        Path(each)
        for each in plain_entries(root)
        if STORE_DIRECTORY.fullmatch(each.name) and is_directory(each)
    ]


def namespace_bytes(directory: Path) -> int:
    """Return what one namespace's catalogue, side files and segments occupy in one root."""
    total = 0
    for each in plain_entries(directory):
        if not is_directory(each):
            total += occupied(each)
        elif RANK_DIRECTORY.fullmatch(each.name):
            total += sum(
                occupied(file) for file in plain_entries(Path(each)) if SEGMENT_FILE.fullmatch(file.name)
            )
    return total


def plain_entries(directory: Path) -> list[os.DirEntry[str]]:
    """Return a directory's files and directories without links; nothing when it is not ours to read.

    Raises RootError when the system cannot just now: what is there takes room all the same.
    """
    try:
        with os.scandir(directory) as entries:
            return [each for each in entries if not each.is_symlink()]
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise refuse(directory, f"it cannot be read ({error.strerror})", error.errno) from error
        return []


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory itself."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def occupied(entry: os.DirEntry[str]) -> int:
    """Return the bytes on disk of one file."""
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def trim_files(layout: StoreLayout, ranks: int) -> None:
    """Cut segment files that are longer than the layout says and remove those that it does not have there.

    With other roots than before a file's number may be the layout's and its place another one's. Only for the
    store's owner, once no row names what is cut. Raises RootError.
    """
    for root, directory in enumerate(map(Path, layout.directories)):
        wanted = {
            str(number): layout.file_bytes(number)
            for number in layout.files()
            if number % len(layout.directories) == root
        }
        for rank_directory in listed(directory):
            match = RANK_DIRECTORY.fullmatch(rank_directory.name)
            if not match:
                continue
            if rank_directory.is_symlink() or not rank_directory.is_dir():
                raise refuse(rank_directory, "it is a symbolic link or no directory")
            surplus = int(match[1]) >= ranks
            for path in listed(rank_directory):
                number = SEGMENT_FILE.fullmatch(path.name)
                if number:
                    trim_file(path, 0 if surplus else wanted.get(number[1], 0))
            if surplus:
                with contextlib.suppress(OSError):
                    rank_directory.rmdir()


def listed(directory: Path) -> list[Path]:
    """Return what lies in a directory. Raises RootError."""
    try:
        return list(directory.iterdir())
    except OSError as error:
        raise refuse(directory, f"it cannot be read ({error.strerror})", error.errno) from error


def trim_file(path: Path, limit: int) -> None:
    """Cut one file to ``limit`` bytes; remove it when that is zero."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise refuse(path, "it is not a plain file")
        if limit == 0:
            path.unlink()
        elif path.stat().st_size > limit:
            os.truncate(path, limit)
    except RootError:
        raise
    except OSError as error:
        raise refuse(path, str(error.strerror), error.errno) from error
