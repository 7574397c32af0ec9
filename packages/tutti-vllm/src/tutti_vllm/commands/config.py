# SPDX-License-Identifier: Apache-2.0
"""``tutti config``: the settings that count for a server, and where each came from."""

from __future__ import annotations

import json as json_format
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tutti_engine.cli.answers import JsonOption, console, one_line_errors, plain, print_json
from tutti_vllm.settings.settings import SettingsError
from tutti_vllm.settings.sources import CONFIG_VARIABLE, DEFAULT, EXTRA, effective

__all__ = ["config", "read_extra"]


def config(
    extra: Annotated[
        str | None, typer.Option(help=f"{EXTRA}, or all of kv_transfer_config: JSON, or its file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the settings that count here, and where each came from."""
    with one_line_errors("config"):
        found = effective(read_extra(extra), os.environ)
    if json:
        values = {key: {"value": each.value, "source": each.source} for key, each in found.values.items()}
        print_json({"settings": values, "file": os.environ.get(CONFIG_VARIABLE) or None})
        return
    table = Table()
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for key, each in found.values.items():
        style = "dim" if each.source == DEFAULT else None
        table.add_row(plain(key), plain(json_format.dumps(each.value)), plain(each.source), style=style)
    console().print(table)


def read_extra(text: str | None) -> dict[str, Any]:
    """Return the connector's settings of JSON, or of a file of it. Raises SettingsError."""
    if text is None:
        return {}
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise SettingsError(f"--extra is neither JSON nor a file that can be read: {error}") from None
    try:
        found = json_format.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--extra is no JSON: {error}") from None
    if isinstance(found, dict) and "kv_connector" in found:
        found = found.get(EXTRA, {})
    if not isinstance(found, dict):
        raise SettingsError(f"--extra must be a JSON object, not {type(found).__name__}")
    return found
