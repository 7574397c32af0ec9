# SPDX-License-Identifier: Apache-2.0
"""What a store that several servers share is worth: a real trace, many times over, on many servers.

    python benchmarks/cluster_study.py trace.jsonl --json study.json --plot study.png

Prints Markdown tables; progress on standard error. Nothing of it is a time of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutti_engine.simulator.cluster import Cluster, ClusterOutcome, replay_cluster
from tutti_engine.simulator.copies import copies_of
from tutti_engine.simulator.trace import Request, read_trace

GB = 10**9

SERVERS = {1: 1, 10: 8, 100: 64}
"""Servers for so many copies of the trace: a little more work for each than one server had before."""

SHARED_GB = (64, 256, 1024)
"""Memory that each server gives to the shared store."""

LOCAL_GB = 2000

COLUMNS = (
    "load", "servers", "routing", "written through", "shared GB a server", "hit share", "of it shared",
    "network GB/s", "drive writes GB/s", "master requests/s", "keys/s", "busiest second, keys",
)  # fmt: skip


def cases(loads: Sequence[int], quick: bool) -> Iterable[tuple[int, Cluster]]:
    """Yield what is replayed: each load without a shared store, and with some."""
    for load in loads:
        servers = SERVERS.get(load, max(1, load * 64 // 100))
        chunk_bytes = Cluster(1, 1, 0).chunk_bytes
        for routing in ("prefix", "random"):
            for shared_gb in (0, *((SHARED_GB[1],) if quick or load > 10 else SHARED_GB)):
                both = shared_gb == SHARED_GB[1] and load <= 10
                writes = ("second_sight", "always") if both else ("second_sight",)
                for write in writes if shared_gb else ("never",):
                    yield (
                        load,
                        Cluster(
                            servers=servers,
                            local_chunks=LOCAL_GB * GB // chunk_bytes,
                            shared_chunks=shared_gb * GB // chunk_bytes * servers,
                            routing=routing,
                            shared_write=write,
                        ),
                    )


def row(load: int, cluster: Cluster, outcome: ClusterOutcome) -> dict[str, Any]:
    """Return the settings and figures of a run, flat."""
    seconds = max(1.0, outcome.seconds)
    return {
        "load": load,
        **{name: getattr(cluster, name) for name in ("servers", "routing", "shared_write", "local_chunks")},
        "shared_gb_a_server": round(cluster.shared_chunks * cluster.chunk_bytes / cluster.servers / GB),
        **asdict(outcome),
        "hit_share": outcome.hit_share,
        "shared_hit_share": outcome.shared_hit_share,
        "network_gb_s": outcome.network_bytes / seconds / GB,
        "drive_gb_s": outcome.drive_bytes / seconds / GB,
        "master_requests_s": outcome.master_requests / seconds,
        "master_keys_s": outcome.master_keys / seconds,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for each in rows:
        lines.append(
            f"| {each['load']}x | {each['servers']} | {each['routing']} | {each['shared_write']} "
            f"| {each['shared_gb_a_server']} | {each['hit_share']:.1%} | {each['shared_hit_share']:.1%} "
            f"| {each['network_gb_s']:.2f} | {each['drive_gb_s']:.1f} | {each['master_requests_s']:.1f} "
            f"| {each['master_keys_s']:,.0f} | {each['busiest_second_keys']:,} |"
        )
    return "\n".join(lines)


def plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw the hit share of the middle memory size, local and shared, by load and routing."""
    from matplotlib.figure import Figure

    chosen = [
        each for each in rows
        if each["shared_gb_a_server"] in (0, round(SHARED_GB[1], -1)) or each["shared_write"] == "always"
        or abs(each["shared_gb_a_server"] - SHARED_GB[1]) < 2
    ]  # fmt: skip
    names = [
        f"{e['load']}x {e['routing']}\n{'alone' if e['shared_write'] == 'never' else e['shared_write']}"
        for e in chosen
    ]
    figure = Figure(figsize=(max(6.0, 0.55 * len(names)), 3.6), layout="constrained")
    axis = figure.subplots()
    local = [100 * (each["hit_share"] - each["shared_hit_share"]) for each in chosen]
    axis.bar(range(len(names)), local, label="own drives")
    shared = [100 * each["shared_hit_share"] for each in chosen]
    axis.bar(range(len(names)), shared, bottom=local, label="shared store")
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="x-small")
    axis.set_ylabel("prompt blocks hit, %")
    axis.grid(alpha=0.3, axis="y")
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=80)


def counter(total: int, what: str) -> Callable[[int], None]:
    """Return a function that is told of requests and says every tenth of them."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before * 10 // total != done * 10 // total:
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr)

    return tell


def main() -> None:
    """Replay, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--load", type=int, action="append", help="copies of the trace (1, 10 and 100)")
    parser.add_argument("--requests", type=int, help="only the first so many of the trace")
    parser.add_argument("--quick", action="store_true", help="one size of the shared store only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from-json", type=Path, help="replay nothing, show what was written before")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.from_json:
        rows = json.loads(options.from_json.read_text())["rows"]
    else:
        requests: list[Request] = read_trace(options.trace)[: options.requests]
        for load, cluster in cases(options.load or [1, 10, 100], options.quick):
            what = f"{load}x, {cluster.routing}, {cluster.shared_write}, {cluster.shared_chunks} chunks"
            tell = counter(load * len(requests), what)
            outcome = replay_cluster(copies_of(requests, load), cluster, tell)
            rows.append(row(load, cluster, outcome))
            if options.json:
                options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    print(table(rows))
    if options.plot:
        plot(options.plot, rows)


if __name__ == "__main__":
    main()
