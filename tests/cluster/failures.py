# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a cluster, done to one: hosts in network namespaces, a real master, real nodes.

    python tests/cluster/failures.py [NAME ...] [--cut-seconds 30] [--json FILE]

Needs root, ``ip`` and Mooncake. In each run host A and host B take prompts without a pause while something
fails and after it has healed. Of every prompt all pages are compared; a wrong one, or a prompt that does not
come back, ends the run with an error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from networks import Network, why_not

from tutti_engine.testing.mooncake import MooncakeCluster, mooncake_master

PATIENCE = 90.0
"""Seconds in which something has to happen."""

CHUNKS = 8

MASTER, NODE_ONE, NODE_TWO, A, B = range(5)

_numbers = itertools.count()


class Wrong(Exception):
    """The cluster did what it must not do."""


class Engine:
    """An engine host's process, and what it has answered."""

    def __init__(self, prefix: list[str], master: str, *options: str) -> None:
        script = str(Path(__file__).with_name("engine_host.py"))
        self.process = subprocess.Popen(
            [*prefix, sys.executable, script, master, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.answers: list[dict[str, Any]] = []
        self._line()

    def prompt(self, name: str, chunks: int = CHUNKS) -> dict[str, Any]:
        """Have a prompt served. Raises Wrong if one of its pages is."""
        answer = self._order({"prompt": name, "chunks": chunks})
        self.answers.append(answer)
        if not answer["right"]:
            raise Wrong(f"prompt {name} has wrong pages: {answer}")
        return answer

    def settle(self) -> dict[str, Any]:
        """Wait until its writes have ended."""
        return self._order({"settle": True})

    def until(self, what: str, reached: Callable[[dict[str, Any]], bool], name: str) -> dict[str, Any]:
        """Send a prompt again and again until an answer is as it should be."""
        end = time.monotonic() + PATIENCE
        while not reached(answer := self.prompt(name)):
            if time.monotonic() > end:
                raise Wrong(f"{what} did not happen in {PATIENCE:.0f} s; the last answer was {answer}")
        return answer

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Wrong(f"an engine host has ended with code {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


class Scene:
    """A network, a master, two nodes and two engine hosts."""

    def __init__(self, network: Network, cluster: MooncakeCluster) -> None:
        self.network, self.cluster = network, cluster
        self.engines: list[Engine] = []
        self.a, self.b = self.engine(A), self.engine(B)
        self.shared_hit()

    def engine(self, host: int, *options: str) -> Engine:
        """Start an engine host."""
        self.engines.append(Engine(self.network.prefix(host), self.cluster.master, *options))
        return self.engines[-1]

    def shared_hit(self, chunks: int = CHUNKS) -> str:
        """Have new prompts computed on A until one is a hit on B, all of it; return its name."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            name = f"prompt {next(_numbers)}"
            self.a.prompt(name, chunks)
            self.a.settle()
            for _ in range(3):
                if self.b.prompt(name, chunks)["hits"] == chunks:
                    return name
                time.sleep(0.1)
        raise Wrong(f"B never hit what A had computed: {self.a.answers[-1]}, {self.b.answers[-1]}")

    def serve(self, seconds: float, name: str) -> None:
        """Let both take old and new prompts for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.b.prompt(name)
            self.a.prompt(f"prompt {next(_numbers)}")


@contextmanager
def scene(segment_bytes: int = 256 << 20, **options: Any) -> Iterator[Scene]:
    """Make a scene, and take it down."""
    with Network(5) as network:
        hosts = [network.address(number) for number in range(3)]
        prefixes = [network.prefix(number) for number in range(3)]
        with MooncakeCluster(prefixes=prefixes, hosts=hosts, **options) as cluster:
            made: list[Scene] = []
            try:
                for _ in range(2):
                    cluster.start_node(segment_bytes)
                made.append(Scene(network, cluster))
                yield made[0]
            finally:
                for engine in made[0].engines if made else []:
                    engine.end()


def master_killed(it: Scene, cut_seconds: float) -> None:
    """The master dies, and with it the directory; a new one starts after a while."""
    name = it.shared_hit()
    it.cluster.kill_master()
    it.b.until("B goes on without the store", lambda answer: answer["hits"] == 0, name)
    it.serve(min(cut_seconds, 3.0), name)
    it.cluster.start_master()
    it.shared_hit()


def node_killed(it: Scene, cut_seconds: float) -> None:
    """A node dies while B loads what it held."""
    names = [it.shared_hit() for _ in range(4)]
    node = it.cluster.nodes[0]
    node.kill()
    node.wait()
    lost = 0
    for name in names * 2:
        answer = it.b.prompt(name)
        lost += CHUNKS - answer["hits"]
    if not lost:
        raise Wrong("nothing was lost with the node: it held nothing")
    it.shared_hit()


def node_stopped(it: Scene, cut_seconds: float) -> None:
    """A node neither answers nor goes away."""
    name = it.shared_hit()
    it.cluster.nodes[0].send_signal(signal.SIGSTOP)
    it.serve(min(cut_seconds, 5.0), name)
    it.cluster.nodes[0].send_signal(signal.SIGCONT)
    it.shared_hit()


def host_cut(it: Scene, cut_seconds: float) -> None:
    """B is off the network for a while: packets vanish."""
    name = it.shared_hit()
    it.network.cut(B)
    it.b.until("B goes on without the store", lambda answer: answer["hits"] == 0, name)
    it.serve(cut_seconds, name)
    it.network.mend(B)
    it.shared_hit()


def node_cut(it: Scene, cut_seconds: float) -> None:
    """A node is off the network for a while; after 10 s the master has forgotten what it held."""
    name = it.shared_hit()
    it.network.cut(NODE_ONE)
    it.serve(cut_seconds, name)
    it.network.mend(NODE_ONE)
    it.shared_hit()


def master_cut(it: Scene, cut_seconds: float) -> None:
    """The master is off the network for a while."""
    name = it.shared_hit()
    it.network.cut(MASTER)
    it.b.until("B goes on without the store", lambda answer: answer["hits"] == 0, name)
    it.serve(cut_seconds, name)
    it.network.mend(MASTER)
    it.shared_hit()


def node_slow(it: Scene, cut_seconds: float) -> None:
    """Both nodes get 2 Mbit/s: a chunk of 256 KiB takes a second."""
    name = it.shared_hit()
    for node in (NODE_ONE, NODE_TWO):
        it.network.slow(node, 2000)
    it.serve(min(cut_seconds, 10.0), name)
    for node in (NODE_ONE, NODE_TWO):
        it.network.fast(node)
    it.shared_hit()


def store_full(it: Scene, cut_seconds: float) -> None:
    """More is written than the nodes hold: some is refused, what is there is read."""
    for number in range(24):
        it.a.prompt(f"much {number}", 32)
    counters = it.a.settle()["counters"]
    refused = ("shared_dropped_chunks", "shared_store_failed_chunks")
    if not sum(counters.get(each, 0) for each in refused):
        raise Wrong(f"nothing was refused, the store was not full: {counters}")
    hits = sum(it.b.prompt(f"much {number}", 32)["hits"] for number in range(24))
    if not hits:
        raise Wrong("nothing of a full store is a hit")
    it.shared_hit()


def two_versions(it: Scene, cut_seconds: float) -> None:
    """A host of another version writes its own headers under the same names: its objects are misses."""
    other = it.engine(A, "--header-version", "9")
    name = f"prompt {next(_numbers)}"
    other.prompt(name)
    counters = other.settle()["counters"]
    if counters.get("shared_store_chunks", 0) != CHUNKS:
        raise Wrong(f"the other version has not written its prompt: {counters}")
    for _ in range(5):
        if it.b.prompt(name)["hits"]:
            raise Wrong("B used an object of another version")
    if not it.b.answers[-1]["counters"].get("shared_lost_chunks"):
        raise Wrong(f"B never met the other version's objects: {it.b.answers[-1]}")
    for _ in range(5):
        if other.prompt(name)["failed"]:
            raise Wrong("the other version cannot read its own")
    it.shared_hit()


FAILURES: dict[str, tuple[Callable[[Scene, float], None], dict[str, Any]]] = {
    each.__name__: (each, {"segment_bytes": 64 << 20} if each is store_full else {})
    for each in (
        master_killed, node_killed, node_stopped, host_cut, node_cut, master_cut, node_slow, store_full,
        two_versions,
    )
}  # fmt: skip


def run(name: str, cut_seconds: float) -> dict[str, Any]:
    """Do one; return what the hosts have seen. Raises Wrong."""
    failure, options = FAILURES[name]
    with scene(**options) as it:
        failure(it, cut_seconds)
        answers = [answer for engine in it.engines for answer in engine.answers]
    return {
        "prompts": len(answers),
        "wrong": sum(not answer["right"] for answer in answers),
        "hit_chunks": sum(answer["hits"] for answer in answers),
        "failed_chunks": sum(answer["failed"] for answer in answers),
        "longest_prompt_seconds": max(answer["seconds"] for answer in answers),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FAILURES)}; none: all")
    parser.add_argument("--cut-seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    reason = why_not() or (None if mooncake_master() else "Mooncake is not installed")
    if reason:
        parser.error(reason)
    found: dict[str, Any] = {}
    for name in options.names or FAILURES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            found[name] = run(name, options.cut_seconds)
        except Wrong as error:
            found[name] = {"error": str(error)}
        print(f"{name:14s} {json.dumps(found[name])}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return any("error" in each for each in found.values())


if __name__ == "__main__":
    sys.exit(main())
