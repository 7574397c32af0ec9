# SPDX-License-Identifier: Apache-2.0
"""``tutti plan``: how large a store a trace of requests deserves, and how long its drives last."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tutti_engine.cli.answers import JsonOption, as_bytes, console, one_line_errors, print_json
from tutti_engine.cli.model_shape import EXAMPLE, ShapeOption, bytes_per_token
from tutti_engine.cli.simulate import CapacityOption, TraceArgument, load, run
from tutti_engine.policies.settings import DEFAULT_EVICTION, EVICTIONS, PolicySettings
from tutti_engine.simulator.replay import Outcome
from tutti_engine.simulator.sweep import Sweep, parse_capacity
from tutti_engine.simulator.trace import BLOCK_TOKENS, TraceError

__all__ = ["plan"]

DAY_SECONDS = 86_400
YEAR_DAYS = 365.25


@dataclass(frozen=True, slots=True)
class Line:
    """What one capacity would bring.

    Attributes:
        capacity_chunks: places.
        capacity_bytes: bytes of the chunks in them.
        token_hit_rate: share of the prompts' tokens that would be loaded.
        written_bytes_a_day: bytes written in 24 hours of the trace's time; None for a trace without time.
        read_bytes_a_day: bytes read in them.
        life_years: years until the drives have had what they are made for; None where nobody said, or nothing
            is written.
    """

    capacity_chunks: int
    capacity_bytes: int
    token_hit_rate: float
    written_bytes_a_day: float | None
    read_bytes_a_day: float | None
    life_years: float | None

    @classmethod
    def of(cls, outcome: Outcome, endurance: int | None) -> Line:
        """Return the line of a replay; ``endurance`` is what the drives may have written in all, in bytes."""
        days = outcome.seconds / DAY_SECONDS
        written = outcome.written_bytes / days if days > 0 else None
        return cls(
            outcome.capacity_chunks,
            outcome.capacity_chunks * outcome.chunk_bytes,
            outcome.token_hit_rate,
            written,
            outcome.read_bytes / days if days > 0 else None,
            endurance / written / YEAR_DAYS if endurance and written else None,
        )


def plan(
    trace: TraceArgument,
    capacity: CapacityOption = ["1%", "5%", "10%", "20%", "50%"],  # noqa: B006
    shape: ShapeOption = EXAMPLE,
    endurance: Annotated[
        str | None,
        typer.Option(help="Bytes that the drives are made to have written in all, such as 3500TB."),
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Eviction: {', '.join(EVICTIONS)}.")] = DEFAULT_EVICTION,
    block_tokens: Annotated[int, typer.Option(help="Tokens of one hash id.", min=1)] = BLOCK_TOKENS,
    json: JsonOption = False,
) -> None:
    """Say for several capacities what a trace would hit, read and write a day, and the drives' life."""
    with one_line_errors("plan"):
        try:
            requests = load(trace, block_tokens)
        except TraceError as error:
            raise ValueError(str(error)) from error
        size = bytes_per_token(shape)
        made_for = None if endurance is None else parse_endurance(endurance)
        sizes = [parse_capacity(text, requests, block_tokens * size) for text in capacity]
        rows = run(
            requests,
            Sweep(
                capacities=tuple(dict.fromkeys(sizes)),
                policies=(PolicySettings(policy),),
                block_tokens=block_tokens,
                bytes_per_token=size,
                clairvoyant=False,
            ),
        )
    lines = [Line.of(row.outcome, made_for) for row in rows if row.outcome is not None]
    if json:
        keys = Line.__dataclass_fields__
        document = [{key: getattr(line, key) for key in keys} for line in lines]
        facts = {"trace": trace, "policy": policy, "bytes_per_token": size, "endurance_bytes": made_for}
        print_json(facts | {"rows": document})
        return
    table = Table(title=f"{Path(trace).name}, {size:,} bytes a token, {policy}")
    for name in ("capacity", "places", "hit tokens", "written a day", "read a day", "drive life"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*cells(line))
    console().print(table)


def cells(line: Line) -> tuple[str, ...]:
    """Return one text a column."""

    def daily(number: float | None) -> str:
        return "?" if number is None else as_bytes(int(number))

    life = "?" if line.life_years is None else f"{line.life_years:.1f} years"
    return (
        as_bytes(line.capacity_bytes),
        f"{line.capacity_chunks:,}",
        f"{line.token_hit_rate:.1%}",
        daily(line.written_bytes_a_day),
        daily(line.read_bytes_a_day),
        life,
    )


def parse_endurance(text: str) -> int:
    """Return the bytes of a text such as ``3500TB``. Raises ValueError for any other."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([GTP])B", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError(f"endurance must be like 3500TB or 3.5PB, above 0, not {text!r}")
    return int(float(found[1]) * {"G": 10**9, "T": 10**12, "P": 10**15}[found[2].upper()])
