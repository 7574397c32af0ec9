# SPDX-License-Identifier: Apache-2.0
"""Say which ways between a drive and a GPU this machine allows, and what the others are missing.

    python -m tutti_runtime.doctor
    python -m tutti_runtime.doctor --require gds-p2pdma --json

Exit status: 0 when every way named by --require is possible (without it: the host bounce), 1 when one is not
or cannot be told, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tutti_runtime.doctor import WAYS, System, Way, examine

__all__ = ["as_json", "as_text", "main"]

_ANSWERS = {"yes": "possible", "no": "not possible", "unknown": "cannot be told"}
_MARKS = {"met": "ok", "missing": "missing", "unknown": "unsure"}


def as_text(ways: tuple[Way, ...]) -> str:
    """One paragraph a way: the answer, then a line for each requirement and one for what to do about it."""
    lines: list[str] = []
    for way in ways:
        lines += [f"{way.name}: {_ANSWERS[way.possible]}. {way.title}", f"  {way.note}"]
        for finding in way.findings:
            lines.append(f"  [{_MARKS[finding.state]}] {finding.name}: {finding.found}")
            if finding.fix:
                lines.append(f"      fix: {finding.fix}")
        lines.append("")
    return "\n".join([*lines, "Sources of the requirements: docs/gpu-direct.md of this package."])


def as_json(ways: tuple[Way, ...]) -> str:
    """The same as a JSON object: ``{"ways": [{"name", "possible", "title", "note", "findings": [...]}]}``."""
    return json.dumps({"ways": [{**asdict(way), "possible": way.possible} for way in ways]}, indent=1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tutti_runtime.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--require", action="append", choices=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--root", type=Path, default=Path("/"), help="where /proc, /sys, /boot and /dev are")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Look, print, and return the exit status."""
    options = _parser().parse_args(arguments)
    ways = examine(System(options.root))
    print(as_json(ways) if options.json else as_text(ways))
    required = options.require or ["host"]
    return 0 if all(way.possible == "yes" for way in ways if way.name in required) else 1


if __name__ == "__main__":
    sys.exit(main())
