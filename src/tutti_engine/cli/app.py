# SPDX-License-Identifier: Apache-2.0
"""Commands of ``tutti``."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

from tutti_engine.cli.archives import export_store, import_file
from tutti_engine.cli.bench import bench
from tutti_engine.cli.doctor import doctor
from tutti_engine.cli.gc import gc
from tutti_engine.cli.plan import plan
from tutti_engine.cli.simulate import simulate
from tutti_engine.cli.stores import list_stores, stat
from tutti_engine.cli.verify import verify
from tutti_engine.cli.warm import warm

__all__ = ["ENTRY_POINT_GROUP", "add_commands", "app"]

ENTRY_POINT_GROUP = "tutti_engine.commands"
"""Other distributions offer commands by it: the entry point has the command's name and its function."""

app = typer.Typer(
    name="tutti",
    help="Tools around Tutti's store of KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command("ls")(list_stores)
app.command()(stat)
app.command()(verify)
app.command()(gc)
app.command("export")(export_store)
app.command("import")(import_file)
app.command()(warm)
app.command()(bench)
app.command()(simulate)
app.command()(plan)


def add_commands(to: typer.Typer) -> None:
    """Add the commands of other distributions; one that cannot be imported costs a line, not the others."""
    own = {
        command.name or command.callback.__name__ for command in to.registered_commands if command.callback
    }
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        if point.name in own:
            print(
                f"tutti: the command {point.name} of {point.value} is left out, there is one", file=sys.stderr
            )
            continue
        try:
            command = point.load()
        except Exception as error:
            print(f"tutti: the command {point.name} of {point.value} is left out: {error}", file=sys.stderr)
        else:
            to.command(point.name)(command)


add_commands(app)


@app.callback()
def tutti() -> None:
    """Tools around Tutti's store of KV cache."""
