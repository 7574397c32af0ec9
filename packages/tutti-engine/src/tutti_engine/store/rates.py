# SPDX-License-Identifier: Apache-2.0
"""How fast one directory takes and gives chunks, by data path. Needs the extra ``local``."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti_engine.backend import SegmentBatch, SegmentHandle
from tutti_engine.errors import BackendError, RootError
from tutti_engine.execution.ring_window import RingWindow
from tutti_engine.store.layout import StoreLayout

__all__ = ["DATA_PATHS", "Rates", "Shape", "measure"]

DATA_PATHS = ("uring", "posix")

RANDOM_BYTES = 1 << 20

TIMEOUT = 300.0
"""Seconds that one batch may take."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is moved: ``num_chunks`` chunks of ``num_layers`` segments, ``batch`` chunks at a time."""

    num_chunks: int
    num_layers: int
    segment_bytes: int
    batch: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks."""
        return self.num_chunks * self.num_layers * self.segment_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """What one data path reached, in bytes a second, medians of the rounds.

    Attributes:
        data_path: as the runtime says at the end: it may have moved down.
        load: storage to staging.
        store: staging to storage, durable.
        problem: why there is no figure; empty where there is.
    """

    data_path: str
    load: float | None
    store: float | None
    problem: str = ""


class Bench:
    """The files, and for each data path a backend on them."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self.layout = StoreLayout(
            directories=(str(folder),),
            num_layers=shape.num_layers,
            segment_bytes=shape.segment_bytes,
            chunk_bytes=-(-shape.num_layers * shape.segment_bytes // 16384) * 16384,
            chunks_per_file=shape.num_chunks,
            num_chunks=shape.num_chunks,
        )
        self.window = RingWindow(shape.segment_bytes, shape.batch * shape.num_layers, 0)
        # Drives and file systems may treat zeros and repetitions as nothing.
        block = os.urandom(RANDOM_BYTES)
        for start in range(0, self.window.nbytes, RANDOM_BYTES):
            piece = self.window.memory[start : start + RANDOM_BYTES]
            piece[:] = block[: len(piece)]

    def batches(self) -> list[SegmentBatch]:
        """Return the chunks in batches, each of which fills the window."""
        layers, found = range(self.shape.num_layers), []
        for first in range(0, self.shape.num_chunks, self.shape.batch):
            chunks = range(first, min(first + self.shape.batch, self.shape.num_chunks))
            ids = [chunk for chunk in chunks for _ in layers]
            found.append(SegmentBatch(ids, [*layers] * len(chunks), range(len(ids))))
        return found

    def rate(self, start: Callable[[SegmentBatch], SegmentHandle]) -> float:
        """Move everything once; return bytes a second. Raises BackendError when some of it failed."""
        batches = self.batches()
        begin = time.perf_counter()
        for batch in batches:
            handle = start(batch)
            if not handle.wait(time.monotonic() + TIMEOUT):
                raise BackendError(f"a batch of {len(batch.slots)} segments took more than {TIMEOUT:.0f} s")
            wrong = [code for code in handle.status() if code]
            if wrong:
                raise BackendError(f"{len(wrong)} segments failed: {os.strerror(wrong[0])}")
        return self.shape.total_bytes / (time.perf_counter() - begin)


def measure(
    folder: Path,
    shape: Shape,
    rounds: int,
    paths: Sequence[str] = DATA_PATHS,
    on_progress: Callable[[int], object] = lambda count: None,
) -> list[Rates]:
    """Store and load everything in turn on each data path; the paths take turns too.

    Args:
        folder: an empty directory; the files are left there.
        shape: what is moved.
        rounds: measurements of each; the first writing of the files is not among them.
        paths: data paths of the runtime.
        on_progress: is told how many more rounds of a path are done.

    Raises BackendError when the extra ``local`` is missing.
    """
    try:
        import tutti_engine.backends.local as local
    except ImportError as error:
        raise BackendError(str(error)) from error
    bench = Bench(folder, shape)
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in paths}
    problems: dict[str, str] = {}
    names = dict(zip(paths, paths))
    for number in range(rounds + 1):
        for name in paths:
            if name not in problems:
                try:
                    with local.open_backend(bench.layout, name) as backend:
                        backend.bind_staging(bench.window)
                        store, load = bench.rate(backend.write_segments), bench.rate(backend.read_segments)
                        names[name] = backend.data_path
                except (BackendError, RootError, OSError, RuntimeError, ValueError) as error:
                    problems[name] = str(error)
                else:
                    # What is written for the first time costs a file system more than later.
                    if number:
                        found[name][0].append(load)
                        found[name][1].append(store)
            on_progress(1)
    return [
        Rates(names[name], None, None, problems[name])
        if name in problems
        else Rates(names[name], statistics.median(found[name][0]), statistics.median(found[name][1]))
        for name in paths
    ]
