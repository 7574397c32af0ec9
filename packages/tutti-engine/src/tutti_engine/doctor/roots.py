# SPDX-License-Identifier: Apache-2.0
"""What one root is good for."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from tutti_engine.doctor.findings import Finding, fail, note, ok, warn
from tutti_engine.doctor.mounts import Mount, drive_node, find_mount, gpu_nodes
from tutti_engine.errors import RootError
from tutti_engine.store.roots import absolute_roots, probe_writing
from tutti_engine.store.share import other_stores

__all__ = ["direct_io", "examine_root", "file_system", "numa", "room"]

PROVEN = ("ext4", "xfs")
"""File systems of local drives that give O_DIRECT what a store asks of it."""

MEMORY = ("tmpfs", "ramfs")

REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs", "virtiofs")
"""The catalogue's write-ahead log needs memory that all its processes share, which these do not promise."""

LAYERED = ("overlay", "aufs")

BLOCK_BYTES = 4096

LOW_SHARE = 0.05


def examine_root(root: Path) -> Iterator[Finding]:
    """Return what is found of one root, from whether it can be used to how much room there is."""
    (path,) = absolute_roots([root])
    name = str(path)
    try:
        found = path.lstat()
    except FileNotFoundError:
        yield from missing(path)
        return
    except OSError as error:
        yield fail("directory", str(error.strerror), "let the server's user reach it", root=name)
        return
    if stat.S_ISLNK(found.st_mode):
        fix = f"name {os.path.realpath(path)}"
        yield fail("directory", "it is a symbolic link, which a store refuses", fix, root=name)
        return
    if not stat.S_ISDIR(found.st_mode):
        yield fail("directory", "it is no directory", "name another root", root=name)
        return
    why = why_not_written(path)
    if why:
        fix = f"mount it writable, or chown it to the server's user: {name}"
        yield fail("directory", f"it cannot be written ({why})", fix, root=name)
        return
    yield privacy(found, name)
    yield file_system(find_mount(path), name)
    yield direct_io(try_direct(path), name)
    yield numa(*drive_node(path), gpu_nodes(), name)
    yield from space(path)


def why_not_written(path: Path) -> str:
    """Return why no file can be made in a directory; empty when it can."""
    try:
        probe_writing(path)
    except RootError as error:
        return os.strerror(error.errno or errno.EACCES)
    # Not all file systems can be probed.
    return "" if os.access(path, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)


def missing(path: Path) -> Iterator[Finding]:
    """Judge a root that a server would have to make."""
    parent = next(each for each in path.parents if each.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        yield note("directory", f"it is not there yet; a server makes it below {parent}", root=str(path))
    else:
        fix = f"mkdir -p -m 700 {path}, owned by the server's user"
        yield fail("directory", f"it is not there and cannot be made below {parent}", fix, root=str(path))


def privacy(found: os.stat_result, root: str) -> Finding:
    """Judge who else may write here."""
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in (os.geteuid(), 0):
        return warn("directory", "other users can write it", f"chmod 700 {root}", root=root)
    return ok("directory", "it can be written", root=root)


def file_system(mount: Mount | None, root: str) -> Finding:
    """Judge the kind of file system."""
    name = "file system"
    if mount is None:
        return note(name, "the kernel's list of mounts does not tell", root=root)
    what = f"{mount.kind} ({mount.source}) on {mount.point}"
    if mount.kind in REMOTE:
        return fail(
            name, f"{what}: the catalogue's log does not work over a network", "use a local drive", root=root
        )
    if mount.kind in LAYERED:
        fix = "mount a volume of the host there"
        return warn(name, f"{what}: a container's own layer, slower and gone with it", fix, root=root)
    if mount.kind in MEMORY:
        fix = "use a directory on a drive, unless that is meant"
        return warn(name, f"{what}: kept in memory, gone with a restart of the machine", fix, root=root)
    if mount.kind in PROVEN:
        return ok(name, what, root=root)
    return note(name, f"{what}: not one that this project tests ({', '.join(PROVEN)})", root=root)


def try_direct(directory: Path) -> int | None:
    """Write a block past the page cache to a file without a name; return 0, the errno, or None.

    None where the file system has no files without names.
    """
    flags = os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, flags, 0o600)
    except OSError as error:
        return None if error.errno in (errno.EOPNOTSUPP, errno.EISDIR) else error.errno
    try:
        with mmap.mmap(-1, BLOCK_BYTES) as block:
            return 0 if os.pwrite(descriptor, block, 0) == BLOCK_BYTES else errno.EIO
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)


def direct_io(refusal: int | None, root: str) -> Finding:
    """Judge what ``try_direct`` returned."""
    name = "O_DIRECT"
    if refusal == 0:
        return ok(name, "4 KiB blocks past the page cache", root=root)
    if refusal is None:
        return note(name, "cannot be told without making a file", root=root)
    if refusal == errno.ENOSPC:
        return fail(name, "the file system is full", "free some room", root=root)
    text = f"refused ({os.strerror(refusal)}): I/O goes through the page cache and its memory"
    return warn(name, text, "use ext4 or xfs on a drive with blocks of 4 KiB or less", root=root)


def numa(drive: str, node: int | None, gpus: set[int], root: str) -> Finding:
    """Judge how far the drive is from the GPUs."""
    name = "NUMA"
    if not drive:
        return note(name, "no single block device is below this directory", root=root)
    if node is None or not gpus:
        what = "its node is not told" if node is None else f"node {node}, no GPU with a node"
        return note(name, f"{drive}: {what}", root=root)
    beside = ", ".join(map(str, sorted(gpus)))
    if node in gpus:
        return ok(name, f"{drive} on node {node}, GPUs on {beside}", root=root)
    fix = f"use a drive of node {beside}, or run the server's CPU side on node {node}"
    return warn(name, f"{drive} on node {node}, GPUs on {beside}: data crosses processors", fix, root=root)


def space(path: Path) -> Iterator[Finding]:
    """Return what room is left, and what the stores in this root may still take of it."""
    try:
        usage = shutil.disk_usage(path)
        stores = other_stores([path])
    except OSError as error:
        yield fail("free space", f"cannot be told: {error}", "see the system's log", root=str(path))
        return
    growth = sum(max(0, each.reserved - each.occupied) for each in stores)
    yield room(usage.total, usage.free, growth, str(path))
    if stores:
        owned = sum(each.owned for each in stores)
        taken = sum(each.occupied for each in stores)
        yield note("stores", f"{len(stores)}, {owned} of them in use, {taken:,} bytes", root=str(path))


def room(total: int, free: int, growth: int, root: str) -> Finding:
    """Judge the bytes that are free; stores may still grow by ``growth``."""
    name = "free space"
    text = f"{free:,} of {total:,} bytes"
    if growth > free:
        fix = "lower capacity_bytes, set min_free_bytes or free some room (tutti gc)"
        return warn(name, f"{text}; the stores here may grow by {growth:,}", fix, root=root)
    if free < total * LOW_SHARE:
        fix = "free some room: nearly full file systems and drives get slow"
        return warn(name, text, fix, root=root)
    return ok(name, text, root=root)
