# SPDX-License-Identifier: Apache-2.0
"""Which copies end while a kernel of the runtime stays on a GPU? To find out why an answer does not come.

    python benchmarks/nvme_gpu_probe.py [--stay SECONDS]

Teams wait for two soft controllers that each answer one command late, so that their kernel stays. Meanwhile
streams that were made before and after the teams, used once or never, of the priorities of the soft
controllers (-1) and of the kernel (the highest), copy between pinned memory and the device. Each line is one
stream: for each copy "ok", or "STUCK" when it has not ended in 50 ms, after which the stream is left alone.
Then the same with memory that is not pinned, where a call itself may wait. Then what teams and drives say of
the layer. Exit status 1 when a copy of pinned memory was stuck on a stream that soft controllers might have.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tutti_runtime import cuda

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gpu_kit import Driver, Gpu
from layer_kit import MIB, PAGE, LayerRig
from runtime_kit import Buffer

SIZES = (512, 4096, 65536, MIB)
KNOBS = ("CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS")


class Copies:
    """Copies both ways between one place in pinned memory and one on the device."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.host = cuda.allocate_pinned(MIB, device=gpu.ordinal)
        self.device = gpu.malloc(MIB)
        self.stuck: set[int] = set()

    def begin(self, stream: int, to_device: bool, size: int, host: int | None = None) -> None:
        host = self.host.address if host is None else host
        if to_device:
            self.gpu.copy_in(stream, self.device, host, size)
        else:
            self.gpu.copy_out(stream, host, self.device, size)

    def warm(self, stream: int) -> None:
        for to_device in (True, False):
            for size in SIZES:
                self.begin(stream, to_device, size)
        assert self.gpu.idle(stream, 30)

    def try_all(self, stream: int, host: int | None = None) -> str:
        words = []
        for to_device in (True, False):
            for size in SIZES:
                begin = time.perf_counter()
                self.begin(stream, to_device, size, host)
                called = time.perf_counter() - begin
                ended = self.gpu.idle(stream, 0.05)
                slow = f" (the call took {called * 1e3:.0f} ms)" if called > 0.01 else ""
                words.append(f"{'to' if to_device else 'from'} {size}: {'ok' if ended else 'STUCK'}{slow}")
                if not ended:
                    self.stuck.add(stream)
                    return ", ".join(words)
        return ", ".join(words)


def main() -> int:
    """Print one line a stream."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stay", type=float, default=6.0, help="seconds that the drives are late")
    options = parser.parse_args()
    gpu = Gpu(Driver(), 0)
    copies = Copies(gpu)
    streams = [("before the teams, used", gpu.stream(priority)) for priority in (0, 0, 0, 0, -1, -1)]
    settings = {"execution": "cuda", "queues": 2, "queue_entries": 64, "command_timeout": options.stay + 30}
    rig = LayerRig(settings, {"device": gpu.ordinal}, 2)
    buffer = Buffer(MIB)
    layer = rig.layers.add_layer("read", rig.slices(rig.layers.add_window(buffer.address, MIB), 64, PAGE))
    rig.run_well(layer)
    streams += [("after the teams, used", gpu.stream(priority)) for priority in (0, 0, -1)]
    highest = gpu.stream(-100)
    copies.warm(highest)
    for _, stream in streams:
        copies.warm(stream)
    streams.append(("of the kernel's priority", highest))
    streams += [("after the teams, never used", gpu.stream(priority)) for priority in (0, -1)]
    for control in rig.controls:
        control.fail("late_completion", delay=options.stay)
    ticket = rig.layers.submit(layer)
    begin = time.monotonic()
    print(", ".join(f"{knob}={os.environ.get(knob)}" for knob in KNOBS), flush=True)
    for name, stream in streams:
        print(f"{name}: {copies.try_all(stream)}", flush=True)
    stuck = copies.stuck - {highest}
    free = [stream for _, stream in streams if stream not in copies.stuck]
    plain = Buffer(MIB)
    if free:
        print(f"not pinned: {copies.try_all(free[0], plain.address)}", flush=True)
    there = not rig.layers.wait(ticket, 0.0)
    print(f"the kernel was there all the time: {there}, {time.monotonic() - begin:.2f} s", flush=True)
    assert rig.layers.wait(ticket, options.stay + 60)
    for _, stream in streams:
        assert gpu.idle(stream, 60)
    print(rig.report(rig.layers.statuses(layer)))
    rig.close()
    return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main())
