# SPDX-License-Identifier: Apache-2.0
"""One line of the doctor's answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Finding", "Verdict", "fail", "note", "ok", "warn", "worst"]

Verdict: TypeAlias = Literal["ok", "note", "warn", "fail"]

_ORDER: tuple[Verdict, ...] = ("ok", "note", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        verdict: ``ok``; ``note`` for what is good to know and needs nothing; ``warn`` where the store works,
            but worse or less safely than it could; ``fail`` where it does not work.
        name: what was looked at.
        found: what was found, and what follows from it.
        fix: what to do, in one line; empty where there is nothing.
        root: the root that it is about; empty for the machine.
    """

    verdict: Verdict
    name: str
    found: str
    fix: str = ""
    root: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in _ORDER:
            raise ValueError(f"verdict must be one of {', '.join(_ORDER)}, not {self.verdict!r}")


def ok(name: str, found: str, *, root: str = "") -> Finding:
    return Finding("ok", name, found, "", root)


def note(name: str, found: str, fix: str = "", *, root: str = "") -> Finding:
    return Finding("note", name, found, fix, root)


def warn(name: str, found: str, fix: str, *, root: str = "") -> Finding:
    return Finding("warn", name, found, fix, root)


def fail(name: str, found: str, fix: str, *, root: str = "") -> Finding:
    return Finding("fail", name, found, fix, root)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; ``ok`` of none."""
    return max((each.verdict for each in findings), key=_ORDER.index, default="ok")
