# SPDX-License-Identifier: Apache-2.0
"""Commands of ``tutti``."""

from __future__ import annotations

import typer

from tutti_engine.cli.doctor import doctor
from tutti_engine.cli.gc import gc
from tutti_engine.cli.simulate import simulate
from tutti_engine.cli.stores import list_stores, stat
from tutti_engine.cli.verify import verify

__all__ = ["app"]

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
app.command()(simulate)


@app.callback()
def tutti() -> None:
    """Tools around Tutti's store of KV cache."""
