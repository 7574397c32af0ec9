# SPDX-License-Identifier: Apache-2.0
"""How many requests one Mooncake master answers: existence, places of objects, puts of small objects.

    python benchmarks/mooncake_master.py --clients 4 --json master.json

Starts a master and a node of its own on loopback and ``--clients`` processes that ask without a pause; each
kind of request has its turn. A load begins with one request for places, a put is two requests and a transfer
between them. What is measured is the master, its clients and the node on one machine together: what the
master answers to clients on other machines is at least as much.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from tutti_engine.backends.mooncake_client import MooncakeOptions, connect
from tutti_engine.testing.mooncake import MooncakeCluster
from tutti_engine.testing.window import HostWindow

KINDS = {"exist": 1, "locate": 1, "put": 2}
"""Requests to the master that one call makes."""

OBJECT_BYTES = 4096


def client(master: str, number: int, batch: int) -> None:
    """Obey lines of standard input, ``KIND SECONDS``, with the number of calls that were made."""
    store = connect(MooncakeOptions(master, timeout=30))
    window = HostWindow(batch, OBJECT_BYTES)
    store.register_buffer(window.address, window.nbytes)
    places = [window.address + at * OBJECT_BYTES for at in range(batch)]
    sizes = [OBJECT_BYTES] * batch
    names = [f"{number}/{at}" for at in range(batch)]
    store.batch_put_from(names, places, sizes)
    print("ready", flush=True)
    fresh = 0
    for line in sys.stdin:
        kind, seconds = line.split()
        calls, end = 0, time.monotonic() + float(seconds)
        while time.monotonic() < end:
            if kind == "exist":
                good = store.batch_is_exist(names) == [1] * batch
            elif kind == "locate":
                good = len(store.batch_get_replica_desc(names)) == batch
            else:
                fresh += 1
                some = [f"{number}/{fresh}/{at}" for at in range(batch)]
                good = set(store.batch_put_from(some, places, sizes)) <= {0, -200}
            if not good:
                raise SystemExit(f"{kind} failed")
            calls += 1
        print(calls, flush=True)
    store.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--clients", type=int, default=4, help="processes that ask")
    parser.add_argument("--batch", type=int, default=32, help="keys of one request")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each kind")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--as-client", nargs=2, metavar=("MASTER", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_client:
        client(options.as_client[0], int(options.as_client[1]), options.batch)
        return
    rates = {}
    with MooncakeCluster() as cluster:
        cluster.start_node(1 << 30)
        command = [sys.executable, __file__, "--batch", str(options.batch), "--as-client", cluster.master]
        asking = [
            subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for n in range(options.clients)
        ]
        try:
            for each in asking:
                assert each.stdout is not None and each.stdout.readline() == "ready\n"
            for kind, requests in KINDS.items():
                print(kind, file=sys.stderr, flush=True)
                for each in asking:
                    assert each.stdin is not None
                    each.stdin.write(f"{kind} {options.seconds}\n")
                    each.stdin.flush()
                calls = sum(int(each.stdout.readline()) for each in asking if each.stdout is not None)
                rates[kind] = calls * requests / options.seconds
        finally:
            for each in asking:
                each.kill()
                each.wait()
    print(f"{options.clients} clients, {options.batch} keys a request")
    for kind, rate in rates.items():
        print(f"{kind:6s} {rate:10,.0f} requests/s to the master {rate * options.batch:12,.0f} keys/s")
    if options.json:
        options.json.write_text(
            json.dumps({"settings": vars(options), "rates": rates}, default=str, indent=1)
        )


if __name__ == "__main__":
    main()
