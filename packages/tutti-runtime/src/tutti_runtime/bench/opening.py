# SPDX-License-Identifier: Apache-2.0
"""What it costs to open many files: one call each, one batch, and Python's own os.open beside them."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tutti_runtime.factories import make_file_runtime
from tutti_runtime.runtime import Runtime

__all__ = ["can_drop_caches", "measure_opening"]

_DROP = Path("/proc/sys/vm/drop_caches")


def one_by_one(runtime: Runtime, paths: list[Path]) -> float:
    """Seconds for as many calls of open."""
    uris = [path.as_uri() for path in paths]
    begin = time.perf_counter()
    targets = [runtime.open(uri) for uri in uris]
    took = time.perf_counter() - begin
    runtime.close_batch(targets)
    return took


def in_one_batch(runtime: Runtime, paths: list[Path]) -> float:
    """Seconds for one call of open_batch."""
    uris = [path.as_uri() for path in paths]
    begin = time.perf_counter()
    results = runtime.open_batch(uris)
    took = time.perf_counter() - begin
    runtime.close_batch([result.target for result in results if result.target is not None])
    if any(result.error for result in results):
        raise RuntimeError("a file was not opened")
    return took


def by_os_open(_: Runtime, paths: list[Path]) -> float:
    """Seconds for as many calls of os.open and os.fstat, the least that anybody needs."""
    names = [str(path) for path in paths]
    begin = time.perf_counter()
    fds = [os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC) for name in names]
    for fd in fds:
        os.fstat(fd)
    took = time.perf_counter() - begin
    for fd in fds:
        os.close(fd)
    return took


WAYS: dict[str, Callable[[Runtime, list[Path]], float]] = {
    "os.open + os.fstat": by_os_open,
    "open": one_by_one,
    "open_batch": in_one_batch,
}


def can_drop_caches() -> bool:
    """Whether this process may make files cold (root)."""
    return os.access(_DROP, os.W_OK)


def measure_opening(
    folder: Path, files: int, rounds: int, *, cold: bool = False, tell: Callable[[str], None] | None = None
) -> dict[str, float]:
    """Microseconds a file, medians of rounds that take all ways in turn.

    ``cold``: the kernel's caches of names and inodes are dropped before each; needs root.
    """
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="tutti-bench-") as made,
        make_file_runtime(max_open_files=files + 64) as runtime,
    ):
        paths = [Path(made).absolute() / f"file-{i}" for i in range(files)]
        for path in paths:
            path.write_bytes(bytes(64 << 10))
        for number in range(rounds):
            for name, way in WAYS.items():
                if cold:
                    os.sync()
                    _DROP.write_text("3\n")
                taken[name].append(way(runtime, paths) / files * 1e6)
            if tell is not None:
                tell(f"{'cold' if cold else 'warm'} round {number + 1} of {rounds}")
    return {name: statistics.median(values) for name, values in taken.items()}
