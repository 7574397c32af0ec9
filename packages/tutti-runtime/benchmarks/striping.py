# SPDX-License-Identifier: Apache-2.0
"""What striping costs on one drive, and what it gives on four throttled ones.

    python benchmarks/striping.py --folder /mnt/nvme0 --json striping.json

First part: a file on one root beside the same bytes on four roots of the same drive, in turn, so that both
meet the same noise; medians, and the ratio that must not fall below 1. Second part: four targets, each on a
drive that is throttled to R, must reach 3.8 R together. The throttle is the kernel's own (blkio of cgroup
v1 on loop devices; needs root) or, where that cannot be had, the package's fault path with a bandwidth for
each target. GB/s are 10^9 bytes a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tutti_runtime as tr
from tutti_runtime import _core
from tutti_runtime.host_memory import HostMemory

MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup/blkio")


def say(text: str) -> None:
    """Progress, out of the way of what is printed."""
    print(text, file=sys.stderr, flush=True)


def window(size: int) -> np.ndarray:
    """Memory whose base is a multiple of 64 KiB."""
    part = HostMemory(size).bytes
    part[:] = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    return part


def fill(path: Path, size: int) -> None:
    """A file whose blocks all exist."""
    chunk = np.random.default_rng(1).integers(0, 256, min(size, 4 * MIB), dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        for at in range(0, size, len(chunk)):
            file.write(chunk[: size - at])
        os.fsync(file.fileno())


def requests(direction: int, memory: int, target: int, size: int, block: int, depth: int) -> list[np.ndarray]:
    """All blocks of a target in random order, in batches of a quarter of the depth."""
    places = np.random.default_rng(2).permutation(size // block)
    rows = np.zeros(len(places), dtype=tr.REQUEST_DTYPE)
    rows["direction"], rows["memory"], rows["target"], rows["length"] = direction, memory, target, block
    rows["target_offset"] = places.astype(np.uint64) * block
    rows["memory_offset"] = (np.arange(len(places)) % (2 * depth)).astype(np.uint64) * block
    step = max(1, depth // 4)
    return [rows[i : i + step] for i in range(0, len(rows), step)]


def seconds(runtime: tr.Runtime, batches: list[np.ndarray]) -> float:
    """Time for all batches with eight of them in flight."""
    begin = time.perf_counter()
    handles: list[int] = []
    for batch in batches:
        if len(handles) == 8:
            finish(runtime, handles.pop(0))
        result = runtime.submit(batch)
        if result.handle is None or not result.accepted.all():
            raise RuntimeError(f"not accepted: {result.errors}")
        handles.append(result.handle)
    for handle in handles:
        finish(runtime, handle)
    return time.perf_counter() - begin


def finish(runtime: tr.Runtime, handle: int) -> None:
    """Wait for a batch that must succeed."""
    done = runtime.wait(handle, 120)
    if done.status.any():
        raise RuntimeError(f"a transfer failed: {done.status}")


def one_drive(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """GB/s of one root and of four on the same drive, in turn."""
    size, block, depth = options.file_mib * MIB, options.block_kib << 10, options.depth
    roots = [folder / f"root-{i}" for i in range(4)]
    for root in roots:
        root.mkdir()
        fill(root / "striped", size // 4)
    fill(folder / "plain", size)
    settings = {"data_path": options.data_path, "direct": options.direct, "queue_depth": depth}
    memory = window(2 * depth * block)
    rows = []
    with tr.make_striped_runtime(roots=roots, unit=options.unit_kib << 10, **settings) as runtime:
        handle = runtime.register_memory(int(memory.ctypes.data), memory.size)
        targets = {
            "one root": runtime.open((folder / "plain").as_uri()),
            "four roots": runtime.open("striped://striped"),
        }
        for name, direction in (("read", tr.READ), ("write", tr.WRITE)):
            batches = {k: requests(direction, handle, t, size, block, depth) for k, t in targets.items()}
            rates: dict[str, list[float]] = {k: [] for k in targets}
            for round_ in range(options.rounds):
                say(f"one drive, {name}, round {round_ + 1} of {options.rounds}")
                for k, b in sorted(batches.items(), reverse=bool(round_ % 2)):
                    rates[k].append(size / seconds(runtime, b) / 1e9)
            one, four = (statistics.median(rates[k]) for k in ("one root", "four roots"))
            pairs = [b / a for a, b in zip(rates["one root"], rates["four roots"], strict=True)]
            rows.append(
                {"what": name, "one_root": one, "four_roots": four, "ratio": statistics.median(pairs)}
            )
    return rows


def run(*command: str) -> str:
    """What a command prints. Raises ``OSError`` when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def throttled_drives(folder: Path, rate: int, size: int) -> Iterator[list[Path]]:
    """Four small ext4 on loop devices that the kernel holds to ``rate`` bytes a second, for this process."""
    with ExitStack() as stack:
        group = CGROUPS / f"tutti-striping-{os.getpid()}"
        home = CGROUPS / Path("/proc/self/cgroup").read_text().split("blkio:")[1].split("\n")[0].lstrip("/")
        group.mkdir()
        stack.callback(group.rmdir)
        folders = []
        for i in range(4):
            image = folder / f"drive-{i}.img"
            fill(image, size + 16 * MIB)
            run("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", str(image))
            device = run("losetup", "--show", "-f", "--direct-io=on", str(image))
            stack.callback(run, "losetup", "-d", device)
            folders.append(folder / f"drive-{i}")
            folders[-1].mkdir()
            run("mount", device, str(folders[-1]))
            stack.callback(run, "umount", str(folders[-1]))
            fill(folders[-1] / "data", size)
            number = Path(device).stat().st_rdev
            for kind in ("read", "write"):
                limit = group / f"blkio.throttle.{kind}_bps_device"
                limit.write_text(f"{os.major(number)}:{os.minor(number)} {rate}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        stack.callback((home / "cgroup.procs").write_text, str(os.getpid()))
        yield folders


def four_drives(
    roots: list[Path], size: int, rate: int, options: argparse.Namespace, fault: _core.FaultControl | None
) -> list[dict[str, Any]]:
    """Bytes a second of one drive and of a target striped over four, each beside the throttle's rate."""
    block, depth = options.block_kib << 10, options.depth
    memory = window(2 * depth * block)
    unit = options.unit_kib << 10
    rows = []
    settings: dict[str, Any] = {
        "data_path": options.data_path,
        "direct": options.direct,
        "queue_depth": max(depth, 64),
        "roots": [os.fsencode(root) for root in roots],
        "unit": unit,
    }
    if fault is not None:
        settings["fault"] = fault
    with tr.Runtime(_core.make_file(**settings)) as runtime:
        handle = runtime.register_memory(int(memory.ctypes.data), memory.size)
        single = runtime.open((roots[0] / "data").as_uri())
        striped = runtime.open("striped://data")
        for name, direction in (("read", tr.READ), ("write", tr.WRITE)):
            say(f"four throttled drives, {name}")
            took = seconds(runtime, requests(direction, handle, single, size, block, depth))
            together = seconds(runtime, requests(direction, handle, striped, 4 * size, block, depth))
            one, four = size / took, 4 * size / together
            rows.append(
                {"what": name, "one_drive": one / 1e9, "four_drives": four / 1e9, "times_rate": four / rate}
            )
    return rows


def scaling(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The second part, with whichever throttle this machine lets us have."""
    rate, size = options.rate_mib * MIB, options.rate_mib * MIB * options.seconds // (4 * MIB) * 4 * MIB
    if options.throttle != "fault":
        try:
            with throttled_drives(folder, rate, size) as roots:
                return {"throttle": "kernel, blkio", "rows": four_drives(roots, size, rate, options, None)}
        except (OSError, IndexError) as error:
            if options.throttle == "kernel":
                raise
            say(f"no throttle by the kernel here ({error}); the fault path's is used")
    roots = [folder / f"slow-{i}" for i in range(4)]
    for root in roots:
        root.mkdir()
        fill(root / "data", size)
    fault = _core.FaultControl({"bandwidth": float(rate), "per_target": True})
    return {"throttle": "fault path", "rows": four_drives(roots, size, rate, options, fault)}


def show(report: dict[str, Any]) -> None:
    """The report as a person reads it."""
    print("one drive             one root   four roots   ratio (limit 1.00)")
    for row in report["one_drive"]:
        print(
            f"  {row['what']:<18}{row['one_root']:7.2f} GB/s{row['four_roots']:8.2f} GB/s{row['ratio']:8.2f}"
        )
    part = report["scaling"]
    print(f"four throttled drives  ({part['throttle']}, R = {report['rate'] / 1e9:.3f} GB/s each)")
    for row in part["rows"]:
        print(
            f"  {row['what']:<18}{row['one_drive']:7.3f} GB/s{row['four_drives']:8.3f} GB/s"
            f"{row['times_rate']:8.2f} R (limit 3.80 R)"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--folder", type=Path, help="where the files are made (default: the temporary folder)"
    )
    parser.add_argument("--file-mib", type=int, default=256)
    parser.add_argument("--block-kib", type=int, default=1024)
    parser.add_argument("--unit-kib", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rate-mib", type=int, default=24, help="of each throttled drive, a second")
    parser.add_argument("--seconds", type=int, default=3, help="that each run on throttled drives takes")
    parser.add_argument("--data-path", choices=["auto", "uring", "posix"], default="auto")
    parser.add_argument("--direct", choices=["auto", "on", "off"], default="on")
    parser.add_argument("--throttle", choices=["auto", "kernel", "fault"], default="auto")
    parser.add_argument("--json", type=Path, help="also write the report here")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path, argparse.Namespace], Any]] = {"one_drive": one_drive, "scaling": scaling}
    report: dict[str, Any] = {"rate": options.rate_mib * MIB, "unit": options.unit_kib << 10}
    for name, part in parts.items():
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            report[name] = part(folder, options)
        finally:
            shutil.rmtree(folder)
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
