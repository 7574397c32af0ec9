# SPDX-License-Identifier: Apache-2.0
"""What is measured, and the file it is measured on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["KIB", "MIB", "Settings", "work_file"]

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes in bytes. ``rounds`` alternate between all data paths and fio; results are medians of them."""

    folder: Path
    file_bytes: int = 512 * MIB
    blocks: tuple[int, ...] = (64 * KIB, 256 * KIB, 512 * KIB, MIB)
    depth: int = 32
    direct: bool = True
    rounds: int = 5
    paths: tuple[str, ...] = ("uring", "posix")
    fio: bool = True
    latency_block: int = 4 * KIB
    latency_requests: int = 1000
    open_files: int = 500

    def __post_init__(self) -> None:
        for name in ("file_bytes", "depth", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be 1 or more")
        for name in ("latency_requests", "open_files"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 (left out) or more")
        for block in (*self.blocks, self.latency_block):
            if block < 4096 or block % 4096 or self.file_bytes % block:
                raise ValueError(
                    f"block={block} must be a multiple of 4096 that divides file_bytes={self.file_bytes}"
                )


@contextmanager
def work_file(folder: Path, size: int) -> Iterator[Path]:
    """A file of random bytes whose blocks all exist: the first write of a block costs a file system more
    than later ones. It is gone afterwards.
    """
    chunk = np.random.default_rng(2).integers(0, 256, min(size, 4 * MIB), dtype=np.uint8).tobytes()
    with tempfile.TemporaryDirectory(dir=folder, prefix="tutti-bench-") as made:
        path = Path(made).absolute() / "file"
        with path.open("wb") as file:
            for at in range(0, size, len(chunk)):
                file.write(chunk[: size - at])
        yield path
