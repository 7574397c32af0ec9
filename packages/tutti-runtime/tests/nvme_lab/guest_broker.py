# SPDX-License-Identifier: Apache-2.0
"""In the guest: a drive on vfio-pci that a broker owns, clients that are killed, and at last the broker."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import tutti_runtime as tr
from tutti_runtime import nvmed

__all__ = ["Client", "end_broker_at_work", "kill_a_client_at_work", "start_broker"]

SOCKET = "/tmp/tutti/nvmed.sock"
PAGE = 4096


def start_broker(bdf: str) -> subprocess.Popen[str]:
    settings = Path("/tmp/nvmed.json")
    spec = {"transport": "vfio", "bdf": bdf, "name": "drive"}
    settings.write_text(json.dumps({"socket": SOCKET, "controllers": [spec], "max_clients": 2}))
    command = [sys.executable, "-m", "tutti_runtime.nvmed", "--config", str(settings)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "listening on" in said, said
    return process


class Client:
    """A runtime on the broker's drive, with a window of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        uri = f"nvme://drive/1?broker={SOCKET}"
        self.runtime = tr.make_runtime(uri)
        self.target = self.runtime.open(uri)
        self.memory = nvmed.SharedMemory(size)
        self.handle = self.runtime.register_memory(self.memory.address, size)

    def move(self, direction: int, place: int, length: int) -> list[int]:
        """Return the statuses of items of a page each."""
        rows = np.zeros(length // PAGE, dtype=tr.REQUEST_DTYPE)
        rows["direction"], rows["memory"], rows["target"] = direction, self.handle, self.target
        rows["memory_offset"] = np.arange(len(rows)) * PAGE
        rows["target_offset"] = place + rows["memory_offset"]
        rows["length"] = PAGE
        result = self.runtime.submit(rows, timeout=60)
        assert result.handle is not None and result.accepted.all()
        return [int(status) for status in self.runtime.wait(result.handle, 90).status]


def kill_a_client_at_work() -> None:
    """A client that reads without an end is killed; the broker has its place free again."""
    code = (
        "from nvme_lab.guest_broker import Client; import tutti_runtime as tr; client = Client(1 << 18); "
        "print(client.move(tr.READ, 0, 1 << 18)[0], flush=True)\n"
        "while True: client.move(tr.READ, 0, 1 << 18)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "0\n"
    assert nvmed.read_status(SOCKET)["controllers"][0]["clients"] == 2
    child.send_signal(signal.SIGKILL)
    child.wait()
    while nvmed.read_status(SOCKET)["controllers"][0]["clients"] == 2:
        os.sched_yield()


def end_broker_at_work(broker: subprocess.Popen[str], client: Client) -> None:
    """Killed with SIGKILL: the client's items end, and only with ENODEV."""
    broker.send_signal(signal.SIGKILL)
    ended = [status for _ in range(3) for status in client.move(tr.READ, 0, 1 << 18)]
    broker.wait()
    assert ended[-1] == errno.ENODEV and set(ended) <= {0, errno.ENODEV}, ended
