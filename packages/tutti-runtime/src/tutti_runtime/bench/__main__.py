# SPDX-License-Identifier: Apache-2.0
"""Bandwidth, CPU time, latency and cost of opening of each data path, with fio on the same file beside it.

    python -m tutti_runtime.bench /mnt/nvme0 --json bench.json

One file, random order of blocks, each once a round. Rounds alternate between the data paths and fio with the
same file, block size, depth and direct flag; printed are medians. GB are 10^9 bytes. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tutti_runtime.bench.settings import KIB, MIB, Settings
from tutti_runtime.bench.suite import measure
from tutti_runtime.bench.table import as_text, update_readme

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tutti_runtime.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="where the file is made")
    parser.add_argument("--file-mib", type=int, default=512)
    parser.add_argument("--blocks-kib", type=int, nargs="+", default=[64, 256, 512, 1024])
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--direct", choices=["on", "off"], default="on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paths", nargs="+", choices=["uring", "posix"], default=["uring", "posix"])
    parser.add_argument("--no-fio", action="store_true")
    parser.add_argument("--latency-requests", type=int, default=1000, help="0: leave latency out")
    parser.add_argument("--open-files", type=int, default=500, help="0: leave opening out")
    parser.add_argument("--json", type=Path, help="also write the report here")
    parser.add_argument("--load", type=Path, help="measure nothing, take the report that --json wrote")
    parser.add_argument(
        "--update-readme", type=Path, metavar="README", help="put the table between its marks"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


def _report(options: argparse.Namespace) -> dict[str, Any]:
    if options.load is not None:
        report: dict[str, Any] = json.loads(options.load.read_text())
        return report
    settings = Settings(
        folder=options.folder,
        file_bytes=options.file_mib * MIB,
        blocks=tuple(kib * KIB for kib in options.blocks_kib),
        depth=options.depth,
        direct=options.direct == "on",
        rounds=options.rounds,
        paths=tuple(options.paths),
        fio=not options.no_fio,
        latency_requests=options.latency_requests,
        open_files=options.open_files,
    )
    return measure(settings, quiet=options.quiet)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write what was asked for. Returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        report = _report(options)
        print(as_text(report))
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        if options.update_readme is not None:
            update_readme(report, options.update_readme)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(
            f"{error}\nO_DIRECT or a data path is refused here: try --direct off or --paths", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
