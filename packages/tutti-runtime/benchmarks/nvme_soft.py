# SPDX-License-Identifier: Apache-2.0
"""Commands a second that one CPU core submits to a soft NVMe controller, carries out and completes.

    python benchmarks/nvme_soft.py [--commands N] [--rounds N] [--json FILE]

One thread is both sides: it fills the submission queue, lets the controller work off what the doorbell
announces, and takes the completions. The blocks are in memory, of a size that caches hold, so that the copy
of a command is as cheap as it gets: what is measured is the queues' own cost, with every check of the strict
controller. 512 bytes is the smallest command, 4096 that of a page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from tutti_runtime import _core

DEPTH = 256
BATCHES = (1, 16, 64)
SIZES = (512, 4096)
GOAL = 2e6


def measure(commands: int, rounds: int) -> list[dict[str, float]]:
    """One row a size and batch: the median of ``rounds`` that take turns."""
    cases = [(size, batch) for size in SIZES for batch in BATCHES]
    rates: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    for turn in range(rounds):
        for size, batch in cases:
            print(f"round {turn + 1}/{rounds}: {size} bytes, {batch} at a time", file=sys.stderr)
            rates[size, batch].append(commands / _core.nvme_soft_rate(commands, size, DEPTH, batch))
    return [
        {"bytes": size, "batch": batch, "commands_per_second": statistics.median(rates[size, batch])}
        for size, batch in cases
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options.commands, options.rounds)
    print(f"{'bytes':>6} {'at once':>8} {'M commands/s':>13} {'of 2 M/s':>9}")
    for row in rows:
        rate = row["commands_per_second"]
        print(f"{row['bytes']:6.0f} {row['batch']:8.0f} {rate / 1e6:13.2f} {rate / GOAL:9.2f}")
    if options.json:
        options.json.write_text(json.dumps({"depth": DEPTH, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
