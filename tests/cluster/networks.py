# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces on a bridge of their own; nothing else is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

__all__ = ["Network", "why_not"]


def why_not() -> str | None:
    """Return why there can be no such network here, None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip"
    name = f"tutti-{os.getpid()}-try"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"ip netns: {done.stderr.strip()}"
    try:
        bridge = ["ip", "-n", name, "link", "add", "bridge0", "type", "bridge"]
        done = subprocess.run(bridge, capture_output=True, text=True, check=False)
        return f"a bridge: {done.stderr.strip()}" if done.returncode else None
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


class Network:
    """Hosts 0, 1, …, each in its namespace with one address. Raises RuntimeError where it cannot be made."""

    def __init__(self, hosts: int) -> None:
        self.names = [f"tutti-{os.getpid()}-{number}" for number in range(hosts)]
        self._switch = f"tutti-{os.getpid()}-switch"

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"10.213.7.{host + 1}"

    def prefix(self, host: int) -> list[str]:
        """Return the words before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, host: int) -> None:
        """Take a host off the network: packets to and from it are lost without a word."""
        self._ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Undo ``cut``."""
        self._ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def slow(self, host: int, kbit: int) -> None:
        """Let only so much through to and from a host. Raises RuntimeError where the kernel cannot."""
        shape = ["root", "tbf", "rate", f"{kbit}kbit", "burst", "32kb", "latency", "400ms"]
        self._run("tc", "-n", self._switch, "qdisc", "replace", "dev", f"port{host}", *shape)
        self._run("tc", "-n", self.names[host], "qdisc", "replace", "dev", "eth0", *shape)

    def fast(self, host: int) -> None:
        """Undo ``slow``."""
        self._run("tc", "-n", self._switch, "qdisc", "del", "dev", f"port{host}", "root")
        self._run("tc", "-n", self.names[host], "qdisc", "del", "dev", "eth0", "root")

    def _make(self) -> None:
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            port = f"port{number}"
            self._ip("netns", "add", name)
            peer = ["peer", "name", "eth0", "netns", name]
            self._ip("-n", self._switch, "link", "add", port, "type", "veth", *peer)
            self._ip("-n", self._switch, "link", "set", port, "master", "bridge0", "up")
            self._ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            self._ip("-n", name, "link", "set", "eth0", "up")
            self._ip("-n", name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _ip(self, *words: str) -> None:
        self._run("ip", *words)

    def _run(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
