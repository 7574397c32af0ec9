# SPDX-License-Identifier: Apache-2.0
"""What was looked at, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State", "Way", "met", "missing", "unknown"]

State = Literal["met", "missing", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement. ``fix`` says what to do, and is empty where it is met."""

    name: str
    state: State
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """One way and its requirements; ``note`` is what is true of it whatever the machine."""

    name: str
    title: str
    note: str
    findings: tuple[Finding, ...]

    @property
    def possible(self) -> Literal["yes", "no", "unknown"]:
        """``yes`` only where every requirement was seen to be met."""
        states = {finding.state for finding in self.findings}
        if "missing" in states:
            return "no"
        return "unknown" if "unknown" in states else "yes"


def met(name: str, found: str) -> Finding:
    return Finding(name, "met", found)


def missing(name: str, found: str, fix: str) -> Finding:
    return Finding(name, "missing", found, fix)


def unknown(name: str, found: str, fix: str) -> Finding:
    return Finding(name, "unknown", found, fix)
