# SPDX-License-Identifier: Apache-2.0
"""``tutti verify``: every chunk, or some, against its checksums; damaged ones can be dropped."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from tutti_engine.cli.answers import (
    Exit,
    JsonOption,
    NamespaceOption,
    RootsArgument,
    as_bytes,
    console,
    one_line_errors,
    plain,
    print_json,
    progress,
)
from tutti_engine.errors import CatalogueError
from tutti_engine.movers.formulas import Checksum, find_checksum
from tutti_engine.store.facts import StoreFacts, choose, find_stores
from tutti_engine.store.verify import Damage, Report, chosen_slots, drop, owning
from tutti_engine.store.verify import verify as verify_store

__all__ = ["verify"]

SHOWN = 20
"""Damages that are shown one by one; JSON has all."""


def verify(
    roots: RootsArgument,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Read so many chunks of each store, picked by chance.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop what is damaged; needs that no server runs.")
    ] = False,
    namespace: NamespaceOption = None,
    checksum: Annotated[
        str | None, typer.Option(help="The checksum's name, where the store does not say it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Read chunks and compare them with their checksums. Without --repair safe beside a running server.

    Exit code: 0 when all match, 1 when some do not, repaired or not, 2 when it could not be done.
    """
    results: list[tuple[StoreFacts, Report, int]] = []
    with one_line_errors("verify"):
        stores = find_stores(roots)
        if namespace is not None:
            stores = [choose(stores, namespace)]
        formulas = [formula_of(each, checksum) for each in stores]
        for store, formula in zip(stores, formulas):
            with owning(store) if repair else nullcontext():
                report = run(store, sample, formula)
                results.append((store, report, drop(store, report.damaged_slots) if repair else 0))
    if json:
        print_json({"stores": [as_document(*each) for each in results]})
    else:
        for each in results:
            show(*each)
        if not results:
            print("no stores in", ", ".join(map(str, roots)))
    raise typer.Exit(Exit.FOUND if any(report.damages for _, report, _ in results) else Exit.OK)


def formula_of(store: StoreFacts, wanted: str | None) -> Checksum:
    """Return the formula of a store's checksums. Raises CatalogueError when nobody says which it is."""
    name = wanted or store.facts.get("checksum")
    if not isinstance(name, str):
        raise CatalogueError(f"{store.name} does not say which checksum it has; give --checksum")
    return find_checksum(name)


def run(store: StoreFacts, sample: int | None, formula: Checksum) -> Report:
    """Verify one store behind a progress bar on standard error."""
    if store.problem:
        raise CatalogueError(store.problem)
    slots = chosen_slots(store, sample)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress(*columns) as bar:
        task = bar.add_task(f"{store.name[:8]} chunks", total=len(slots))
        return verify_store(store, slots, formula, lambda count: bar.advance(task, count))


def show(store: StoreFacts, report: Report, dropped: int) -> None:
    """Print what was found in one store."""
    out = console()
    damaged = len(report.damaged_slots)
    text = (
        f"{store.name}: {report.checked:,} of {store.chunks:,} chunks compared,"
        f" {as_bytes(report.read_bytes)}; {damaged:,} damaged"
    )
    if report.changed:
        text += f"; {report.changed:,} changed meanwhile"
    out.print(plain(text), soft_wrap=True)
    for each in report.damages[:SHOWN]:
        out.print(plain(f"  {describe(each)}"), soft_wrap=True)
    if len(report.damages) > SHOWN:
        out.print(f"  and {len(report.damages) - SHOWN:,} more (--json has all)")
    if dropped:
        out.print(f"  {dropped:,} dropped; they will be computed anew")
    elif damaged:
        out.print(
            "  fix: stop the server and run it again with --repair; a running one drops each as it is loaded"
        )


def describe(damage: Damage) -> str:
    """Return one line about a damage."""
    where = f"place {damage.slot}"
    if damage.rank is not None:
        where += f", rank {damage.rank}"
    if damage.layers:
        where += (
            ", layers " + ", ".join(map(str, damage.layers[:8])) + (", …" if len(damage.layers) > 8 else "")
        )
    return f"{where}: {damage.reason} (key {damage.key.hex()})"


def as_document(store: StoreFacts, report: Report, dropped: int) -> dict[str, Any]:
    """Return what was found in one store for JSON."""
    return {
        "name": store.name,
        "chunks": store.chunks,
        "checked": report.checked,
        "read_bytes": report.read_bytes,
        "changed": report.changed,
        "damaged_chunks": len(report.damaged_slots),
        "dropped_chunks": dropped,
        "damages": [
            {
                "place": each.slot,
                "key": each.key.hex(),
                "rank": each.rank,
                "layers": list(each.layers),
                "reason": each.reason,
            }
            for each in report.damages
        ],
    }
