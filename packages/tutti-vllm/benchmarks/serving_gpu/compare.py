# SPDX-License-Identifier: Apache-2.0
"""vLLM alone, with Tutti and with its own tiers on one GPU, at the same time and in turns.

    python packages/tutti-vllm/benchmarks/serving_gpu/compare.py --folder /dev/shm --json result.json
    python packages/tutti-vllm/benchmarks/serving_gpu/report.py result.json

One engine of each system is started; idle engines use no processor time. The same prompts go to all of them
in turns: first tokens of new prompts, inter-token latency while prompts are stored, throughput where there is
nothing to store. Then Tutti's engine and that of vLLM's file-system tier end, new ones start, and the prompts
are asked again. Greedy answers are compared. The result is written after every part.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parts
from fleet import Fleet, say
from report import table
from systems import SYSTEMS, Place


def run(fleet: Fleet, options: argparse.Namespace, save: Callable[[], None], result: dict[str, Any]) -> None:
    """Measure all that was asked for."""
    begin = time.monotonic()

    def step(text: str) -> None:
        save()
        say(f"-- {text} after {time.monotonic() - begin:.0f} s")

    fleet.start(options.systems)
    step("engines run")
    parts.before_restart(fleet, options, result)
    step("new prompts")
    parts.decoding(fleet, options, result)
    step("decoding")
    again = [system for system in ("tutti", "fs") if system in fleet.running]
    fleet.stop(*fleet.running)
    fleet.start(again)
    step("new engines run")
    parts.after_restart(fleet, again, options, result)
    step("prompts after a restart")
    parts.hit_rates(fleet, "tutti", options, result)
    step("hit rates")
    if options.layerwise:
        fleet.stop()
        fleet.start(["tutti layer-wise"])
        step("an engine for layer-wise loads runs")
        parts.after_restart(fleet, ["tutti layer-wise"], options, result)
        parts.hit_rates(fleet, "tutti layer-wise", options, result)
        step("layer-wise loads")
    fleet.stop()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--layerwise", action="store_true", help="layer-wise loads, too, from the same store")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 8000, 32000, 64000])
    parser.add_argument("--warm", type=int, nargs="+", default=[1000, 32000], help="prompts to warm up with")
    parser.add_argument("--rounds", type=int, default=2, help="prompts of each length")
    parser.add_argument("--turns", type=int, default=3, help="of decoding and of hit rates")
    parser.add_argument("--answer", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--hit-length", type=int, default=32000, help="one of the lengths")
    parser.add_argument("--shares", type=int, nargs="+", default=[50, 75, 90, 100], help="percent")
    parser.add_argument("--folder", type=Path, help="where stores are made; default: a temporary directory")
    parser.add_argument("--capacity", type=int, default=60 << 30, help="bytes of Tutti's store")
    parser.add_argument("--host-bytes", type=int, default=32 << 30, help="the peers' host memory")
    parser.add_argument("--memory", type=float, default=0.2, help="vLLM's gpu_memory_utilization, of each")
    parser.add_argument("--kv-bytes", type=int, default=10 << 30, help="HBM of each engine's KV cache")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for an answer or a start")
    parser.add_argument("--fs-rounds", type=int, default=2, help="rounds that vLLM's file-system tier sees")
    parser.add_argument("--settings", default="{}", help="more settings of Tutti, as JSON")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    options = arguments()
    result: dict[str, Any] = {"lengths": options.lengths, "settings": vars(options)}

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(result, default=str, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="tutti-serving-", dir=options.folder) as folder:
        place = Place(Path(folder), options.capacity, options.host_bytes, json.loads(options.settings))
        fleet = Fleet(place, options.lengths, options.memory, options.kv_bytes, options.patience)
        try:
            run(fleet, options, save, result)
        finally:
            fleet.stop()
            result["failed"] = fleet.failed
            save()
    print(table(result))
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
