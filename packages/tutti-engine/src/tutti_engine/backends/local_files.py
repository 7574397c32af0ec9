# SPDX-License-Identifier: Apache-2.0
"""One rank's segment files: made sparse and private before anything is read or written."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from urllib.parse import quote

from tutti_engine.errors import RootError
from tutti_engine.store.layout import StoreLayout
from tutti_engine.store.roots import read_store_id, refuse, sync_directory

__all__ = ["check_store", "file_uri", "is_memory", "prepare_files"]

_MEMORY = ("tmpfs", "ramfs")


def check_store(layout: StoreLayout) -> None:
    """Raise RootError unless every directory is the one that the planning side opened."""
    for directory in map(Path, layout.directories):
        if layout.store_id and read_store_id(directory) != layout.store_id:
            raise RootError(
                f"{directory} does not hold store {layout.store_id}; "
                "every worker must see the same drives, mounted alike, as the scheduler",
                path=directory,
            )


def prepare_files(layout: StoreLayout, rank: int) -> dict[int, str]:
    """Make what is missing of a rank's files, grow those that are too short, and return their paths.

    No file is ever cut; of a layout that is read only none is made or grown either. Raises RootError for a
    link, a special file, or what the system refuses.
    """
    paths = {number: layout.file_path(rank, number) for number in layout.files()}
    if layout.read_only:
        return paths
    for directory in sorted({Path(path).parent for path in paths.values()}):
        make_rank_directory(directory)
    for number, path in paths.items():
        make_file(Path(path), layout.file_bytes(number))
    for directory in {Path(path).parent for path in paths.values()}:
        sync_directory(directory)
    return paths


def make_rank_directory(path: Path) -> None:
    """Make one directory with mode 0700, unless it is there."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            sync_directory(path.parent)
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise refuse(path, "it is a symbolic link or no directory")
    except RootError:
        raise
    except OSError as error:
        raise refuse(path, str(error.strerror), error.errno) from error


def make_file(path: Path, size: int) -> None:
    """Make one sparse file with mode 0600, or grow the one that is there."""
    try:
        descriptor = open_file(path)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise refuse(path, "it is not a plain file")
            if found.st_size < size:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except RootError:
        raise
    except OSError as error:
        raise refuse(path, str(error.strerror), error.errno) from error


def open_file(path: Path) -> int:
    """Open a file that is there, else make it; never through a link, never waiting for a FIFO's other end."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    return os.open(path, flags)


def is_memory(directory: str, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether a directory is in a file system that keeps its files in memory; False if nobody knows.

    Args:
        directory: an absolute path.
        mounts: the kernel's list of mounts, see proc_pid_mountinfo(5).
    """
    with contextlib.suppress(OSError):
        device = Path(directory).stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in mounts.read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == number:
                return rest.split()[0] in _MEMORY
    return False


def file_uri(path: str) -> str:
    """Return the ``file://`` URI of an absolute path."""
    return "file://" + quote(os.fsencode(path))
