# SPDX-License-Identifier: Apache-2.0
"""Limits of the process and what the kernel lets it do."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from tutti_engine.doctor.findings import Finding, fail, note, ok, warn
from tutti_engine.store.layout import MAX_FILES_PER_ROOT

__all__ = ["descriptors", "examine_machine", "io_uring", "memory_lock", "probe_io_uring"]

IO_URING_SETUP = 425
"""The system call's number, the same on every architecture (include/uapi/asm-generic/unistd.h)."""

PARAMS_BYTES = 120
"""Size of ``struct io_uring_params`` (include/uapi/linux/io_uring.h)."""

IPC_LOCK = 14
"""CAP_IPC_LOCK: memory is locked without a limit (include/uapi/linux/capability.h)."""

LOCKED_BYTES = 1 << 30
"""Above the staging windows of one rank."""

OTHER_DESCRIPTORS = 64
"""What a process needs beside segment files: catalogue, locks, sockets, libraries."""


def examine_machine(num_roots: int) -> Iterator[Finding]:
    """Return what is true whatever the directories."""
    yield ok("kernel", f"Linux {platform.release()} on {platform.machine()}")
    yield io_uring(probe_io_uring(), Path("/proc/sys/kernel/io_uring_disabled"))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield memory_lock(soft, capabilities=effective_capabilities(Path("/proc/self/status")))
    yield descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE), num_roots=max(1, num_roots))


def probe_io_uring() -> int:
    """Set a ring up and give it back; return 0, or the errno of the refusal."""
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(PARAMS_BYTES)
    descriptor = libc.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_uint(1), params)
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


def io_uring(refusal: int, disabled: Path) -> Finding:
    """Judge what ``probe_io_uring`` returned; ``disabled`` is the kernel's own switch."""
    name = "io_uring"
    if refusal == 0:
        return ok(name, "works")
    instead = "a pool of threads does the I/O, with more CPU time"
    if refusal == errno.ENOSYS:
        return warn(name, f"the kernel, or a sandbox, does not have it; {instead}", "use Linux 5.11 or later")
    if refusal == errno.ENOMEM:
        return warn(
            name, f"no memory may be locked for it; {instead}", "raise the limit: ulimit -l unlimited"
        )
    try:
        switch = disabled.read_text().strip()
    except OSError:
        switch = ""
    if switch in ("1", "2"):
        return warn(
            name, f"kernel.io_uring_disabled is {switch}; {instead}", "sysctl kernel.io_uring_disabled=0"
        )
    if refusal in (errno.EPERM, errno.EACCES):
        fix = "allow it in the container's seccomp profile (docker: --security-opt seccomp=PROFILE)"
        return warn(name, f"forbidden, most likely by a seccomp profile or a security module; {instead}", fix)
    return warn(name, f"refused: {os.strerror(refusal)}; {instead}", "look at the kernel's log")


def effective_capabilities(status: Path) -> int:
    """Return the process's capabilities as bits; 0 when they cannot be read."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def memory_lock(limit: int, *, capabilities: int) -> Finding:
    """Judge how much memory may be locked, in bytes."""
    name = "locked memory"
    if limit == resource.RLIM_INFINITY or capabilities >> IPC_LOCK & 1:
        return ok(name, "unlimited")
    if limit >= LOCKED_BYTES:
        return ok(name, f"{limit:,} bytes")
    return warn(
        name,
        f"{limit:,} bytes: staging may not fit, and io_uring then pins pages anew for each transfer",
        "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity, docker: --ulimit memlock=-1)",
    )


def descriptors(soft: int, hard: int, *, num_roots: int) -> Finding:
    """Judge the limits of open files for a rank with so many roots."""
    name = "open files"
    needed = MAX_FILES_PER_ROOT * num_roots + OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ok(name, f"{'unlimited' if soft == resource.RLIM_INFINITY else f'{soft:,}'}, {needed} needed")
    fix = f"ulimit -n {max(needed, 65536)} (systemd: LimitNOFILE=65536, docker: --ulimit nofile=65536)"
    text = f"{soft:,} of at most {hard:,}; a full store of {num_roots} roots needs {needed}"
    return fail(name, text, fix)


def driver(version: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    """Return the NVIDIA driver's version."""
    try:
        return ok("NVIDIA driver", version.read_text().splitlines()[0].removeprefix("NVRM version: ").strip())
    except (OSError, IndexError):
        return note("NVIDIA driver", "none; KV caches in host memory need none")
