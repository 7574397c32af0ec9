# SPDX-License-Identifier: Apache-2.0
"""``tutti doctor``: whether this machine and these directories serve a store, and what to do where not."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tutti_engine.cli.answers import Exit, JsonOption, console, one_line_errors, plain, print_json
from tutti_engine.doctor import Finding, examine, worst

__all__ = ["doctor"]

STYLES = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "bold red"}

CODES = {"ok": Exit.OK, "note": Exit.OK, "warn": Exit.FOUND, "fail": Exit.FAILED}


def doctor(
    roots: Annotated[
        list[Path] | None, typer.Argument(metavar="ROOT", help="Directories for 'root'.")
    ] = None,
    mooncake: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask this Mooncake master too.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Look at this machine and some roots. Changes nothing.

    Exit code: 0 when all is well, 1 with warnings, 2 when something does not work.
    """
    # What is imported for it may write on standard output, which is for the answer.
    with one_line_errors("doctor"), contextlib.redirect_stdout(sys.stderr):
        findings = examine(roots or [], mooncake)
    verdict = worst(findings)
    if json:
        print_json({"verdict": verdict, "findings": [asdict(each) for each in findings]})
    else:
        show(findings)
    raise typer.Exit(CODES[verdict])


def show(findings: list[Finding]) -> None:
    """Print a line a finding and one for what to do, under a heading for each root."""
    out, heading = console(), ""
    for each in findings:
        if each.root != heading:
            heading = each.root
            out.print(Text.assemble("\n", plain(heading)))
        line = Text.assemble(
            (f"{each.verdict:>4}", STYLES[each.verdict]), f"  {each.name}: ", plain(each.found)
        )
        out.print(line, soft_wrap=True)
        if each.fix:
            out.print(Text.assemble("      fix: ", plain(each.fix)), soft_wrap=True)
