# SPDX-License-Identifier: Apache-2.0
"""``tutti ls`` and ``tutti stat``: what lies in some roots and how it was used, also beside a server."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from tutti_engine.cli.answers import (
    JsonOption,
    NamespaceOption,
    RootsArgument,
    as_age,
    as_bytes,
    console,
    one_line_errors,
    plain,
    print_json,
)
from tutti_engine.store.facts import AGES, StoreFacts, StoreUse, choose, find_stores, read_use
from tutti_engine.store.owner import Owner

__all__ = ["as_owner", "list_stores", "stat"]


def list_stores(roots: RootsArgument, json: JsonOption = False) -> None:
    """List the stores in some roots: each model and configuration has one. Safe beside a running server."""
    with one_line_errors("ls"):
        stores = find_stores(roots)
    if json:
        print_json({"stores": [as_document(each) for each in stores]})
        return
    if not stores:
        print("no stores in", ", ".join(map(str, roots)))
        return
    table = Table()
    for name in ("store", "model"):
        table.add_column(name, overflow="fold")
    for name in ("chunks", "on disk", "last used"):
        table.add_column(name, justify="right")
    table.add_column("owner", overflow="fold")
    for each in stores:
        chunks = "?" if each.chunks is None else f"{each.chunks:,}"
        row = (each.name, each.model, chunks, as_bytes(each.occupied), as_age(each.used_at))
        table.add_row(*map(plain, row), plain(as_owner(each.owner)))
    out = console()
    out.print(table)
    for each in stores:
        for remark in remarks(each):
            out.print(plain(f"{each.name}: {remark}"), soft_wrap=True)


def stat(roots: RootsArgument, namespace: NamespaceOption = None, json: JsonOption = False) -> None:
    """Show each store's capacity, ages and lifetime counters. Safe beside a running server."""
    with one_line_errors("stat"):
        stores = find_stores(roots)
        if namespace is not None:
            stores = [choose(stores, namespace)]
        uses = [None if each.problem else read_use(each) for each in stores]
    if json:
        print_json({"stores": [as_document(each, use) for each, use in zip(stores, uses)]})
        return
    if not stores:
        print("no stores in", ", ".join(map(str, roots)))
    out = console()
    for each, use in zip(stores, uses):
        table = Table(title=each.name, title_justify="left", show_header=False)
        table.add_column("what")
        table.add_column("value", overflow="fold")
        for what, value in lines(each, use):
            table.add_row(plain(what), plain(value))
        out.print(table)
        for remark in remarks(each):
            out.print(plain(remark), soft_wrap=True)


def as_owner(owner: Owner | None) -> str:
    """Return who has a store open."""
    if owner is None:
        return "none"
    who = "a process" if owner.pid is None else f"pid {owner.pid}"
    return f"{who} on {owner.host}" if owner.host else who


def remarks(store: StoreFacts) -> list[str]:
    """Return what a reader of the figures has to know."""
    found = [store.problem] if store.problem else []
    if store.elsewhere:
        found.append("parts of it lie elsewhere, not counted: " + ", ".join(map(str, store.elsewhere)))
    return found


def as_document(store: StoreFacts, use: StoreUse | None = None) -> dict[str, Any]:
    """Return a store for JSON; docs/cli.md lists the keys."""
    owner = store.owner
    document: dict[str, Any] = {
        "name": store.name,
        "model": store.model or None,
        "directories": [str(each) for each in store.directories],
        "elsewhere": [str(each) for each in store.elsewhere],
        "owner": None if owner is None else {"pid": owner.pid, "since": owner.since, "host": owner.host},
        "chunks": store.chunks,
        "capacity_chunks": store.capacity_chunks,
        "occupied_bytes": store.occupied,
        "used_at": store.used_at,
        "ranks": store.number("ranks"),
        "chunk_bytes": store.number("chunk_bytes"),
        "data_bytes": store.data_bytes,
        "problem": store.problem or None,
    }
    if use is not None:
        document["counters"] = use.counters
        document["retired_places"] = use.retired
        document["oldest_use"], document["newest_use"] = use.oldest, use.newest
        bounds = [seconds for _, seconds in AGES]
        document["ages"] = [
            {"below_seconds": None if math.isinf(bound) else bound, "chunks": count}
            for bound, count in zip([*bounds, math.inf], use.ages)
        ]
    return document


def lines(store: StoreFacts, use: StoreUse | None) -> list[tuple[str, str]]:
    """Return what ``stat`` shows of one store."""
    places = store.capacity_chunks
    found = [
        ("model", store.model),
        ("directories", "\n".join(map(str, store.directories))),
        ("owner", as_owner(store.owner) + (f" since {store.owner.since}" if store.owner else "")),
        ("last used", as_age(store.used_at)),
        ("on disk", as_bytes(store.occupied)),
    ]
    if store.chunks is not None:
        share = f" of {places:,} ({store.chunks / places:.0%})" if places else ""
        found.append(("chunks", f"{store.chunks:,}{share}, {as_bytes(store.data_bytes)} of data"))
        if places and use is not None:
            free = max(0, places - store.chunks - use.retired)
            found.append(("places", f"{free:,} free, {use.retired:,} retired"))
    tokens = store.facts.get("block_tokens"), store.facts.get("blocks_per_chunk")
    if isinstance(tokens[0], int) and isinstance(tokens[1], int) and store.chunks is not None:
        per_chunk = tokens[0] * tokens[1]
        found.append(("tokens", f"{store.chunks * per_chunk:,} ({per_chunk:,} a chunk)"))
    if use is not None:
        names = [f"used within {name}" for name, _ in AGES] + ["older"]
        found += [(name, f"{count:,}") for name, count in zip(names, use.ages) if count]
        found += [(name, f"{value:,}") for name, value in sorted(use.counters.items())]
    return found
