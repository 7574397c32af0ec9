# SPDX-License-Identifier: Apache-2.0
"""One capacity for all that lies in a store's roots: what other stores there take, and when they may go."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutti_engine.catalogue.file import CATALOGUE_NAME, DAMAGED, NEWER
from tutti_engine.catalogue.slot_table import SLOT_TABLE_NAME
from tutti_engine.errors import RootError, StoreBusyError
from tutti_engine.store.owner import LOCK_NAME, OwnerLock
from tutti_engine.store.readers import READERS_NAME, without_readers
from tutti_engine.store.roots import (
    EXHAUSTED,
    NAMESPACE_FILE,
    RANK_DIRECTORY,
    SEGMENT_FILE,
    is_directory,
    namespace_bytes,
    plain_entries,
    read_namespace,
    refuse,
    store_directories,
)

__all__ = ["OtherStore", "describe", "opening_turn", "other_stores", "reclaim", "remove_store"]

log = logging.getLogger(__name__)

TURN_NAME = "opening.lock"

OWN_FILE = re.compile(
    rf"{re.escape(NAMESPACE_FILE)}|{re.escape(SLOT_TABLE_NAME)}|{re.escape(READERS_NAME)}"
    rf"|{re.escape(CATALOGUE_NAME)}(\.({DAMAGED}|{NEWER})-[0-9]+)?(-wal|-shm)?"
)
"""What a store makes beside its lock and its segments."""

TURN_SECONDS = 30.0

TURN_PAUSE = 0.02


@dataclass
class OtherStore:
    """Another store in the same roots.

    Attributes:
        name: its directory's name, the digest of its namespace.
        directories: its directories in these roots.
        occupied: bytes on disk.
        reserved: bytes that it may grow to, as its last owner wrote down.
        owned: whether a process has it open.
        used_at: when its catalogue was last written, seconds since 1970; where that is in other roots, when
            something of it was.
    """

    name: str
    directories: list[Path] = field(default_factory=list)
    occupied: int = 0
    reserved: int = 0
    owned: bool = False
    used_at: float = 0.0

    @property
    def counted(self) -> int:
        """What it takes of the capacity: a running one all that it may grow to, any other what it has."""
        return max(self.occupied, self.reserved) if self.owned else self.occupied


@contextlib.contextmanager
def opening_turn(roots: Sequence[Path]) -> Iterator[None]:
    """Let one process at a time share out the capacity of some roots.

    Raises RootError when another one takes longer than half a minute for it.
    """
    with contextlib.ExitStack() as stack:
        for root in sorted(roots):
            path = root / TURN_NAME
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                raise refuse(root, f"{TURN_NAME}: {error.strerror}", error.errno) from error
            stack.callback(os.close, descriptor)
            wait_for_lock(descriptor, path)
        yield


def wait_for_lock(descriptor: int, path: Path) -> None:
    """Lock a file, waiting for a while. Raises RootError."""
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RootError(
                    f"another server has been opening a store for {TURN_SECONDS:.0f} s ({path} is locked);"
                    " stop it or try again",
                    path=path,
                ) from None
            time.sleep(TURN_PAUSE)


def is_owned(directory: Path) -> bool:
    """Return whether a process has a store's directory open. Raises RootError when nobody can tell now."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(directory / LOCK_NAME, flags)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise refuse(directory, f"{LOCK_NAME}: {error.strerror}", error.errno) from error
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def namespace_of_other(directory: Path) -> dict[str, Any]:
    """Return a foreign store's ``namespace.json``; empty when it is not ours to read. Raises RootError."""
    try:
        return read_namespace(directory)
    except RootError as error:
        if error.errno in EXHAUSTED:
            raise
        return {}


def other_stores(roots: Sequence[Path], mine: Sequence[str] = ()) -> list[OtherStore]:
    """Return the stores in some roots but for those named ``mine``, the one unused for longest first.

    Looks at what stores make and nothing else, follows no link and counts what it must not read as nothing.
    Raises RootError when the system cannot read now what it could else.
    """
    found: dict[str, OtherStore] = {}
    for root in roots:
        for directory in store_directories(root):
            if directory.name in mine:
                continue
            other = found.setdefault(directory.name, OtherStore(directory.name))
            other.directories.append(directory)
            other.occupied += namespace_bytes(directory)
            reserved = namespace_of_other(directory).get("reserved_bytes")
            other.reserved += reserved if isinstance(reserved, int) and reserved > 0 else 0
            other.owned = other.owned or is_owned(directory)
    for other in found.values():
        other.used_at = catalogue_written(other.directories) or last_written(other.directories)
    return sorted(found.values(), key=lambda other: other.used_at)


def catalogue_written(directories: Sequence[Path]) -> float:
    """Return when a catalogue in these directories was last written, seconds since 1970; 0 without one."""
    paths = [each / name for each in directories for name in (CATALOGUE_NAME, f"{CATALOGUE_NAME}-wal")]
    return max(map(written_at, paths), default=0.0)


def last_written(directories: Sequence[Path], *, taken: bool = True) -> float:
    """Return when an owner last took these directories (unless told not to look at that) or wrote there.

    Seconds since 1970; 0 if never.
    """
    times = [0.0]
    for directory in directories:
        folders = [Path(each) for each in plain_entries(directory) if RANK_DIRECTORY.fullmatch(each.name)]
        files = [each for folder in folders for each in plain_entries(folder)]
        times += map(written_at, map(Path, files))
        times += [written_at(directory / LOCK_NAME)] if taken else []
    return max(times)


def written_at(path: Path) -> float:
    """Return when a file was last written, seconds since 1970; 0 when there is none to see."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def reclaim(others: Sequence[OtherStore], *, wanted: int, unused_since: float) -> list[OtherStore]:
    """Remove stores that nobody has used since then, oldest first, until ``wanted`` bytes are freed.

    Returns those that are left. Each removal is told in one line.
    """
    left = []
    for other in others:
        if wanted <= 0 or other.owned or other.used_at >= unused_since:
            left.append(other)
            continue
        try:
            remove_store(other, unused_since=unused_since)
        except (OSError, StoreBusyError) as error:
            log.warning("%s cannot be removed: %s", other.directories[0], error)
            left.append(other)
            continue
        wanted -= other.occupied
        log.warning("%s: removed, %d bytes that nobody used any more", other.directories[0], other.occupied)
    return left


def remove_store(other: OtherStore, *, unused_since: float | None = None) -> None:
    """Remove all that a store made, and its directories unless something else lies there.

    With ``unused_since`` only if nobody has used it since then: who did may have come and gone after it was
    looked at. Raises StoreBusyError while a process has it open or reads it, or when it was used since;
    OSError when the system refuses.
    """
    with contextlib.ExitStack() as stack:
        # Before the locks, which are written to by whoever takes them.
        used_at = catalogue_written(other.directories) or last_written(other.directories)
        for directory in other.directories:
            stack.enter_context(OwnerLock(directory))
            stack.enter_context(without_readers(directory))
        now = catalogue_written(other.directories) or last_written(other.directories, taken=False)
        if unused_since is not None and max(used_at, now) >= unused_since:
            raise StoreBusyError("it was used since", path=other.directories[0], pid=None)
        for directory in other.directories:
            for entry in plain_entries(directory):
                path = Path(entry)
                if is_directory(entry) and RANK_DIRECTORY.fullmatch(entry.name):
                    for each in plain_entries(path):
                        if SEGMENT_FILE.fullmatch(each.name):
                            Path(each).unlink()
                    with contextlib.suppress(OSError):
                        path.rmdir()
                elif not is_directory(entry) and OWN_FILE.fullmatch(entry.name):
                    path.unlink()
            (directory / LOCK_NAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                directory.rmdir()


def describe(other: OtherStore) -> str:
    """Return one line about a store for people."""
    facts = namespace_of_other(other.directories[0]).get("facts")
    state = (
        "in use" if other.owned else f"last used {time.strftime('%Y-%m-%d', time.localtime(other.used_at))}"
    )
    model = facts.get("model") if isinstance(facts, dict) else None
    text = json.dumps(model)[:60] if model is not None else "?"
    return f"{other.name}  {other.occupied:>16}  {state}  {text}"
