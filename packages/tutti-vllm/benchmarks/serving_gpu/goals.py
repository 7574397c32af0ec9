# SPDX-License-Identifier: Apache-2.0
"""Which goals were reached, from what ``costs.py`` found.

A ratio is the median of those of each turn, in which both were asked one after the other; the range of the
turns stands behind it, so that one sees what a single turn is worth.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

__all__ = ["Goal", "goals", "ratio"]

Goal = tuple[str, float, float, str]
"""What it is about, the ratio, the most that it may be, and how sure it is."""

LONG = 8000
"""Tokens from which on loads have to be near those from host memory."""


def ratio(kind: dict[str, list[float]], one: str, other: str) -> tuple[float, str] | None:
    """Return one in ratio to the other, and how far turns differ; None where either was not measured."""
    turns = [a / b for a, b in zip(kind.get(one, []), kind.get(other, []), strict=False) if b]
    if not turns:
        return None
    return statistics.median(turns), f"{min(turns):.3f} to {max(turns):.3f}, {len(turns)} turns"


def goals(found: dict[str, Any]) -> list[str]:
    """Return a table, one row for each goal that something was measured for."""
    rows = [*_new(found), *_stored(found), *_layers(found)]
    if not rows:
        return []
    text = ["| goal | seen | at most | | turns |", "| --- | ---: | ---: | --- | --- |"]
    for what, seen, most, sure in rows:
        text.append(
            f"| {what} | {seen:.3f} | {most:g} | {'reached' if seen <= most else 'MISSED'} | {sure} |"
        )
    return text


def _rows(
    kinds: dict[str, dict[str, list[float]]], one: str, other: str, most: float, what: str
) -> Iterator[Goal]:
    for key, kind in kinds.items():
        found = ratio(kind, one, other)
        if found is not None:
            yield f"{what}, {key}", found[0], most, found[1]


def _new(found: dict[str, Any]) -> Iterator[Goal]:
    yield from _rows(
        found.get("new", {}), "tutti", "alone", 1.01, "a new prompt's first token, of vLLM alone"
    )
    token, whole = found.get("token", {}), found.get("whole", {})
    for kinds, kind, most, what in (
        (token, "a prompt being stored", 1.03, "ms a token, of vLLM alone"),
        (token, "nothing to store", 1.01, "ms a token, of vLLM alone"),
        (whole, "nothing to store", 1.01, "s in all, of vLLM alone"),
    ):
        if kind in kinds:
            yield from _rows({kind: kinds[kind]}, "tutti", "alone", most, what)


def _stored(found: dict[str, Any]) -> Iterator[Goal]:
    stored: dict[str, dict[str, list[float]]] = found.get("stored", {})
    yield from _rows(stored, "tutti", "computed", 1.02, "stored, of computing it")
    yield from _rows(_from(stored, LONG), "tutti", "host", 1.25, "stored, of vLLM's host memory")
    yield from _rows(_from(stored, 4 * LONG), "tutti", "computed", 0.2, "stored, of computing it, long")
    yield from _rows(_from(stored, LONG), "tutti", "fs", 1 / 8, "stored, of vLLM's file-system tier")


def _from(kinds: dict[str, Any], least: int) -> dict[str, Any]:
    return {key: kind for key, kind in kinds.items() if int(key) >= least}


def _layers(found: dict[str, Any]) -> Iterator[Goal]:
    yield from _rows(found.get("drive", {}), "drive", "alone", 1.02, "stored on a drive, of computing it")
    for share, names in found.get("overlap", {}).items():
        seen: Any = names.get("tutti layer-wise")
        if isinstance(seen, dict):
            yield (
                f"layer-wise, of the longer of load and computation, {share}",
                seen["total / longer"],
                1.1,
                "",
            )
