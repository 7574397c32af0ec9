# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: exit codes, errors in one line, JSON, numbers for people."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from tutti_engine.errors import TuttiError

__all__ = [
    "Exit",
    "JsonOption",
    "NamespaceOption",
    "RootsArgument",
    "as_age",
    "as_bytes",
    "console",
    "fail",
    "one_line_errors",
    "plain",
    "print_json",
    "progress",
]

TABLE_WIDTH = 120
"""Columns of text that tables need; a narrower terminal breaks lines rather than losing figures."""


class Exit(IntEnum):
    """What every command ends with."""

    OK = 0
    FOUND = 1
    """It was done and found something to look at: damaged chunks, a warning."""
    FAILED = 2
    """It was not done: wrong arguments, no permission, a store in use; what was asked for does not work."""


RootsArgument = Annotated[list[Path], typer.Argument(metavar="ROOT", help="Directories named as 'root'.")]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Begin of the name of one store, as ls shows it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def console() -> Console:
    """Return a console on standard output that is wide enough for tables."""
    out = Console(highlight=False)
    out.width = max(out.width, TABLE_WIDTH)
    return out


def progress(*columns: ProgressColumn) -> Progress:
    """Return a bar on standard error that leaves nothing behind; none where that is no terminal."""
    out = Console(stderr=True)
    return Progress(*columns, console=out, transient=True, disable=not out.is_terminal)


@contextlib.contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """End the command with one line for an error that its user can do something about."""
    try:
        yield
    except (TuttiError, ValueError, OSError) as error:
        fail(command, str(error))


def fail(command: str, message: str) -> NoReturn:
    """End the command with one line on standard error."""
    print(f"tutti {command}: {plain(' '.join(message.split()))}", file=sys.stderr)
    raise typer.Exit(Exit.FAILED)


def plain(text: str) -> Text:
    """Return a text that a terminal shows as it is, whoever wrote it; a question mark for an empty one."""
    return Text("".join(each if each.isprintable() or each == "\n" else "?" for each in text) or "?")


def print_json(document: Any) -> None:
    """Print a JSON object."""
    print(json.dumps(document, indent=1, default=str))


def as_bytes(number: int | None) -> str:
    """Return a number of bytes with a decimal unit, as drives are sold; a question mark for None."""
    if number is None:
        return "?"
    size = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def as_age(at: float | None, now: float | None = None) -> str:
    """Return how long ago something was, in its largest unit; never before now."""
    if not at:
        return "?"
    seconds = max(0, int((time.time() if now is None else now) - at))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
