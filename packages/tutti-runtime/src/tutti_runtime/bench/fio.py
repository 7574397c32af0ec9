# SPDX-License-Identifier: Apache-2.0
"""The same work by fio. Keys are those of ``fio --output-format=json`` (fio 3.x)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tutti_runtime.bench.transfer import Round

__all__ = ["latency", "transfer", "version"]


def version() -> str | None:
    """fio's version, or ``None`` where it is not installed or does not run its io_uring engine."""
    if shutil.which("fio") is None:
        return None
    engine = subprocess.run(["fio", "--enghelp=io_uring"], capture_output=True, text=True, check=False)
    if engine.returncode != 0:
        return None
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=False).stdout.strip()


def transfer(path: Path, direction: str, block: int, depth: int, size: int, *, direct: bool) -> Round:
    """Every block of the file once, in random order. Raises ``RuntimeError`` with what fio said."""
    job = _run(path, direction, block, depth, size, direct=direct)
    moved, seconds = job[direction]["io_bytes"], job[direction]["runtime"] / 1e3
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return Round(job[direction]["bw_bytes"] / 1e9 if seconds else 0.0, cpu / (moved / 1e9))


def latency(path: Path, block: int, count: int, size: int, *, direct: bool) -> tuple[float, float]:
    """Median and 99th percentile of single reads, in seconds."""
    more = ["--lat_percentiles=1", "--percentile_list=50:99", f"--number_ios={count}"]
    report = _run(path, "read", block, 1, size, *more, direct=direct)["read"]["lat_ns"]["percentile"]
    return report["50.000000"] / 1e9, report["99.000000"] / 1e9


def _run(
    path: Path, direction: str, block: int, depth: int, size: int, *more: str, direct: bool
) -> dict[str, Any]:
    command = ["fio", "--name=x", f"--filename={path}", f"--size={size}", f"--bs={block}"]
    command += [f"--rw=rand{direction}", f"--iodepth={depth}", f"--direct={int(direct)}"]
    command += ["--ioengine=io_uring", "--registerfiles", "--fixedbufs", "--output-format=json"]
    command += ["--fallocate=none", "--overwrite=1", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "{" not in done.stdout:
        raise RuntimeError(f"fio failed: {(done.stderr or done.stdout).strip()[-300:]}")
    job: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return job
