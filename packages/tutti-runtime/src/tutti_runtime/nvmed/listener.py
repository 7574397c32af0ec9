# SPDX-License-Identifier: Apache-2.0
"""The socket of the daemon, in a folder that nobody else can write to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

__all__ = ["Listener", "check_path"]

_BACKLOG = 64


def _refuse(path: Path, rule: str, error: int = errno.EPERM) -> OSError:
    return OSError(error, rule, str(path))


def check_path(path: str) -> str:
    """Return the path of a Unix socket, else raise ``ValueError``."""
    if not Path(path).is_absolute() or "\0" in path or len(os.fsencode(path)) > 107:
        raise ValueError(f"socket={path!r} must be an absolute path of at most 107 bytes")
    return path


class Listener:
    """A listening socket at ``path``, and the lock that says whose it is.

    The folder is made with mode 0750 where it is missing. It must belong to this user or to root, be no
    symbolic link, and have mode 0700 or 0750. ``gid``: the group of both (``None``: this process's). One
    daemon at a time listens; what one that was killed has left is taken away.
    """

    def __init__(self, path: str, gid: int | None = None) -> None:
        self.path = Path(check_path(path))
        self._folder = self._open_folder(gid)
        self._lock = -1
        try:
            self._lock = self._take_lock()
            self._remove_stale()
            self.socket = self._bind(gid)
        except BaseException:
            self._close_files()
            raise

    def _open_folder(self, gid: int | None) -> int:
        folder = self.path.parent
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o750)
            folder.chmod(0o750)
            if gid is not None:
                os.chown(folder, -1, gid)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _refuse(folder, "the socket's folder must be a folder, not a symbolic link") from None
            raise
        found = os.fstat(descriptor)
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o027:
            os.close(descriptor)
            raise _refuse(
                folder,
                f"the socket's folder has mode {stat.S_IMODE(found.st_mode):04o} and owner {found.st_uid}; "
                "it must be 0700 or 0750 and belong to this user or root",
            )
        return descriptor

    def _take_lock(self) -> int:
        name = self.path.name + ".lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 20).decode("ascii", "replace").strip() or "?"
            os.close(lock)
            raise _refuse(
                self.path, f"another tutti-nvmed (pid {owner}) listens here", errno.EADDRINUSE
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _remove_stale(self) -> None:
        try:
            found = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
            raise _refuse(self.path, "something that is no socket of this user is in the way; remove it")
        os.unlink(self.path.name, dir_fd=self._folder)

    def _bind(self, gid: int | None) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        place = f"/proc/self/fd/{self._folder}/{self.path.name}"  # in this folder, whatever its name is now
        try:
            made.bind(place)
            if gid is not None:
                os.chown(place, -1, gid)
            Path(place).chmod(0o660)
            made.listen(_BACKLOG)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """End listening, and take the socket away."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path.name, dir_fd=self._folder)
        self._close_files()

    def _close_files(self) -> None:
        for descriptor in (self._lock, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
