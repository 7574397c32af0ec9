# SPDX-License-Identifier: Apache-2.0
"""``tutti warm``: sends the prompts of a file through a running server, which then has them in its store."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from tutti_engine.cli.answers import (
    Exit,
    JsonOption,
    console,
    one_line_errors,
    plain,
    print_json,
    progress,
)
from tutti_engine.warming import Ask, Server, WarmingReport, read_prompts
from tutti_engine.warming import warm as send_all

__all__ = ["warm"]

SHOWN = 10
"""Failures that are shown one by one; JSON has all."""


def warm(
    prompts: Annotated[
        Path, typer.Argument(metavar="PROMPTS", help="JSONL, or a prompt a line; - for stdin.")
    ],
    server: Annotated[
        str, typer.Option("--server", "-s", help="The server's address.")
    ] = "http://localhost:8000",
    model: Annotated[
        str | None, typer.Option(help="For prompts that name none; by default the server's first.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=1024)] = 4,
    retries: Annotated[int, typer.Option(min=0, help="How often one is sent again at most.")] = 5,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds without a byte of an answer.")] = 600.0,
    key_variable: Annotated[
        str, typer.Option("--api-key-variable", help="Environment variable with the server's key.")
    ] = "OPENAI_API_KEY",
    as_plain: Annotated[
        bool | None, typer.Option("--plain/--jsonl", help="What the file is; by default as its first line.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only read the file.")] = False,
    json: JsonOption = False,
) -> None:
    """Send prompts through a running server, so that their prefixes are in its store before users come.

    Exit code: 0 when all were answered, 1 when some were not, 2 when none was sent.
    """
    with one_line_errors("warm"):
        asks = read_prompts(read_lines(prompts), plain=as_plain)
        there = Server(server, key=os.environ.get(key_variable, ""), timeout=timeout)
        if dry_run:
            report, name = WarmingReport(), model or ""
        else:
            name = model or there.model()
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            with progress(*columns) as bar:
                task = bar.add_task("prompts", total=len(asks))
                report = send_all(
                    there,
                    asks,
                    model=name,
                    concurrency=concurrency,
                    retries=retries,
                    on_progress=lambda count: bar.advance(task, count),
                )
    if json:
        print_json(as_document(there.url, name, asks, dry_run, report))
    else:
        show(there.url, asks, dry_run, report)
    raise typer.Exit(Exit.FOUND if report.failed else Exit.OK)


def read_lines(path: Path) -> list[str]:
    """Return a file's lines, - for standard input. Raises OSError, ValueError for what is no text."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    # Not splitlines: prompts may have other separators in them.
    return text.split("\n")


def as_document(
    url: str, model: str, asks: list[Ask], dry_run: bool, report: WarmingReport
) -> dict[str, Any]:
    """Return what was sent for JSON."""
    return {
        "server": url,
        "model": model or None,
        "dry_run": dry_run,
        "prompts": len(asks),
        "sent": report.sent,
        "retried": report.retried,
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "seconds": round(report.seconds, 3),
        "server_moved": None
        if report.moved is None
        else {name: round(value) for name, value in report.moved.items()},
        "failed": [{"line": line, "reason": reason} for line, reason in report.failed],
    }


def show(url: str, asks: list[Ask], dry_run: bool, report: WarmingReport) -> None:
    """Print what was sent and what the server says of it."""
    out = console()
    if dry_run:
        out.print(plain(f"{len(asks):,} prompts would be sent to {url}"), soft_wrap=True)
        return
    text = f"{report.sent:,} of {len(asks):,} prompts in {report.seconds:.1f} s"
    if report.prompt_tokens is not None:
        text += f", {report.prompt_tokens:,} tokens"
    if report.retried:
        text += f"; {report.retried:,} sent again"
    out.print(text, soft_wrap=True)
    if report.moved is None:
        out.print("the server shows no metrics of Tutti's: what it stored is not known")
    else:
        moved = ", ".join(
            f"{round(value):,} {name.replace('_', ' ')}" for name, value in report.moved.items()
        )
        out.print(f"the server says: {moved}", soft_wrap=True)
    for line, reason in report.failed[:SHOWN]:
        out.print(plain(f"  line {line}: {reason}"), soft_wrap=True)
    if len(report.failed) > SHOWN:
        out.print(f"  and {len(report.failed) - SHOWN:,} more (--json has all)")
