# SPDX-License-Identifier: Apache-2.0
"""A Mooncake cluster of processes on this machine, for tests, benchmarks and demonstrations."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["MooncakeCluster", "mooncake_master"]

PATIENCE = 60.0

_NODE = """
import sys
from tutti_engine.backends.mooncake_client import MooncakeOptions, connect
client = connect(MooncakeOptions(sys.argv[1], sys.argv[2], int(sys.argv[3]), timeout=10))
print("ready", flush=True)
sys.stdin.read()
client.close()
"""


def mooncake_master() -> str | None:
    """Return the path of the installed ``mooncake_master``, None where there is none."""
    with contextlib.suppress(ImportError):
        import mooncake

        path = Path(next(iter(mooncake.__path__))) / "mooncake_master"
        if path.exists():
            return str(path)
    return shutil.which("mooncake_master")


def free_port() -> int:
    """Return a port of the loopback device that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _ends_with_us() -> list[str]:
    """Return words before a command that end it when this process is killed; none without ``setpriv``."""
    found = shutil.which("setpriv")
    return [] if found is None else [found, "--pdeathsig", "KILL"]


class MooncakeCluster:
    """A master and any number of nodes that give their memory; ends them with the block.

    Args:
        prefixes: for the master and for each node, by its number, words before its command, such as
            ``ip netns exec NAME``.
        hosts: the address of the master and of each node; loopback if there are none.
        master_options: further options of ``mooncake_master``.
    """

    def __init__(
        self,
        *,
        prefixes: Sequence[Sequence[str]] = (),
        hosts: Sequence[str] = (),
        master_options: Sequence[str] = (),
    ) -> None:
        found = mooncake_master()
        if found is None:
            raise FileNotFoundError("mooncake_master is not installed")
        self._binary = found
        self._prefixes, self._hosts, self._options = prefixes, hosts, master_options
        self.port, self.metrics_port = free_port(), free_port()
        self.nodes: list[subprocess.Popen[str]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the block

    @property
    def master(self) -> str:
        """The master's address."""
        return f"{self._host(0)}:{self.port}"

    def __enter__(self) -> MooncakeCluster:
        try:
            self.start_master()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start_master(self) -> None:
        """Start the master, also again after ``kill_master``, on the same port."""
        command = [
            *self._prefix(0), *_ends_with_us(), self._binary, f"--rpc_port={self.port}",
            f"--metrics_port={self.metrics_port}", "--logtostderr", *self._options,
        ]  # fmt: skip
        Path(self._binary).chmod(0o755)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        probe = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
        check = [*self._prefix(0), sys.executable, "-c", probe, self._host(0), str(self.port)]
        end = time.monotonic() + PATIENCE
        while subprocess.run(check, capture_output=True, check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the master did not start: {self.read_log()}")
            time.sleep(0.05)

    def start_node(self, segment_bytes: int) -> subprocess.Popen[str]:
        """Start a node with so much memory; return its process once it has joined."""
        number = len(self.nodes) + 1
        command = [
            *self._prefix(number), sys.executable, "-c", _NODE,
            self.master, self._host(number), str(segment_bytes),
        ]  # fmt: skip
        node = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.nodes.append(node)
        assert node.stdout is not None
        if node.stdout.readline() != "ready\n":
            raise RuntimeError(f"a node did not start: {self.read_log()}")
        return node

    def kill_master(self) -> None:
        """Kill the master; what it knew is lost."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def read_log(self) -> str:
        """Return the end of what all processes have said."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-3000:]

    def end(self) -> None:
        """Kill everything."""
        for process in (*self.nodes, self.process):
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                process.wait()
        for node in self.nodes:
            for pipe in (node.stdin, node.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self.log.close()

    def _prefix(self, number: int) -> Sequence[str]:
        return self._prefixes[number] if number < len(self._prefixes) else ()

    def _host(self, number: int) -> str:
        return self._hosts[number] if number < len(self._hosts) else "127.0.0.1"
