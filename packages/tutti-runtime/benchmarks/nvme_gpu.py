# SPDX-License-Identifier: Apache-2.0
"""What teams of lanes submit to NVMe controllers, and what that costs, on a GPU or with threads.

    python benchmarks/nvme_gpu.py [--execution cuda] [--rounds N] [--json FILE]

Four questions, each with its goal for a GPU:

- submission: commands a second that teams submit and complete when the drives' part is played by teams that
  move nothing (10 million). Queues are in pinned memory of the host.
- copies: bytes a second of 256 KiB segments into device memory through soft controllers, beside the same
  controllers filled by the CPU (`make_nvme_runtime`), in turns (0.90 and more).
- host: microseconds of one submit(), for layers of 16 to 16384 slices (20 and less, the same for all).
- gemm: how much longer matrix products take on another stream while teams read (3 % and less), by thread
  blocks. With torch only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tutti_runtime as tr

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gpu_kit import Driver, Gpu
from layer_kit import MIB, LayerRig
from runtime_kit import Buffer, batch, request

SEGMENT = 256 * 1024
DRIVES = 4
SECONDS = 120.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Place:
    """Where teams run, and memory for bytes: of the device, or of the host without one."""

    def __init__(self, execution: str) -> None:
        self.execution = execution
        self.gpu = Gpu(Driver(), 0) if execution == "cuda" else None
        self.drive: dict[str, Any] = {} if self.gpu is None else {"device": 0}
        self._kept: list[Buffer] = []

    def memory(self, size: int) -> tuple[int, str, int]:
        """Return address, kind and device."""
        if self.gpu is not None:
            return self.gpu.malloc(size), "device", 0
        self._kept.append(Buffer(size))
        return self._kept[-1].address, "host", -1

    def host(self, size: int) -> int:
        self._kept.append(Buffer(size))
        return self._kept[-1].address

    def rig(self, count: int = DRIVES, **settings: Any) -> LayerRig:
        return LayerRig({"execution": self.execution} | settings, self.drive, count)


def keep_busy(rig: LayerRig, layers: list[int], rounds: int) -> float:
    """Submit all layers ``rounds`` times without a gap between them; return seconds."""
    begin = time.perf_counter()
    tickets: dict[int, int] = {}
    for _ in range(rounds):
        for layer in layers:
            if layer in tickets:
                assert rig.layers.wait(tickets[layer], SECONDS)
            tickets[layer] = rig.layers.submit(layer)
    assert rig.layers.wait(max(tickets.values()), SECONDS)
    return time.perf_counter() - begin


def measure_submission(place: Place, rounds: int, slices: int) -> list[dict[str, float]]:
    rows = []
    for queues in (1, 2, 4):
        rig = place.rig(queues=queues, queue_entries=1024, blocks=4)
        window = rig.layers.add_window(place.host(16 * MIB), 16 * MIB)
        layers = [rig.layers.add_layer("read", rig.slices(window, slices, 512)) for _ in range(2)]
        rig.layers.play_drives()
        keep_busy(rig, layers, 1)
        rates = []
        for turn in range(rounds):
            say(f"submission: {DRIVES} drives, {queues} queue(s), round {turn + 1}/{rounds}")
            rates.append(2 * 4 * slices / keep_busy(rig, layers, 4))
        counters = rig.layers.counters()
        rig.close()
        rows.append(
            {
                "teams": DRIVES * queues,
                "commands_per_second": statistics.median(rates),
                "commands_per_doorbell": counters["commands"] / counters["doorbells"],
            }
        )
    return rows


def measure_copies(place: Place, rounds: int, slices: int) -> dict[str, float]:
    size = slices * SEGMENT
    address, kind, device = place.memory(size)
    rig = place.rig(queues=2)
    window = rig.layers.add_window(address, size, kind, device)
    wrap = 16 * MIB // SEGMENT
    rows = rig.slices(window, slices, SEGMENT, lambda i: i % wrap)
    layers = [rig.layers.add_layer("read", part) for part in np.array_split(rows, 2)]
    specs = [
        {"transport": "soft", "name": f"disk{i}", "memory_bytes": 16 * MIB} | place.drive
        for i in range(DRIVES)
    ]
    runtime = tr.make_nvme_runtime(controllers=specs, queues=2)
    memory = runtime.register_memory(address, size, kind=kind, device=None if device < 0 else device)
    targets = [runtime.open(f"nvme://disk{i}/1") for i in range(DRIVES)]
    requests = batch(
        *(
            request(tr.READ, memory, i * SEGMENT, targets[i % DRIVES], i // DRIVES % wrap * SEGMENT, SEGMENT)
            for i in range(slices)
        )
    )
    by_teams, by_cpu = [], []
    for turn in range(rounds):
        say(f"copies: round {turn + 1}/{rounds}")
        by_teams.append(2 * size / keep_busy(rig, layers, 2))
        begin = time.perf_counter()
        for _ in range(2):
            handle = runtime.submit(requests, timeout=SECONDS).handle
            assert handle is not None and (runtime.wait(handle, SECONDS).status == 0).all()
        by_cpu.append(2 * size / (time.perf_counter() - begin))
    rig.close()
    runtime.shutdown(SECONDS)
    ratios = [mine / other for mine, other in zip(by_teams, by_cpu, strict=True)]
    return {
        "teams_gbs": statistics.median(by_teams) / 1e9,
        "cpu_gbs": statistics.median(by_cpu) / 1e9,
        "ratio": statistics.median(ratios),
    }


def measure_host(place: Place, rounds: int) -> list[dict[str, float]]:
    rows = []
    rig = place.rig(queues=1)
    window = rig.layers.add_window(place.host(16 * MIB), 16 * MIB)
    counts = (16, 256, 4096, 16384)
    layers = {count: rig.layers.add_layer("read", rig.slices(window, count, 512)) for count in counts}
    times: dict[int, list[float]] = {count: [] for count in counts}
    say("host: microseconds of a submit")
    for _ in range(20 * rounds):
        for count, layer in layers.items():
            begin = time.perf_counter()
            ticket = rig.layers.submit(layer)
            times[count].append(time.perf_counter() - begin)
            assert rig.layers.wait(ticket, SECONDS)
    rig.close()
    for count in counts:
        rows.append({"slices": count, "microseconds": statistics.median(times[count]) * 1e6})
    return rows


def run_again(rig: LayerRig, layer: int) -> None:
    assert (rig.run(layer) == 0).all()


def measure_gemm(place: Place, rounds: int) -> list[dict[str, float]]:
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    stream = torch.cuda.Stream()
    size = 64 * SEGMENT
    address, kind, device = place.memory(size)

    def products(while_waiting: Callable[[], None]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(40):
                torch.mm(a, a, out=out)
            end.record()
        while not end.query():
            while_waiting()
        return float(begin.elapsed_time(end))

    products(lambda: None)
    rows = []
    for blocks in (1, 2, 4, 8):
        alone, beside = [], []
        for turn in range(rounds):
            say(f"gemm: {blocks} block(s), round {turn + 1}/{rounds}")
            alone.append(products(lambda: time.sleep(0.0001)))
            rig = place.rig(queues=2, blocks=blocks)
            window = rig.layers.add_window(address, size, kind, device)
            layer = rig.layers.add_layer("read", rig.slices(window, 64, SEGMENT))
            rig.run(layer)
            beside.append(products(partial(run_again, rig, layer)))
            rig.close()
        slower = statistics.median(b / a - 1 for a, b in zip(alone, beside, strict=True))
        rows.append({"blocks": blocks, "alone_ms": statistics.median(alone), "slower": slower})
    return rows


def main() -> None:
    """Print one table a question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--execution", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slices", type=int, default=16384, help="of a layer in `submission`")
    parser.add_argument("--segments", type=int, default=512, help="of 256 KiB in `copies`")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    place = Place(options.execution)
    report: dict[str, Any] = {"execution": options.execution}
    questions: dict[str, Callable[[], Any]] = {
        "submission": lambda: measure_submission(place, options.rounds, options.slices),
        "copies": lambda: measure_copies(place, options.rounds, options.segments),
        "host": lambda: measure_host(place, options.rounds),
    }
    if options.execution == "cuda":
        questions["gemm"] = lambda: measure_gemm(place, options.rounds)
    for name, ask in questions.items():
        report[name] = ask()
        print(name)
        for row in report[name] if isinstance(report[name], list) else [report[name]]:
            print("   ", ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
        if options.json:  # what was measured is kept, whatever comes next
            options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
