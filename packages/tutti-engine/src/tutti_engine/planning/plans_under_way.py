# SPDX-License-Identifier: Apache-2.0
"""What the planner remembers of plans until every rank has reported, and how its calls take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from tutti_engine.plan import ChunkId
from tutti_engine.planning.chunk_index import Entry, Pinned

__all__ = ["Load", "Quarantine", "Store", "serial"]


@dataclass(slots=True)
class Load:
    """A load plan that some rank has not reported yet."""

    pinned: Pinned
    ranks_left: int
    # Those that have reported and said who they are.
    ranks: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    guilty: set[int] = field(default_factory=set)
    corrupt: set[int] = field(default_factory=set)
    errno: int = 0
    # All ranks' bytes, and the time of the slowest.
    bytes_read: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Store:
    """A store plan that some rank has not reported yet."""

    entries: tuple[Entry, ...]
    ranks_left: int
    checksums: dict[int, tuple[bytes | None, ...]] = field(default_factory=dict)
    # (rank, position) pairs whose place a late write may still reach, and those that were, but no longer are.
    unsettled: set[tuple[int, int]] = field(default_factory=set)
    settled: set[tuple[int, int]] = field(default_factory=set)
    errno: int = 0


@dataclass(slots=True)
class Quarantine:
    """A place that late writes of some ranks may still reach."""

    chunk_id: ChunkId
    ranks: set[int]


P = ParamSpec("P")
T = TypeVar("T")


class InTurn(Protocol):
    """Who has a lock of its own."""

    _turn: threading.RLock


S = TypeVar("S", bound=InTurn)


def serial(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Have calls of an object's methods wait for each other, by its lock ``_turn``."""

    @wraps(method)
    def wrapped(owner: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        with owner._turn:
            return method(owner, *arguments, **named)

    return wrapped
