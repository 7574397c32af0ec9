# SPDX-License-Identifier: Apache-2.0
"""``tutti bench``: how fast a directory gives and takes KV cache, and from which prefill rate that pays."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tutti_engine.cli.answers import Exit, JsonOption, as_bytes, console, one_line_errors, plain, print_json
from tutti_engine.cli.model_shape import EXAMPLE, ShapeOption, bytes_per_token
from tutti_engine.store.rates import DATA_PATHS, Rates, Shape, measure

__all__ = ["bench"]

MIB = 1 << 20

CHUNKS_AT_A_TIME = 4

SPARE = 2
"""So many times the files' bytes have to be free."""


def bench(
    root: Annotated[
        Path, typer.Argument(help="A directory that is there; files are made below it and removed.")
    ],
    shape: ShapeOption = EXAMPLE,
    layers: Annotated[int, typer.Option(min=1, help="Segments of a chunk.")] = 32,
    segment_kib: Annotated[int, typer.Option(min=4, help="Size of a segment, a multiple of 4.")] = 256,
    mib: Annotated[int, typer.Option(min=1, help="Bytes of all chunks, in MiB.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each; medians are shown.")] = 3,
    path: Annotated[list[str], typer.Option(help="Data paths.")] = list(DATA_PATHS),  # noqa: B006
    json: JsonOption = False,
) -> None:
    """Measure storage to staging and back by data path. Takes the drive's time: best with no server on it.

    Exit code: 0, 1 when a data path cannot be had here, 2 when none can.
    """
    with one_line_errors("bench"):
        size = bytes_per_token(shape)
        what = shape_of(layers, segment_kib, mib)
        free = shutil.disk_usage(root).free
        if free < SPARE * what.total_bytes:
            raise ValueError(
                f"{root} has {free:,} bytes free, {SPARE * what.total_bytes:,} are asked for: lower --mib"
            )
        with tempfile.TemporaryDirectory(prefix="tutti-bench-", dir=root.absolute()) as folder:
            rates = run(Path(folder), what, rounds, list(dict.fromkeys(path)))
    if json:
        print_json(as_document(root, what, rounds, size, rates))
    else:
        show(what, rounds, size, rates)
    problems = sum(bool(each.problem) for each in rates)
    raise typer.Exit(Exit.OK if not problems else Exit.FAILED if problems == len(rates) else Exit.FOUND)


def shape_of(layers: int, segment_kib: int, mib: int) -> Shape:
    """Return what is moved. Raises ValueError for sizes that do not fit."""
    if segment_kib % 4:
        raise ValueError(f"--segment-kib must be a multiple of 4, not {segment_kib}")
    chunks = mib * MIB // (layers * segment_kib * 1024)
    if chunks < 1:
        raise ValueError(f"a chunk of {layers} x {segment_kib} KiB does not fit {mib} MiB")
    return Shape(chunks, layers, segment_kib * 1024, min(chunks, CHUNKS_AT_A_TIME))


def run(folder: Path, what: Shape, rounds: int, paths: list[str]) -> list[Rates]:
    """Measure behind a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounds", total=(rounds + 1) * len(paths))
        return measure(folder, what, rounds, paths, lambda count: bar.advance(task, count))


def tokens_a_second(rate: float | None, size: int) -> float | None:
    """Return how many tokens' KV cache a rate is."""
    return None if rate is None else rate / size


def as_document(root: Path, what: Shape, rounds: int, size: int, rates: list[Rates]) -> dict[str, Any]:
    """Return the figures for JSON."""
    return {
        "root": str(root),
        "rounds": rounds,
        "shape": asdict(what),
        "bytes_per_token": size,
        "paths": [
            {
                "data_path": each.data_path,
                "load_bytes_a_second": each.load,
                "store_bytes_a_second": each.store,
                "break_even_tokens_a_second": tokens_a_second(each.load, size),
                "problem": each.problem or None,
            }
            for each in rates
        ],
    }


def show(what: Shape, rounds: int, size: int, rates: list[Rates]) -> None:
    """Print the figures as a table, and what they mean."""
    size_of_one = f"{what.num_layers} x {what.segment_bytes // 1024} KiB"
    title = f"{what.num_chunks} chunks of {size_of_one}, medians of {rounds}"
    table = Table(title=title, title_justify="left")
    table.add_column("data path")
    for name in ("load", "store, durable", "loads pay below"):
        table.add_column(name, justify="right")
    for each in rates:
        if each.load is None or each.store is None:
            table.add_row(plain(each.data_path), "?", "?", "?")
            continue
        pays = f"{each.load / size:,.0f} tokens/s"
        table.add_row(
            plain(each.data_path), f"{as_bytes(int(each.load))}/s", f"{as_bytes(int(each.store))}/s", pays
        )
    out = console()
    out.print(table)
    out.print(
        f"A token's KV cache is {size:,} bytes. Where the model computes fewer prompt tokens a second than"
        " the last column, loading them is faster."
    )
    for each in rates:
        if each.problem:
            out.print(plain(f"{each.data_path}: {each.problem}"), soft_wrap=True)
