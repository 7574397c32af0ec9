# SPDX-License-Identifier: Apache-2.0
"""Gather and scatter bandwidth on the CPU, beside plain copies of the same bytes in the same run.

``memcpy`` copies the bytes in one run; ``indexed`` is torch's ``index_select`` of the same scattered pages,
without a checksum. All use one thread unless the column's name says more. The methods take turns and the best
round of each counts, so that other load on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import tutti_kv_kernels as tk


@dataclass(frozen=True)
class Row:
    """Best bandwidth in GB/s (1e9 bytes copied a second) of each method, for one page size."""

    page_bytes: int
    segment_bytes: int
    total_bytes: int
    rates: dict[str, float]


def measure(page_bytes: int, segment_bytes: int, total_bytes: int, rounds: int) -> Row:
    """Time all methods over ``total_bytes`` of scattered pages, packed into segments."""
    columns = max(1, segment_bytes // page_bytes)
    segments = max(1, total_bytes // (columns * page_bytes))
    blocks = segments * columns
    pages = torch.randint(0, 256, (blocks * page_bytes,), dtype=torch.uint8)
    window = torch.zeros_like(pages)
    layout = tk.PagedLayout(0, page_bytes, page_bytes, blocks)
    block_ids = torch.randperm(blocks).reshape(segments, columns)
    slots = torch.randperm(segments)
    slot_bytes = columns * page_bytes
    checksums = tk.gather(pages, layout, block_ids, window, slots, slot_bytes)
    methods: dict[str, Callable[[], object]] = {
        "memcpy": lambda: window.copy_(pages),
        "indexed": lambda: torch.index_select(
            pages.view(blocks, -1), 0, block_ids.view(-1), out=window.view(blocks, -1)
        ),
        "checksum": lambda: tk.checksum(pages),
    }
    for threads in (1, 2):
        suffix = "" if threads == 1 else f" x{threads}"
        methods["gather" + suffix] = lambda t=threads: tk.gather(
            pages, layout, block_ids, window, slots, slot_bytes, num_threads=t
        )
        methods["scatter" + suffix] = lambda t=threads: tk.scatter(
            window, slots, slot_bytes, pages, layout, block_ids, checksums, num_threads=t
        )
    best = dict.fromkeys(methods, float("inf"))
    for _ in range(rounds):
        # A scatter that did not match would copy nothing and look fast.
        tk.gather_into(pages, layout, block_ids, window, slots, slot_bytes, checksums)
        for name in ("scatter", "scatter x2", "checksum", "gather", "gather x2", "memcpy", "indexed"):
            begin = time.perf_counter()
            methods[name]()
            best[name] = min(best[name], time.perf_counter() - begin)
    size = blocks * page_bytes
    return Row(page_bytes, slot_bytes, size, {name: size / seconds / 1e9 for name, seconds in best.items()})


def report(rows: Sequence[Row]) -> str:
    """The rows as a text table, each rate with its ratio to memcpy."""
    names = list(rows[0].rates)
    lines = [f"{'page':>8} {'segment':>9} {'MiB':>6} " + " ".join(f"{name:>15}" for name in names)]
    for row in rows:
        base = row.rates["memcpy"]
        cells = (f"{row.rates[name]:8.2f} ({row.rates[name] / base:4.2f})" for name in names)
        head = f"{row.page_bytes:>8} {row.segment_bytes:>9} {row.total_bytes / 2**20:>6.1f} "
        lines.append(head + " ".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="GB/s of gather and scatter; in brackets, the ratio to memcpy"
    )
    parser.add_argument(
        "--total-mib", type=int, default=256, help="bytes moved by each call, default 256 MiB"
    )
    parser.add_argument(
        "--segment-kib", type=int, default=512, help="about the size of a segment, default 512 KiB"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pages", type=int, nargs="+", default=[4096, 16384, 18432, 65536, 262144, 4100])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [
        measure(page, options.segment_kib << 10, options.total_mib << 20, options.rounds)
        for page in options.pages
    ]
    print(report(rows))


if __name__ == "__main__":
    main()
