# SPDX-License-Identifier: Apache-2.0
"""``tutti gc``: removes stores of models and configurations that nobody uses any more."""

from __future__ import annotations

import math
import time
from typing import Annotated

import typer

from tutti_engine.cli.answers import (
    Exit,
    JsonOption,
    NamespaceOption,
    RootsArgument,
    as_age,
    as_bytes,
    console,
    fail,
    one_line_errors,
    plain,
    print_json,
)
from tutti_engine.store.collect import remove, why_kept
from tutti_engine.store.facts import StoreFacts, choose, find_stores

__all__ = ["gc"]

DAY_SECONDS = 86400

UnusedOption = Annotated[
    float | None, typer.Option("--unused-days", min=0, help="Remove those that nobody used for so many days.")
]


def gc(
    roots: RootsArgument,
    unused_days: UnusedOption = None,
    namespace: NamespaceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove stores that nobody uses, or the one that --namespace names. Never one that is in use.

    Exit code: 0 when all that was asked for is gone, 1 when some of it could not be removed, 2 when the named
    store must stay.
    """
    if unused_days is None and namespace is None:
        fail("gc", "say which: --unused-days DAYS, --namespace NAME, or both")
    if namespace == "":
        # Every name begins so, and a variable that is not set looks like this.
        fail("gc", "--namespace is empty; give the name of the store to remove, as tutti ls shows it")
    if unused_days is not None and not math.isfinite(unused_days):
        fail("gc", f"--unused-days must be a number of days, not {unused_days}")
    since = None if unused_days is None else time.time() - unused_days * DAY_SECONDS
    with one_line_errors("gc"):
        stores = find_stores(roots)
        if namespace is not None:
            stores = [choose(stores, namespace)]
        reasons = [(each, why_kept(each, since)) for each in stores]
        kept = [(each, reason) for each, reason in reasons if reason]
        if namespace is not None and kept:
            raise ValueError(f"{kept[0][0].name} stays: {kept[0][1]}")
        going = [each for each, reason in reasons if not reason]
        gone, left = (going, []) if dry_run else remove(going, since)
    if json:
        print_json(as_document(gone, kept + left, dry_run))
    else:
        show(gone, kept + left, dry_run)
    raise typer.Exit(Exit.FOUND if left else Exit.OK)


def as_document(
    gone: list[StoreFacts], kept: list[tuple[StoreFacts, str]], dry_run: bool
) -> dict[str, object]:
    """Return what went for JSON."""
    return {
        "dry_run": dry_run,
        "freed_bytes": sum(each.occupied for each in gone),
        "removed": [
            {"name": each.name, "model": each.model or None, "occupied_bytes": each.occupied} for each in gone
        ],
        "kept": [{"name": each.name, "reason": reason} for each, reason in kept],
    }


def show(gone: list[StoreFacts], kept: list[tuple[StoreFacts, str]], dry_run: bool) -> None:
    """Print a line a store, and how much room there is now."""
    out = console()
    verb = "would remove" if dry_run else "removed"
    for each in gone:
        text = f"{verb} {each.name} ({each.model or '?'}), {as_bytes(each.occupied)},"
        out.print(plain(f"{text} last used {as_age(each.used_at)} ago"), soft_wrap=True)
    for each, reason in kept:
        out.print(plain(f"kept {each.name} ({each.model or '?'}): {reason}"), soft_wrap=True)
    freed = as_bytes(sum(each.occupied for each in gone))
    out.print(f"{len(gone):,} stores, {freed}" + (" would be freed" if dry_run else " freed"))
