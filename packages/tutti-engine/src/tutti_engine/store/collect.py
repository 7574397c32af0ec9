# SPDX-License-Identifier: Apache-2.0
"""Which stores may go: never one that a process has open, never a part of one by its age alone."""

from __future__ import annotations

from collections.abc import Iterable

from tutti_engine.errors import StoreBusyError
from tutti_engine.store.facts import StoreFacts
from tutti_engine.store.readers import reader_of
from tutti_engine.store.share import OtherStore, remove_store

__all__ = ["remove", "why_kept"]


def why_kept(store: StoreFacts, unused_since: float | None) -> str:
    """Return why a store stays; empty when it may go.

    Args:
        store: the store.
        unused_since: it may go when nobody used it since then, seconds since 1970; None for one that its user
            has named: its age does not count then, nor that its catalogue cannot be read.
    """
    if store.owner is not None:
        who = "a process" if store.owner.pid is None else f"process {store.owner.pid}"
        return f"it is in use by {who}"
    for directory in store.directories:
        reader = reader_of(directory)
        if reader is not None:
            return str(reader)
    if store.elsewhere:
        return "parts of it lie elsewhere: name " + ", ".join(str(each.parent) for each in store.elsewhere)
    if len(store.made_as) > len(store.directories):
        return f"it was made in {', '.join(store.made_as)}: name as many roots, as its server has them"
    if unused_since is None:
        return ""
    if store.chunks is None:
        return f"its last use is not known: {store.problem}"
    return "" if store.used_at < unused_since else "it was used since"


def remove(
    stores: Iterable[StoreFacts], unused_since: float | None = None
) -> tuple[list[StoreFacts], list[tuple[StoreFacts, str]]]:
    """Remove stores; return those that are gone, and those that are not and why.

    Each is looked at once more when nobody can open it any more; see ``why_kept`` for ``unused_since``.
    """
    gone: list[StoreFacts] = []
    left: list[tuple[StoreFacts, str]] = []
    for store in stores:
        try:
            remove_store(OtherStore(store.name, list(store.directories)), unused_since=unused_since)
        except (OSError, StoreBusyError) as error:
            left.append((store, str(error)))
        else:
            gone.append(store)
    return gone, left
