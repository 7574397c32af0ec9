# SPDX-License-Identifier: Apache-2.0
"""Transfers on a CUDA device, beside copies and torch's operators in the same run: tables, JSON and a plot.

``python benchmarks/gpu.py --json gpu.json --png gpu.png`` takes about a minute. Ratios are to a copy of the
same bytes in one run; medians of rounds in which the methods take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_cases import MIB, beside_gemm, device_windows, host_costs, pinned_windows
from gpu_layers import all_layers

PARTS = ("device", "layers", "pinned", "gemm", "host")


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "multiprocessors": str(properties.multi_processor_count),
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
        "bf16": "8192 x 8192 x 8192 products",
    }


def device_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        copy = row["us"]["copy"]
        cells = [f"{name} {copy / us:.2f}" for name, us in row["us"].items() if name != "copy"]
        rate = row["bytes"] / copy / 1e3
        lines.append(
            f"{row['bytes'] / MIB:6.1f} MiB  {row['shape']:46} copy {rate:6.0f} GB/s | {', '.join(cells)}"
        )
    return "\n".join(lines)


def layers_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        lines.append(f"{row['layers']} layers of {row['bytes'] / row['layers'] / MIB:.0f} MiB")
        for name, us in row["us"].items():
            lines.append(f"    {name:24} {us:8.1f} us, with the host {row['with host'][name]:8.1f} us")
    return "\n".join(lines)


def pinned_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        rates = {name: row["bytes"] / us / 1e3 for name, us in row["us"].items()}
        lines.append(f"runs of {row['run']} B: copy to host {rates['copy to host']:.1f}, to device ")
        lines[-1] += f"{rates['copy to device']:.1f} GB/s"
        for name, rate in rates.items():
            if not name.startswith("copy"):
                peer = rates["copy to host" if name.startswith("gather") else "copy to device"]
                lines.append(f"    {name:30} {rate:7.1f} GB/s  {rate / peer:5.2f}")
    return "\n".join(lines)


def gemm_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [" SMs |  paced GB/s  GEMM slower |  unpaced GB/s  GEMM slower"]
    for row in rows:
        lines.append(
            f"{row['sms'] or 'all':>4} | {row['paced GB/s']:11.1f} {row['paced slowdown']:12.1%} |"
            f" {row['unpaced GB/s']:13.1f} {row['unpaced slowdown']:12.1%}"
        )
    return "\n".join(lines)


def host_table(rows: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"{row['us']:8.2f} us  {row['call']}" for row in rows)


def plot(results: dict[str, Any], path: Path) -> None:
    """Three panels: ratio to a copy, GB/s from pinned memory by run size, the GEMM's slowdown."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), dpi=80, layout="constrained")
    ratio, pinned, gemm = figure.subplots(1, 3)
    for name in ("gather", "gather, checksum", "scatter", "scatter, fused", "index_select"):
        by_size: dict[int, list[float]] = {}
        for row in results.get("device", []):
            by_size.setdefault(round(row["bytes"] / MIB), []).append(row["us"]["copy"] / row["us"][name])
        sizes = sorted({min(by_size, key=lambda b: abs(b - s)) for s in by_size})
        ratio.plot([str(s) for s in sizes], [min(by_size[s]) for s in sizes], marker="o", label=name)
    ratio.set(title="slowest layout against a copy", xlabel="MiB a launch", ylabel="ratio", ylim=(0, 1.1))
    for name in (
        "gather, kernel",
        "gather, engines",
        "scatter, kernel",
        "scatter, engines",
        "copy to device",
    ):
        rows = results.get("pinned", [])
        rates = [row["bytes"] / row["us"][name] / 1e3 for row in rows]
        pinned.plot([f"{row['run'] >> 10}K" for row in rows], rates, marker="o", label=name)
    pinned.set(title="pinned window", xlabel="bytes of a run", ylabel="GB/s", ylim=(0, None))
    rows = [row for row in results.get("gemm", []) if row["sms"]]
    for name in ("paced", "unpaced"):
        slowdown = [100 * row[f"{name} slowdown"] for row in rows]
        gemm.plot([row["sms"] for row in rows], slowdown, marker="o", label=f"GEMM slower, {name} (%)")
    gemm.plot(
        [row["sms"] for row in rows], [row["unpaced GB/s"] / 10 for row in rows], label="rate (10 GB/s)"
    )
    gemm.set(title="beside a GEMM", xlabel="multiprocessors used")
    for axes in (ratio, pinned, gemm):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--png", type=Path, help="draw them there (needs matplotlib)")
    parser.add_argument("--sizes-mib", type=int, nargs="+", default=[4, 32, 256])
    parser.add_argument("--pool-mib", type=int, default=3072, help="MiB of the pages, and of the window")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu.py: no CUDA device", file=sys.stderr)
        return 1
    torch.manual_seed(1)
    sizes = [size * MIB for size in options.sizes_mib]
    steps = {
        "device": (lambda: device_windows(options.pool_mib * MIB, sizes), device_table),
        "layers": (lambda: all_layers([(32, MIB), (80, MIB), (80, 4 * MIB)]), layers_table),
        "pinned": (lambda: pinned_windows(64 * MIB, [4096, 16384, 65536, 262144]), pinned_table),
        "gemm": (lambda: beside_gemm([1, 2, 3, 4, 6, 8, 16, 0]), gemm_table),
        "host": (host_costs, host_table),
    }
    results: dict[str, Any] = {"machine": machine()}
    print(results["machine"])
    for part in options.parts:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        measure, table = steps[part]
        results[part] = measure()
        print(f"\n{part}\n{table(results[part])}", flush=True)
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.png:
        plot(results, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
