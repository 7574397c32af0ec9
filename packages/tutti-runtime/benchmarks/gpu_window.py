# SPDX-License-Identifier: Apache-2.0
"""Files to device memory and back through a pinned window, beside what each half reaches alone.

    python benchmarks/gpu_window.py                       # /dev/shm, device 0
    python benchmarks/gpu_window.py --sweep --json report.json

Reading: the runtime reads blocks into slots of the window, a stream waits for each slot's gate, copies the
slot to the device and writes the word that says it is empty. Writing: a stream copies into a slot and writes
the word that says it is full, the runtime writes the slot to the files and opens the gate of the empty slot.
The Python thread hands over all batches at once and waits for none of them.

Beside it, in the same rounds: plain `preadv` and `pwritev` by as many threads into the same window ("files"),
the same copies without files ("copies"), and both of these at once with nothing ordered between them ("at
once": what the machine's memory lets through). The ratio is to the lower of files and copies; the target is
0.90 and more. A call counts as "blocked" when it made the Python thread give up its core and took more than
0.2 ms, less than a batch takes; "switches" are all the times that the thread gave up its core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import tutti_runtime as tr
from tutti_runtime import cuda

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gpu_kit import Driver, Gpu

MIB = 1 << 20
LINE = 64  # bytes between words, so that no two share a cache line
SECONDS = 60.0
BLOCKED = 0.0002
UNBOUNDED = tr.WritePolicy(bytes_in_flight=1 << 40, busy_bytes_in_flight=1 << 40, share=1.0)


@dataclass(frozen=True)
class Shape:
    """How the bytes are cut: sizes in bytes."""

    data_path: str
    threads: int
    block: int
    batch: int
    slots: int
    streams: int

    def __str__(self) -> str:
        return (
            f"{self.data_path} x{self.threads}, {self.slots} slots of {self.batch / MIB:g} MiB, "
            f"blocks of {self.block / MIB:g} MiB, {self.streams} streams"
        )


@dataclass
class Calls:
    """What the Python thread's calls cost while a transfer is handed over."""

    count: int = 0
    longest: float = 0.0
    total: float = 0.0
    switches: int = 0
    blocked: int = 0
    slow: dict[str, float] = field(default_factory=dict)

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        before, begin = switches(), time.perf_counter()
        result = function(*arguments, **options)
        took = time.perf_counter() - begin
        gave_up = switches() - before
        self.switches += gave_up
        self.blocked += gave_up > 0 and took > BLOCKED
        self.count += 1
        self.total += took
        self.longest = max(self.longest, took)
        name = function.__name__
        self.slow[name] = max(self.slow.get(name, 0.0), took)
        return result


def switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class Files:
    """`count` files in one folder; block b is in file b mod count, so that no file's lock holds others up."""

    def __init__(self, folder: Path, count: int, total: int) -> None:
        self.count, self.total = count, total
        self.paths = [folder / f"tutti-gpu-window-{i}" for i in range(count)]
        for i, path in enumerate(self.paths):
            random = np.random.Generator(np.random.SFC64(i))
            path.write_bytes(random.integers(0, 1 << 64, total // count // 8, dtype=np.uint64).tobytes())
        self.fds = [os.open(path, os.O_RDWR) for path in self.paths]

    def place(self, block: int, size: int) -> tuple[int, int]:
        """File and offset."""
        return block % self.count, block // self.count * size

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


class Bench:
    """Files, a pinned window with a page of words behind it, streams, device memory and a runtime."""

    def __init__(self, gpu: Gpu, files: Files, device_memory: int, shape: Shape) -> None:
        self.gpu, self.files, self.there, self.shape = gpu, files, device_memory, shape
        self.window = shape.slots * shape.batch
        self.batches = files.total // shape.batch
        self.blocks = files.total // shape.block
        self.buffer = cuda.allocate_pinned(self.window + 64 * 1024, device=gpu.ordinal)
        self.words = self.buffer.bytes[self.window :].view(np.uint64)
        self.words[:] = 0
        self.runtime = tr.make_file_runtime(
            data_path=shape.data_path,
            threads=shape.threads,
            queue_depth=max(64, shape.threads),
            max_in_flight=1 << 18,
            max_open_files=1024,
            write_policy=UNBOUNDED,
        )
        self.memory = self.runtime.register_memory(
            self.buffer.address, self.buffer.nbytes, kind="pinned_host", device=gpu.ordinal
        )
        self.targets = self._open()
        self.streams = [gpu.stream() for _ in range(shape.streams)]
        self.turns = [0, 0]  # of reads and of writes: words only count up
        self.rows = {direction: self._rows(direction) for direction in (tr.READ, tr.WRITE)}

    def _open(self) -> np.ndarray:
        opened = self.runtime.open_batch([path.as_uri() for path in self.files.paths], writable=True)
        for each in opened:
            if each.error is not None:
                raise each.error
        return np.array([each.target for each in opened], dtype=np.uint64)

    def _rows(self, direction: int) -> list[np.ndarray]:
        block, each = self.shape.block, self.shape.batch // self.shape.block
        number = np.arange(self.blocks, dtype=np.uint64)
        rows = np.zeros(self.blocks, dtype=tr.REQUEST_DTYPE)
        rows["direction"], rows["memory"], rows["length"] = direction, self.memory, block
        rows["target"] = self.targets[number % self.files.count]
        rows["target_offset"] = number // self.files.count * block
        rows["memory_offset"] = number * block % self.window
        return [rows[i : i + each] for i in range(0, self.blocks, each)]

    def close(self) -> None:
        if not self.runtime.shutdown(SECONDS):
            raise RuntimeError("I/O is still in flight")
        self.buffer.close()

    # The halves alone

    def _threads(self, move: Callable[[int, int], None]) -> float:
        """Seconds that `threads` threads take for all blocks, which they take in turn."""
        turn = itertools.count()
        gate = threading.Barrier(self.shape.threads + 1)

        def work() -> None:
            gate.wait()
            while (block := next(turn)) < self.blocks:
                move(block, block * self.shape.block % self.window)

        workers = [threading.Thread(target=work) for _ in range(self.shape.threads)]
        for worker in workers:
            worker.start()
        gate.wait()
        begin = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - begin

    def plain(self, call: Callable[..., int]) -> float:
        block, view, files = self.shape.block, memoryview(self.buffer.bytes), self.files

        def move(number: int, at: int) -> None:
            file, offset = files.place(number, block)
            if call(files.fds[file], [view[at : at + block]], offset) != block:
                raise RuntimeError("a plain read or write ended early")

        return self._threads(move)

    def copies(self, call: Callable[..., None], host_first: bool) -> float:
        begin = time.perf_counter()
        self._start_copies(call, host_first)
        self._drain()
        return time.perf_counter() - begin

    def at_once(self, file_call: Callable[..., int], call: Callable[..., None], host_first: bool) -> float:
        """Neither waits for the other: the bytes are of no use."""
        begin = time.perf_counter()
        self._start_copies(call, host_first)
        self.plain(file_call)
        self._drain()
        return time.perf_counter() - begin

    def _start_copies(self, call: Callable[..., None], host_first: bool) -> None:
        for i in range(self.batches):
            host = self.buffer.address + i % self.shape.slots * self.shape.batch
            device = self.there + i * self.shape.batch
            pair = (host, device) if host_first else (device, host)
            call(self.streams[i % len(self.streams)], *pair, self.shape.batch)

    def _drain(self) -> None:
        for stream in self.streams:
            if not self.gpu.idle(stream, SECONDS):
                raise RuntimeError(f"a stream was not idle after {SECONDS} s")

    # Both together, in order

    def _words(self, direction: int, i: int) -> tuple[tr.Gate, tr.WordDependency, int, int]:
        """Gate and word of batch i's slot, its address in the window, its turn."""
        slot = i % self.shape.slots
        turn = self.turns[direction] + i // self.shape.slots + 1
        at = self.window + (2 * (slot + direction * self.shape.slots)) * LINE
        return (
            tr.Gate(self.memory, at, turn),
            tr.WordDependency(self.memory, at + LINE, turn),
            self.buffer.address + slot * self.shape.batch,
            turn,
        )

    def read(self) -> tuple[float, Calls]:
        """Files to device."""
        return self._ordered(tr.READ, self._read_batch)

    def write(self) -> tuple[float, Calls]:
        """Device to files."""
        return self._ordered(tr.WRITE, self._write_batch)

    def _ordered(self, direction: int, one: Callable[[Calls, int], int]) -> tuple[float, Calls]:
        calls, begin = Calls(), time.perf_counter()
        handles = [one(calls, i) for i in range(self.batches)]
        done = [
            self.runtime.wait(handle, SECONDS) for handle in handles
        ]  # all is under way: only to see it end
        self._drain()
        took = time.perf_counter() - begin
        self.turns[direction] += -(-self.batches // self.shape.slots)
        if any(each.status.any() for each in done):
            raise RuntimeError("an item failed")
        return took, calls

    def _submit(self, calls: Calls, rows: np.ndarray, **options: Any) -> int:
        result = calls(self.runtime.submit, rows, **options)
        if result.handle is None or not result.accepted.all():
            raise RuntimeError(f"not accepted: {result.errors}")
        return int(result.handle)

    def _read_batch(self, calls: Calls, i: int) -> int:
        gate, empty, host, turn = self._words(tr.READ, i)
        stream = self.streams[i % len(self.streams)]
        before = replace(empty, value=turn - 1)
        handle = self._submit(calls, self.rows[tr.READ][i], gate=gate, after=before)
        calls(cuda.stream_wait_gate, self.runtime, stream, gate)
        calls(self.gpu.copy_in, stream, self.there + i * self.shape.batch, host, self.shape.batch)
        calls(cuda.stream_write_word, self.runtime, stream, empty)
        return handle

    def _write_batch(self, calls: Calls, i: int) -> int:
        gate, full, host, turn = self._words(tr.WRITE, i)
        stream = self.streams[i % len(self.streams)]
        calls(cuda.stream_wait_gate, self.runtime, stream, replace(gate, value=turn - 1))
        calls(self.gpu.copy_out, stream, host, self.there + i * self.shape.batch, self.shape.batch)
        calls(cuda.stream_write_word, self.runtime, stream, full)
        return self._submit(calls, self.rows[tr.WRITE][i], gate=gate, after=full)

    def verify(self) -> None:
        """Every byte in device memory is that of the files."""
        block = self.shape.block
        for number in range(self.blocks):
            self.gpu.copy_out(self.streams[0], self.buffer.address, self.there + number * block, block)
            if not self.gpu.idle(self.streams[0], SECONDS):
                raise RuntimeError("a copy for the comparison did not end")
            file, offset = self.files.place(number, block)
            if os.pread(self.files.fds[file], block, offset) != self.buffer.bytes[:block].tobytes():
                raise RuntimeError(f"block {number} differs from what is in its file")


def measure(bench: Bench, rounds: int, compare: bool) -> dict[str, Any]:
    """Medians of rates in GB/s (10^9 bytes), ratios and what Python calls cost."""
    gpu, total = bench.gpu, bench.files.total
    rates: dict[str, list[float]] = {}
    calls: dict[str, list[Calls]] = {"read": [], "write": []}
    plan: dict[str, Callable[[], Any]] = {
        "read files": lambda: bench.plain(os.preadv),
        "read": bench.read,
        "read at once": lambda: bench.at_once(os.preadv, gpu.copy_in, False),
        "read copies": lambda: bench.copies(gpu.copy_in, False),  # and other bytes for the device to write
        "write copies": lambda: bench.copies(gpu.copy_out, True),
        "write": bench.write,
        "write files": lambda: bench.plain(os.pwritev),
        "write at once": lambda: bench.at_once(os.pwritev, gpu.copy_out, True),
    }
    for i in range(rounds + 1):  # the first one warms up
        for name, run in plan.items():
            found = run()
            if isinstance(found, tuple):
                calls[name].append(found[1])
                found = found[0]
                if compare and i == 0:
                    bench.verify()
            if i:
                rates.setdefault(name, []).append(total / found / 1e9)
    return report(bench.shape, {name: statistics.median(each) for name, each in rates.items()}, calls, rates)


def report(
    shape: Shape, medians: dict[str, float], calls: dict[str, list[Calls]], rates: dict[str, list[float]]
) -> dict[str, Any]:
    out: dict[str, Any] = {"shape": shape.__dict__, "rates": rates}
    for name in ("read", "write"):
        lower = min(medians[f"{name} files"], medians[f"{name} copies"])
        slow: dict[str, float] = {}
        for each in calls[name][1:]:
            for function, took in each.slow.items():
                slow[function] = max(slow.get(function, 0.0), took * 1e6)
        out[name] = {
            "files_gbs": medians[f"{name} files"],
            "copies_gbs": medians[f"{name} copies"],
            "at_once_gbs": medians[f"{name} at once"],
            "together_gbs": medians[name],
            "ratio": medians[name] / lower,
            "blocked": sum(each.blocked for each in calls[name]),
            "switches": statistics.median(each.switches for each in calls[name][1:]),
            "calls": calls[name][0].count,
            "call_us": statistics.median(each.total / each.count for each in calls[name][1:]) * 1e6,
            "longest_call_us": slow,
        }
    return out


def show(row: dict[str, Any], shape: Shape) -> None:
    print(shape)
    for name in ("read", "write"):
        each = row[name]
        longest = max(each["longest_call_us"].values())
        kinds = ("files", "copies", "at_once", "together")
        rates = "  ".join(f"{kind} {each[f'{kind}_gbs']:6.2f}" for kind in kinds)
        print(f"  {name:5s} GB/s: {rates}  ratio {each['ratio']:.2f}")
        print(
            f"        {each['calls']} calls of {each['call_us']:.1f} us, longest {longest:.0f} us, "
            f"blocked {each['blocked']}, switches {each['switches']:g}",
            flush=True,
        )


def shapes(options: argparse.Namespace) -> list[Shape]:
    chosen = Shape(
        options.data_path,
        options.threads,
        int(options.block_mib * MIB),
        int(options.batch_mib * MIB),
        options.slots,
        options.streams,
    )
    if not options.sweep:
        return [chosen]
    out = [chosen, *(replace(chosen, threads=n) for n in (8, 12, 16))]
    rings = ((16, 16), (16, 8), (8, 8), (32, 4), (16, 4), (16, 2))
    out += [replace(chosen, slots=n, batch=size * MIB) for n, size in rings]
    out += [replace(chosen, block=size) for size in (MIB // 2, 2 * MIB, 4 * MIB)]
    out += [replace(chosen, streams=n) for n in (1, 2, 4)]
    out.append(replace(chosen, data_path="uring"))
    return list(dict.fromkeys(out))


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    gpu, total = Gpu(Driver(), options.device), int(options.gib * 1024) * MIB
    found = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(f"making {options.files} files, {options.gib} GiB in all", file=sys.stderr)
        files = Files(Path(folder), options.files, total)
        there = gpu.malloc(total)
        candidates = shapes(options)
        for i, shape in enumerate(candidates):
            print(f"{i + 1} of {len(candidates)}: {shape}", file=sys.stderr)
            bench = Bench(gpu, files, there, shape)
            found.append(measure(bench, options.rounds, not options.sweep))
            show(found[-1], shape)
            if i == 0:
                print(f"  {bench.buffer!r}, {bench.runtime.caps()['direct']=}", file=sys.stderr)
            bench.close()
        files.close()
    gpu.close()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where the files are made")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--gib", type=float, default=4.0, help="in all files, and of device memory")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--data-path", choices=["posix", "uring"], default="posix")
    parser.add_argument("--threads", type=int, default=max(1, min(16, (os.cpu_count() or 4) - 2)))
    parser.add_argument("--block-mib", type=float, default=1, help="of one read or write")
    parser.add_argument("--batch-mib", type=float, default=8, help="of one slot, gate and copy")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweep", action="store_true", help="also try other threads, blocks, slots, streams")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    reason = cuda.why_unavailable()
    if reason is not None:
        sys.exit(f"no CUDA here: {reason}")
    found = run(options)
    if options.json:
        machine = {"cores": os.cpu_count(), "processor": platform.processor(), "kernel": platform.release()}
        options.json.write_text(json.dumps({"machine": machine, "rows": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
