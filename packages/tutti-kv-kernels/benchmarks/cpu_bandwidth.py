# SPDX-License-Identifier: Apache-2.0
"""Gather and scatter bandwidth on the CPU, beside plain copies of the same bytes in the same run.

``memcpy`` is libc's, of the same number of bytes in one run; ``indexed`` is torch's ``index_select`` of the
same scattered blocks into a new packed tensor, without a checksum, for blocks that are one run. One thread,
unless the column's name says more. The methods take turns, round after round; a rate is the median of its
rounds, and a ratio the median of the rounds' own ratios to memcpy: other load on the machine meets both.
With ``--huge-pages`` all memory, memcpy's too, is asked for in huge pages of the operating system.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import tutti_kv_kernels as tk

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Shape:
    """Blocks of ``runs`` runs of ``run_bytes``; runs of one block are two runs apart unless there is one."""

    run_bytes: int
    runs: int

    @property
    def block_bytes(self) -> int:
        return self.run_bytes * self.runs


@dataclass(frozen=True)
class Row:
    """Median bandwidth in GB/s (1e9 bytes copied a second) and ratio to memcpy of each method."""

    run_bytes: int
    runs: int
    segment_bytes: int
    total_bytes: int
    rates: dict[str, float]
    ratios: dict[str, float]


def random_bytes(size: int, huge_pages: bool) -> torch.Tensor:
    """Random bytes, in memory that is asked for in huge pages or as torch does."""
    if not huge_pages:
        return torch.randint(0, 256, (size,), dtype=torch.uint8)
    # Private: shared anonymous memory is in huge pages only where the administrator says so.
    mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8).random_(0, 256)


def make_cache(shape: Shape, blocks: int, huge_pages: bool) -> tk.PagedCache:
    """A cache of one layer. Strided runs interleave with those of the other half, as K with V or heads do."""
    pitch = shape.run_bytes if shape.runs == 1 else 2 * shape.run_bytes
    stride = pitch * shape.runs
    pages = random_bytes(blocks * stride, huge_pages)
    inside = ((1, 1, shape.runs), (0, 0, pitch if shape.runs > 1 else 0))
    return tk.PagedCache([pages], [[tk.Plane(0, 0, stride, blocks, shape.run_bytes, *inside)]])


def make_methods(
    cache: tk.PagedCache, segments: int, columns: int, threads: Sequence[int], huge_pages: bool
) -> dict[str, Callable[[], object]]:
    """All methods over all blocks of the cache, in random order, as ``segments`` rows."""
    block_bytes = cache.block_bytes(0)
    block_ids = torch.randperm(segments * columns).view(segments, columns)
    slots = torch.randperm(segments)
    slot_bytes = columns * block_bytes
    window, source = (random_bytes(segments * slot_bytes, huge_pages) for _ in range(2))
    checksums = cache.gather(block_ids, window, slots, slot_bytes)

    def memcpy() -> None:
        ctypes.memmove(window.data_ptr(), source.data_ptr(), window.numel())

    methods: dict[str, Callable[[], object]] = {}
    for count in threads:
        suffix = "" if count == 1 else f" x{count}"

        def gather(count: int = count) -> None:
            cache.gather(block_ids, window, slots, slot_bytes, checksums=checksums, num_threads=count)

        def scatter(count: int = count) -> None:
            status = cache.scatter(window, slots, slot_bytes, block_ids, checksums, num_threads=count)
            if status.any():
                raise RuntimeError("a scatter did not match: it copied nothing, and its time means nothing")

        methods["gather" + suffix] = gather
        # Directly after a gather: the window then holds what the checksums were taken of.
        methods["scatter" + suffix] = scatter
    methods["checksum"] = lambda: tk.checksum(source)
    if cache.layers[0][0].run_bytes == block_bytes:
        pages, flat, packed = (
            cache.storages[0].view(-1, block_bytes),
            block_ids.view(-1),
            window.view(-1, block_bytes),
        )
        methods["indexed"] = lambda: torch.index_select(pages, 0, flat, out=packed)
    methods["memcpy"] = memcpy
    return methods


def measure(
    shape: Shape,
    segment_bytes: int,
    total_bytes: int,
    rounds: int,
    threads: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
    huge_pages: bool = False,
) -> Row:
    """Time all methods over about ``total_bytes`` of scattered blocks, packed into segments."""
    columns = max(1, segment_bytes // shape.block_bytes)
    segments = max(1, total_bytes // (columns * shape.block_bytes))
    cache = make_cache(shape, segments * columns, huge_pages)
    methods = make_methods(cache, segments, columns, threads, huge_pages)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, method in methods.items():
            begin = clock()
            method()
            seconds[name].append(clock() - begin)
    size = segments * columns * shape.block_bytes
    rates = {name: size / statistics.median(times) / 1e9 for name, times in seconds.items()}
    ratios = {
        name: statistics.median(base / mine for base, mine in zip(seconds["memcpy"], times, strict=True))
        for name, times in seconds.items()
    }
    return Row(shape.run_bytes, shape.runs, columns * shape.block_bytes, size, rates, ratios)


def report(rows: Sequence[Row]) -> str:
    """The rows as a text table, each rate with its ratio to memcpy."""
    names = list(max(rows, key=lambda row: len(row.rates)).rates)
    lines = [f"{'run':>8} {'runs':>5} {'segment':>9} {'MiB':>6} " + " ".join(f"{name:>15}" for name in names)]
    for row in rows:
        cells = [
            f"{row.rates[name]:8.2f} ({row.ratios[name]:4.2f})" if name in row.rates else "-"
            for name in names
        ]
        head = f"{row.run_bytes:>8} {row.runs:>5} {row.segment_bytes:>9} {row.total_bytes / 2**20:>6.1f} "
        lines.append(head + " ".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Ratios to memcpy over the length of a run, as a PNG.

    Raises:
        SystemExit: when matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for kind, style in ((True, "-o"), (False, "--s")):
        chosen = sorted((row for row in rows if (row.runs == 1) == kind), key=lambda row: row.run_bytes)
        for name in ("gather", "scatter"):
            label = f"{name}, {'a block is one run' if kind else 'strided runs'}"
            axes.plot(
                [row.run_bytes for row in chosen], [row.ratios[name] for row in chosen], style, label=label
            )
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes of a run")
    axes.set_ylabel("bandwidth / memcpy, one thread")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--total-mib", type=int, default=256, help="MiB moved by each call, default 256")
    parser.add_argument(
        "--segment-kib", type=int, default=512, help="about the size of a segment, default 512"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pages", type=int, nargs="*", default=[4096, 16384, 18432, 65536, 262144, 4100])
    parser.add_argument(
        "--strided", type=int, nargs="*", default=[16, 64, 128, 256, 512, 1024, 4096], help="bytes of a run"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: time on a processor, to be used with --threads 1 on a machine that is busy",
    )
    parser.add_argument("--huge-pages", action="store_true", help="all memory in huge pages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a PNG there (needs matplotlib)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(1)
    shapes = [Shape(page, 1) for page in options.pages]
    shapes += [Shape(run, max(2, 16384 // run)) for run in options.strided]
    rows = []
    for index, shape in enumerate(shapes):
        print(f"{index + 1}/{len(shapes)}: runs of {shape.run_bytes} bytes", file=sys.stderr)
        total, segment = options.total_mib << 20, options.segment_kib << 10
        how = (options.rounds, options.threads, CLOCKS[options.clock], options.huge_pages)
        rows.append(measure(shape, segment, total, *how))
    print(report(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
