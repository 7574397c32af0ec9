# SPDX-License-Identifier: Apache-2.0
"""What it costs to open many files: one call each, one batch, and Python's own os.open beside them.

    python benchmarks/open_files.py --folder /mnt/nvme0 --json open.json

Each round opens and closes all files in each way, in turn; medians in microseconds a file. With root, a cold
round is measured too: caches of names and inodes are dropped before it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tutti_runtime as tr

DROP = Path("/proc/sys/vm/drop_caches")


def one_by_one(runtime: tr.Runtime, paths: list[Path]) -> float:
    """Seconds for as many calls of open."""
    uris = [path.as_uri() for path in paths]
    begin = time.perf_counter()
    targets = [runtime.open(uri) for uri in uris]
    took = time.perf_counter() - begin
    runtime.close_batch(targets)
    return took


def in_one_batch(runtime: tr.Runtime, paths: list[Path]) -> float:
    """Seconds for one call of open_batch."""
    uris = [path.as_uri() for path in paths]
    begin = time.perf_counter()
    results = runtime.open_batch(uris)
    took = time.perf_counter() - begin
    runtime.close_batch([result.target for result in results if result.target is not None])
    if any(result.error for result in results):
        raise RuntimeError("a file was not opened")
    return took


def by_os_open(_: tr.Runtime, paths: list[Path]) -> float:
    """Seconds for as many calls of os.open and os.fstat, the least that anybody needs."""
    names = [str(path) for path in paths]
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        os.close(os.open(names[0], flags | os.O_DIRECT))
        flags |= os.O_DIRECT
    except OSError:  # the runtime falls back too
        pass
    begin = time.perf_counter()
    fds = [os.open(name, flags) for name in names]
    for fd in fds:
        os.fstat(fd)
    took = time.perf_counter() - begin
    for fd in fds:
        os.close(fd)
    return took


WAYS: dict[str, Callable[[tr.Runtime, list[Path]], float]] = {
    "os.open + os.fstat": by_os_open,
    "open": one_by_one,
    "open_batch": in_one_batch,
}


def measure(runtime: tr.Runtime, paths: list[Path], rounds: int, *, cold: bool) -> dict[str, float]:
    """Microseconds a file, medians."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for round_ in range(rounds):
        print(f"{'cold' if cold else 'warm'} round {round_ + 1} of {rounds}", file=sys.stderr)
        for name, way in WAYS.items():
            if cold:
                os.sync()
                DROP.write_text("3\n")
            taken[name].append(way(runtime, paths) / len(paths) * 1e6)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--folder", type=Path, help="where the files are made (default: the temporary folder)"
    )
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the report here")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        tr.make_file_runtime(max_open_files=options.files + 64) as runtime,
    ):
        paths = [Path(folder) / f"file-{i}" for i in range(options.files)]
        for path in paths:
            path.write_bytes(bytes(64 << 10))
        report = {"warm": measure(runtime, paths, options.rounds, cold=False)}
        if os.access(DROP, os.W_OK):
            report["cold"] = measure(runtime, paths, max(1, options.rounds // 3), cold=True)
    for state, values in report.items():
        least = values["os.open + os.fstat"]
        for name, value in values.items():
            print(f"{state}  {name:20s}{value:9.1f} us a file {value / least:7.2f} of os.open")
    if options.json:
        options.json.write_text(json.dumps({"files": options.files, **report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
