# SPDX-License-Identifier: Apache-2.0
"""Read and write bandwidth of each data path, with fio beside it when it is installed.

    python benchmarks/bandwidth.py --folder /mnt/nvme0

One file, random order of blocks. Twice the depth is submitted ahead, so that the data path always has its
depth to work on. Prints GB/s (10^9 bytes) and, where fio ran on the same file in the same run, the ratio.
Buffered runs have no fio beside them: that would compare what the page cache does.
"""

from __future__ import annotations

import argparse
import json
import mmap
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tutti_runtime as tr

KIB = 1024
MIB = 1024 * KIB


@contextmanager
def window(size: int) -> Iterator[int]:
    """Memory whose base is a multiple of 64 KiB; yields its address."""
    area = mmap.mmap(-1, size + 64 * KIB)
    view = np.frombuffer(area, dtype=np.uint8)
    skip = -view.ctypes.data % (64 * KIB)
    view[skip : skip + size] = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    yield view.ctypes.data + skip


def requests(
    direction: int, memory: int, target: int, block: int, depth: int, file_bytes: int
) -> list[np.ndarray]:
    """All blocks of the file in random order, in batches of a quarter of the depth."""
    places = np.random.default_rng(1).permutation(file_bytes // block)
    rows = np.zeros(len(places), dtype=tr.REQUEST_DTYPE)
    rows["direction"] = direction
    rows["memory"] = memory
    rows["target"] = target
    rows["length"] = block
    rows["target_offset"] = places.astype(np.uint64) * block
    rows["memory_offset"] = (np.arange(len(places)) % (2 * depth)).astype(np.uint64) * block
    step = max(1, depth // 4)
    return [rows[i : i + step] for i in range(0, len(rows), step)]


def move(runtime: tr.Runtime, batches: list[np.ndarray], ahead: int = 8) -> None:
    """Keep `ahead` batches in flight until all have finished."""
    handles: list[int] = []
    for batch in batches:
        if len(handles) == ahead:
            check(runtime.wait(handles.pop(0)))
        result = runtime.submit(batch)
        if result.handle is None or not result.accepted.all():
            raise RuntimeError(f"not accepted: {result.errors}")
        handles.append(result.handle)
    for handle in handles:
        check(runtime.wait(handle))


def check(done: tr.Completion) -> None:
    if done.status.any():
        raise RuntimeError(f"failed: {done.status}")


def measure(
    path: Path, data_path: str, direct: str, block: int, depth: int, file_bytes: int, repeat: int
) -> dict[str, float]:
    """GB/s of the best of `repeat` passes for "write" and "read"."""
    rates = {}
    settings = {"data_path": data_path, "direct": direct, "queue_depth": depth, "threads": depth}
    with tr.make_runtime({"kind": "file", **settings}) as runtime, window(2 * depth * block) as address:
        memory = runtime.register_memory(address, 2 * depth * block)
        target = runtime.open(path.as_uri())
        for name, direction in (("write", tr.WRITE), ("read", tr.READ)):
            batches = requests(direction, memory, target, block, depth, file_bytes)
            best = 0.0
            for _ in range(repeat):
                begin = time.perf_counter()
                move(runtime, batches)
                best = max(best, file_bytes / (time.perf_counter() - begin) / 1e9)
            rates[name] = best
    return rates


def measure_fio(
    path: Path, direct: str, block: int, depth: int, file_bytes: int, repeat: int
) -> dict[str, float]:
    """The same with fio's io_uring engine; empty when fio is not there or cannot."""
    if shutil.which("fio") is None:
        return {}
    rates = {}
    for name, mode in (("write", "randwrite"), ("read", "randread")):
        for _ in range(repeat):
            command = ["fio", "--name=x", f"--filename={path}", f"--size={file_bytes}", f"--bs={block}"]
            command += [
                f"--rw={mode}",
                f"--iodepth={depth}",
                f"--direct={int(direct == 'on')}",
                "--ioengine=io_uring",
            ]
            command += ["--output-format=json", "--fallocate=none", "--overwrite=1"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return {}
            report = json.loads(done.stdout[done.stdout.index("{") :])
            rates[name] = max(rates.get(name, 0.0), report["jobs"][0][name]["bw_bytes"] / 1e9)
    return rates


def prepare(folder: Path, size: int) -> Path:
    """A file whose blocks all exist: the first write of a block costs a file system more than later ones."""
    path = folder / "tutti-bandwidth"
    chunk = np.random.default_rng(2).integers(0, 256, min(size, 4 * MIB), dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        for at in range(0, size, len(chunk)):
            file.write(chunk[: size - at])
    return path


def show(block: int, rows: dict[str, dict[str, float]]) -> None:
    fio = rows.get("fio", {})
    for name, rates in rows.items():
        ratio = "  ".join(f"{kind} {rates[kind] / fio[kind]:.2f} of fio" for kind in fio if name != "fio")
        print(
            f"{block // KIB:6d} KiB  {name:8s} {rates['write']:7.2f} {rates['read']:7.2f}  {ratio}".rstrip()
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the file is made (default: the temporary folder)")
    parser.add_argument("--file-mib", type=int, default=512)
    parser.add_argument("--blocks-kib", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--direct", choices=["on", "off"], default="on")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--paths", nargs="+", choices=["uring", "posix"], default=["uring", "posix"])
    options = parser.parse_args()
    size = options.file_mib * MIB
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = prepare(Path(folder), size)
        print(f"{options.file_mib} MiB file, depth {options.depth}, O_DIRECT {options.direct}, GB/s")
        print(f"{'block':>10s}  {'path':8s} {'write':>7s} {'read':>7s}")
        for block in (kib * KIB for kib in options.blocks_kib):
            fixed = (options.direct, block, options.depth, size, options.repeat)
            rows = {name: measure(path, name, *fixed) for name in options.paths}
            from_fio = measure_fio(path, *fixed)
            if from_fio:
                rows["fio"] = from_fio
            show(block, rows)
    if shutil.which("fio") is None:
        print("fio is not installed: no ratio")


if __name__ == "__main__":
    main()
