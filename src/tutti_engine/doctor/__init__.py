# SPDX-License-Identifier: Apache-2.0
"""What of a machine and its directories helps or hinders a store, each with what to do about it.

Nothing is changed: directories are tried with files that have no name and are gone with their descriptor.
Other distributions add findings by an entry point ``tutti_engine.doctor``: a callable without arguments that
returns mappings of ``verdict``, ``name``, ``found`` and ``fix``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from tutti_engine.doctor.findings import Finding, Verdict, fail, worst
from tutti_engine.doctor.machine import examine_machine
from tutti_engine.doctor.mooncake import examine_mooncake
from tutti_engine.doctor.roots import examine_root

__all__ = ["ENTRY_POINT_GROUP", "Finding", "Verdict", "examine", "worst"]

ENTRY_POINT_GROUP = "tutti_engine.doctor"


def examine(roots: Sequence[Path], master: str | None = None) -> list[Finding]:
    """Return all findings: the machine, what is installed, then each root. Raises nothing for what is bad.

    Args:
        roots: directories of stores.
        master: ``host:port`` of a Mooncake cluster's master, asked if given.
    """
    # Imports the storage runtime, where there is one.
    from tutti_engine.doctor.installed import examine_installed

    found = [
        *examine_machine(len(roots)),
        *examine_installed(),
        *examine_mooncake(master),
        *from_entry_points(),
    ]
    for root in roots:
        found += examine_root(root)
    return found


def from_entry_points() -> Iterator[Finding]:
    """Return what other distributions have found; one that fails is a finding."""
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            found = [Finding(**each) for each in point.load()()]
        except Exception as error:
            found = [fail(point.name, f"{point.value} cannot be asked: {error}", "install it anew")]
        yield from found
