# SPDX-License-Identifier: Apache-2.0
"""``tutti monitoring``: puts the dashboard, the alert rules and an example scrape where they are wanted."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from tutti_engine.cli.answers import JsonOption, one_line_errors, print_json

__all__ = ["FILES", "monitoring"]

FILES = ("dashboard.json", "alerts.yml", "prometheus.yml")


def monitoring(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to put the files.")],
    force: Annotated[bool, typer.Option("--force", help="Replace files of these names.")] = False,
    json: JsonOption = False,
) -> None:
    """Write Grafana's dashboard, Prometheus' alert rules and an example of its configuration to a folder.

    Exit code: 0 when they are there, 2 when one of them could not be written, or is there already.
    """
    with one_line_errors("monitoring"):
        folder.mkdir(parents=True, exist_ok=True)
        targets = [folder / name for name in FILES]
        there = [str(each) for each in targets if each.exists()]
        if there and not force:
            raise FileExistsError(f"{', '.join(there)} is there already; --force replaces it")
        for target in targets:
            target.write_text(
                files("tutti_vllm.monitoring").joinpath(target.name).read_text("utf-8"), "utf-8"
            )
    if json:
        print_json({"files": [str(each) for each in targets]})
    else:
        print(*targets, sep="\n")
