# SPDX-License-Identifier: Apache-2.0
"""Looks after the stores in some roots: `python -m tutti_engine.store.admin {list,remove,gc} ROOT…`.

Nothing that a running process has open is ever touched.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tutti_engine.errors import StoreBusyError
from tutti_engine.store.share import describe, other_stores, remove_store

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tutti_engine.store.admin", description="Stores of KV caches in some directories"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "show each store, its bytes, when it was last used and its model"),
        ("remove", "remove one store"),
        ("gc", "remove the stores that nobody has used for some days"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("roots", nargs="+", type=Path, metavar="ROOT")
        if name == "remove":
            command.add_argument("--name", required=True, help="the store's directory name, as shown by list")
        if name == "gc":
            command.add_argument("--unused-days", required=True, type=days)
    given = parser.parse_args(arguments)
    stores = other_stores([root.absolute() for root in given.roots])
    if given.command == "list":
        for each in stores:
            print(describe(each))
        return 0
    if given.command == "remove":
        chosen = [each for each in stores if each.name == given.name]
        if not chosen:
            print(f"there is no store named {given.name}", file=sys.stderr)
            return 1
        since = None
    else:
        since = time.time() - given.unused_days * 86400
        chosen = [each for each in stores if not each.owned and each.used_at < since]
    for each in chosen:
        try:
            remove_store(each, unused_since=since)
        except (OSError, StoreBusyError) as error:
            print(f"{each.name}: {error}", file=sys.stderr)
            return 1
        print(f"removed {each.name}, {each.occupied} bytes")
    return 0


def days(text: str) -> float:
    """Return a number of days. Raises ValueError for one that would mean every store, or none."""
    number = float(text)
    if not number >= 0:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
