# SPDX-License-Identifier: Apache-2.0
"""What teams of lanes submit to NVMe controllers, and what that costs, on a GPU or with threads.

    python benchmarks/nvme_gpu.py [--execution cuda] [--only gemm] [--pace 10 30] [--rounds N] [--json FILE]

Four questions, each with its goal for a GPU:

- submission: commands a second that teams submit and complete when the drives' part is played by teams that
  move nothing (10 million). Queues are in pinned memory of the host.
- copies: bytes a second of 256 KiB segments into device memory through soft controllers, beside what their
  copies alone take (`of_own`: 0.90 and more), and beside the same controllers filled by the CPU
  (`make_nvme_runtime`), in turns.
- host: microseconds of one submit(), for layers of 16 to 16384 slices (20 and less, the same for all).
- gemm: how much longer matrix products take on another stream while teams read (3 % and less), by thread
  blocks, at full rate and at those of `--pace`; beside teams that only wait; beside the CPU's reads. With
  torch only.
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


def in_short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


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


def own_rate(before: list[dict[str, float]], after: list[dict[str, float]]) -> float:
    """Bytes a second of all drives, were they to do nothing but copy to the device."""
    return float(
        sum(
            (now["bytes"] - then["bytes"]) / (now["copy_seconds"] - then["copy_seconds"])
            for then, now in zip(before, after, strict=True)
        )
    )


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
    by_teams, by_cpu, own = [], [], []
    for turn in range(rounds):
        say(f"copies: round {turn + 1}/{rounds}")
        before = [control.counters() for control in rig.controls]
        by_teams.append(2 * size / keep_busy(rig, layers, 2))
        if place.gpu is not None:
            own.append(own_rate(before, [control.counters() for control in rig.controls]))
        begin = time.perf_counter()
        for _ in range(2):
            handle = runtime.submit(requests, timeout=SECONDS).handle
            assert handle is not None and (runtime.wait(handle, SECONDS).status == 0).all()
        by_cpu.append(2 * size / (time.perf_counter() - begin))
    rig.close()
    runtime.shutdown(SECONDS)
    ratios = [mine / other for mine, other in zip(by_teams, by_cpu, strict=True)]
    row = {
        "teams_gbs": statistics.median(by_teams) / 1e9,
        "cpu_gbs": statistics.median(by_cpu) / 1e9,
        "ratio": statistics.median(ratios),
    }
    if own:
        of_own = [mine / most for mine, most in zip(by_teams, own, strict=True)]
        row |= {"own_gbs": statistics.median(own) / 1e9, "of_own": statistics.median(of_own)}
    return row


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


def read_again(runtime: tr.Runtime, requests: np.ndarray) -> None:
    handle = runtime.submit(requests, timeout=SECONDS).handle
    assert handle is not None and (runtime.wait(handle, SECONDS).status == 0).all()


class Products:
    """Matrix products on a stream of their own; ``beside`` is called again and again until they are done."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.a)
        self.stream = torch.cuda.Stream()
        self.milliseconds(lambda: None)

    def milliseconds(self, beside: Callable[[], None]) -> float:
        events = self.torch.cuda.Event
        begin, end = events(enable_timing=True), events(enable_timing=True)
        with self.torch.cuda.stream(self.stream):
            begin.record()
            for _ in range(40):
                self.torch.mm(self.a, self.a, out=self.out)
            end.record()
        while not end.query():
            beside()
        return float(begin.elapsed_time(end))


def beside_teams(place: Place, blocks: int, drive: dict[str, Any], bytes_: int) -> tuple[Any, Any]:
    """Teams that read ``bytes_`` a layer; what to call, and what to call at the end."""
    rig = LayerRig(
        {"execution": "cuda", "queues": 2, "blocks": blocks}, place.drive | drive, DRIVES, space=16 * MIB
    )
    address, kind, device = place.memory(bytes_)
    window = rig.layers.add_window(address, bytes_, kind, device)
    count = max(bytes_ // SEGMENT, 1)
    layer = rig.layers.add_layer("read", rig.slices(window, count, bytes_ // count))
    rig.run(layer)
    return partial(run_again, rig, layer), rig.close


def beside_cpu(place: Place, drive: dict[str, Any], bytes_: int) -> tuple[Any, Any]:
    """The same drives, filled by the CPU."""
    specs = [
        {"transport": "soft", "name": f"disk{i}", "memory_bytes": 16 * MIB} | place.drive | drive
        for i in range(DRIVES)
    ]
    runtime = tr.make_nvme_runtime(controllers=specs, queues=2)
    address, kind, device = place.memory(bytes_)
    memory = runtime.register_memory(address, bytes_, kind=kind, device=None if device < 0 else device)
    targets = [runtime.open(f"nvme://disk{i}/1") for i in range(DRIVES)]
    rows = [
        request(tr.READ, memory, i * SEGMENT, targets[i % DRIVES], i // DRIVES * SEGMENT, SEGMENT)
        for i in range(bytes_ // SEGMENT)
    ]
    return partial(read_again, runtime, batch(*rows)), partial(runtime.shutdown, SECONDS)


def measure_gemm(
    place: Place, rounds: int, paces: list[float], most_blocks: list[int]
) -> list[dict[str, Any]]:
    """Each way in turns with nothing beside.

    ``wait``: teams whose drives take 20 ms, so that they look at queues and move next to nothing. ``at N``:
    drives that give N GB/s together. ``full``: as fast as the soft controllers copy.
    """
    products = Products()
    late, size = {"latency": 0.02}, 64 * SEGMENT
    rates: dict[str, dict[str, Any]] = {f"at {pace:g}": {"bandwidth": pace * 1e9 / DRIVES} for pace in paces}
    rates["full"] = {}
    ways: list[tuple[str, int, Callable[[], tuple[Any, Any]]]] = [
        (f"cpu {name}", 0, partial(beside_cpu, place, drive, size)) for name, drive in rates.items()
    ]
    for blocks in most_blocks:
        ways.append(("teams wait", blocks, partial(beside_teams, place, blocks, late, 4096)))
        ways += [
            (f"teams {name}", blocks, partial(beside_teams, place, blocks, drive, size))
            for name, drive in rates.items()
        ]
    times: dict[tuple[str, int], list[tuple[float, float]]] = {way[:2]: [] for way in ways}
    for turn in range(rounds):
        for name, blocks, make in ways:
            say(f"gemm: {name}, {blocks} block(s), round {turn + 1}/{rounds}")
            alone = products.milliseconds(lambda: time.sleep(0.0001))
            beside, end = make()
            times[name, blocks].append((alone, products.milliseconds(beside)))
            end()
    return [
        {
            "way": name,
            "blocks": blocks,
            "alone_ms": statistics.median(alone for alone, _ in pairs),
            "slower": statistics.median(beside / alone - 1 for alone, beside in pairs),
        }
        for (name, blocks), pairs in times.items()
    ]


def main() -> None:
    """Print one table a question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--execution", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slices", type=int, default=16384, help="of a layer in `submission`")
    parser.add_argument("--segments", type=int, default=512, help="of 256 KiB in `copies`")
    parser.add_argument(
        "--pace", type=float, nargs="+", default=[10.0, 30.0], help="GB/s of all drives in `gemm`"
    )
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 4, 8], help="of the kernel in `gemm`")
    parser.add_argument(
        "--only", nargs="+", choices=("submission", "copies", "host", "gemm"), help="questions to ask"
    )
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
        questions["gemm"] = lambda: measure_gemm(place, options.rounds, options.pace, options.blocks)
    wanted = options.only or list(questions)
    for name, ask in ((name, ask) for name, ask in questions.items() if name in wanted):
        report[name] = ask()
        print(name)
        for row in report[name] if isinstance(report[name], list) else [report[name]]:
            said = (f"{key} {in_short(value)}" for key, value in row.items())
            print("   ", ", ".join(said), flush=True)
        if options.json:  # what was measured is kept, whatever comes next
            options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
