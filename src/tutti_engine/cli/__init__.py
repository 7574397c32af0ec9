# SPDX-License-Identifier: Apache-2.0
"""The command line ``tutti``. It needs the extra ``cli``; importing this does not."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; end with one line where its libraries are missing."""
    try:
        from tutti_engine.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"tutti: {error.name} is not installed: pip install 'tutti-engine[cli]'")
    app()
