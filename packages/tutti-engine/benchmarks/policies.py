# SPDX-License-Identifier: Apache-2.0
"""The report of policies: all policies on all kinds of load, as Markdown tables, a plot and JSON.

    python benchmarks/policies.py [TRACE.jsonl] [--docs FILE.md] [--plot FILE.png] [--json FILE]

Without a trace only the made-up ones are replayed. Tables replace what is between the markers in ``--docs``.
Takes some minutes; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tutti_engine.policies.settings import ADMISSIONS, EVICTIONS, PolicySettings
from tutti_engine.simulator.plot import write_plots
from tutti_engine.simulator.replay import Replay, replay
from tutti_engine.simulator.report import figures
from tutti_engine.simulator.sweep import CLAIRVOYANT, Row, Sweep, sweep
from tutti_engine.simulator.synthetic import KINDS, make_trace
from tutti_engine.simulator.trace import BLOCK_TOKENS, Request, read_trace, unique_blocks

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
ADMISSION_SHARES = (0.05, 0.1)
REAL = "trace"
BEGIN, END = "<!-- tables: benchmarks/policies.py -->\n", "<!-- end of tables -->\n"


def load(name: str, path: Path | None, count: int) -> list[Request]:
    """Return the requests of the real trace or of a made-up one."""
    return read_trace(path) if name == REAL and path is not None else make_trace(name, count, seed=2)


def job(name: str, path: Path | None, count: int, share: float, partial: bool) -> tuple[str, bool, list[Row]]:
    """Replay one trace at one capacity under all policies."""
    requests = load(name, path, count)
    capacity = max(1, int(share * unique_blocks(requests)))
    policies = ("lru",) if partial else tuple(EVICTIONS)
    plan = Sweep((capacity,), tuple(map(PolicySettings, policies)), partial_blocks=partial)
    return name, partial, sweep(requests, plan)


def admission_job(path: Path, share: float, eviction: str, admission: str) -> tuple[float, str, str, Row]:
    """Replay the real trace with one admission."""
    requests = read_trace(path)
    capacity = int(share * unique_blocks(requests))
    outcome = replay(requests, Replay(capacity, PolicySettings(eviction, admission)))
    return share, eviction, admission, Row(eviction, capacity, share, outcome.block_hit_rate, outcome)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def hit_table(rows: Sequence[Row]) -> str:
    """Return hit rates and writes, one line a policy, one column a capacity."""
    capacities = sorted({row.capacity_chunks for row in rows})
    shares = {row.capacity_chunks: f"{row.share:.0%}" for row in rows}
    found = {(row.policy, row.capacity_chunks): row for row in rows}
    names = [*EVICTIONS, CLAIRVOYANT]
    lines = []
    for name in (name for name in names if any(key[0] == name for key in found)):
        texts = []
        for capacity in capacities:
            row = found[name, capacity]
            written = "" if row.outcome is None else f" / {row.outcome.write_amplification:.2f}"
            texts.append(f"{row.block_hit_rate:.4f}{written}")
        lines.append([name, *texts])
    return table(["hit / written", *(shares[capacity] for capacity in capacities)], lines)


def markdown(
    results: Mapping[tuple[str, bool], Sequence[Row]], admissions: Sequence[tuple[float, str, str, Row]]
) -> str:
    """Return all tables."""
    parts = []
    for (name, partial), rows in sorted(results.items(), key=lambda item: item[0]):
        title = "Real trace" if name == REAL else f"Made up: {name}"
        if partial:
            title += ", blocks that are not full stored too (as the published bounds count)"
        parts.append(f"### {title}\n\n{hit_table(rows)}")
    if admissions:
        lines = []
        for share, eviction, admission, row in sorted(admissions, key=lambda each: each[:3]):
            assert row.outcome is not None
            written = f"{row.outcome.write_amplification:.2f}"
            day = f"{row.outcome.drive_writes_a_day:,.0f}"
            lines.append(
                [f"{admission}, {eviction}", f"{share:.0%}", f"{row.block_hit_rate:.4f}", written, day]
            )
        head = ["admission, eviction", "capacity", "hit", "written", "drive writes a day"]
        parts.append(f"### Real trace: admission\n\n{table(head, lines)}")
    return "\n".join(parts)


def run(path: Path | None, count: int, workers: int) -> tuple[dict[tuple[str, bool], list[Row]], list]:  # type: ignore[type-arg]
    """Replay everything, some replays side by side."""
    names = [*([REAL] if path else []), *(kind for kind in KINDS if kind != "once")]
    results: dict[tuple[str, bool], list[Row]] = {}
    pending = []
    with ProcessPoolExecutor(workers) as pool:
        jobs = [pool.submit(job, name, path, count, share, False) for name in names for share in SHARES]
        if path is not None:
            jobs += [pool.submit(job, REAL, path, count, share, True) for share in SHARES]
            choices = [(e, a) for e in ("hit_density", "lru") for a in ADMISSIONS]
            pending = [
                pool.submit(admission_job, path, s, e, a) for s in ADMISSION_SHARES for e, a in choices
            ]
            admissions = [each.result() for each in pending]
        for number, done in enumerate(as_completed(jobs), 1):
            name, partial, rows = done.result()
            results.setdefault((name, partial), []).extend(rows)
            print(f"{number}/{len(jobs)} {name}", file=sys.stderr)
        admissions = [each.result() for each in pending]
    return results, admissions


def main() -> None:
    """Replay, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, nargs="?", help="a real trace; none: made-up ones only")
    parser.add_argument("--requests", type=int, default=3000, help="prompts of a made-up trace")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results, admissions = run(options.trace, options.requests, options.workers)
    text = markdown(results, admissions)
    print(text)
    if options.docs:
        before, _, rest = options.docs.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        options.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    if options.plot:
        write_plots(options.plot, {name: rows for (name, partial), rows in results.items() if not partial})
    if options.json:
        found = {
            f"{name}{' partial' * partial}": [*map(figures, rows)]
            for (name, partial), rows in results.items()
        }
        options.json.write_text(json.dumps({"block_tokens": BLOCK_TOKENS, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
