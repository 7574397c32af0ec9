# SPDX-License-Identifier: Apache-2.0
"""``tutti simulate``: what a trace of requests would hit, by capacity and policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tutti_engine.policies.settings import ADMISSIONS, DEFAULT_EVICTION, EVICTIONS, PolicySettings
from tutti_engine.simulator.plot import PlotError, write_plot
from tutti_engine.simulator.replay import BYTES_PER_TOKEN
from tutti_engine.simulator.report import COLUMNS, cells, write_csv, write_json
from tutti_engine.simulator.sweep import Row, Sweep, parse_capacity, sweep
from tutti_engine.simulator.synthetic import KINDS, make_trace
from tutti_engine.simulator.trace import BLOCK_TOKENS, Request, TraceError, read_trace

__all__ = ["simulate"]

SYNTHETIC = "synthetic:"

TABLE_WIDTH = 132
"""Columns of text that the table needs; a narrower terminal breaks its lines rather than losing figures."""

TraceArgument = Annotated[
    str,
    typer.Argument(
        help="JSON lines with timestamp, input_length, output_length, hash_ids; or "
        f"synthetic:KIND[:REQUESTS], KIND one of {', '.join(KINDS)}."
    ),
]
CapacityOption = Annotated[
    list[str],
    typer.Option(
        "--capacity", "-c", help="Share of the trace's different blocks (5%), blocks (9000) or bytes (200GB)."
    ),
]
PolicyOption = Annotated[
    list[str], typer.Option("--policy", "-p", help=f"Eviction: {', '.join(EVICTIONS)}, or all.")
]


def simulate(
    trace: TraceArgument,
    capacity: CapacityOption = ["1%", "5%", "10%", "20%"],  # noqa: B006
    policy: PolicyOption = [DEFAULT_EVICTION, "lru"],  # noqa: B006
    admission: Annotated[str, typer.Option(help=f"Admission: {', '.join(ADMISSIONS)}.")] = ADMISSIONS[0],
    sights: Annotated[int, typer.Option(help="For second_sight: prompts that must have had a chunk.")] = 2,
    ttl_seconds: Annotated[int | None, typer.Option(help="Age from which a chunk goes.")] = None,
    daily_write_bytes: Annotated[int | None, typer.Option(help="Most bytes written in 24 hours.")] = None,
    tenant_quota: Annotated[float | None, typer.Option(help="Largest share of one tenant.")] = None,
    block_tokens: Annotated[int, typer.Option(help="Tokens of one hash id.", min=1)] = BLOCK_TOKENS,
    bytes_per_token: Annotated[int, typer.Option(help="KV cache of a token.", min=1)] = BYTES_PER_TOKEN,
    partial_blocks: Annotated[bool, typer.Option(help="Store blocks that are not full as well.")] = False,
    clairvoyant: Annotated[bool, typer.Option(help="Add the bound of knowing the future.")] = True,
    memory: Annotated[bool, typer.Option(help="Measure the planner's memory too (slower).")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the table as CSV.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write hit rate over capacity as PNG.")] = None,
) -> None:
    """Replay a trace of requests through the real planner, index and policies."""
    try:
        requests = load(trace, block_tokens)
        names = [*EVICTIONS] if "all" in policy else list(dict.fromkeys(policy))
        plan = Sweep(
            capacities=tuple(
                parse_capacity(text, requests, block_tokens * bytes_per_token) for text in capacity
            ),
            policies=tuple(
                PolicySettings(name, admission, sights, ttl_seconds, daily_write_bytes, tenant_quota)
                for name in names
            ),
            block_tokens=block_tokens,
            bytes_per_token=bytes_per_token,
            partial_blocks=partial_blocks,
            clairvoyant=clairvoyant,
            trace_memory=memory,
        )
        rows = run(requests, plan)
        console = Console()
        console.width = max(console.width, TABLE_WIDTH)
        console.print(as_table(trace, rows))
        if csv is not None:
            write_csv(csv, rows)
        if json is not None:
            write_json(json, trace, rows)
        if plot is not None:
            write_plot(plot, rows, title=Path(trace).name)
    except (TraceError, PlotError, ValueError, OSError) as error:
        Console(stderr=True).print(f"tutti simulate: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None


def load(trace: str, block_tokens: int) -> list[Request]:
    """Return the requests of a file, or of ``synthetic:KIND[:REQUESTS]``."""
    if not trace.startswith(SYNTHETIC):
        return read_trace(trace, block_tokens=block_tokens)
    kind, _, count = trace.removeprefix(SYNTHETIC).partition(":")
    if count and not count.isdecimal():
        raise ValueError(f"the number of requests must be a whole number, not {count!r}")
    return make_trace(kind, int(count or 5000))


def run(requests: list[Request], plan: Sweep) -> list[Row]:
    """Run a sweep behind a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=plan.steps(len(requests)))
        return sweep(requests, plan, lambda done: bar.advance(task, done))


def as_table(title: str, rows: list[Row]) -> Table:
    """Return the rows as a table for a terminal."""
    table = Table(title=title)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        table.add_row(*cells(row))
    return table
