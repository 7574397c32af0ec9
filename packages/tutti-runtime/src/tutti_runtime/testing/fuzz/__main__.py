# SPDX-License-Identifier: Apache-2.0
"""Command line of the fuzz: episodes of all kinds of runtimes in several processes.

    python -m tutti_runtime.testing.fuzz --operations 20000000 --seed 1

Operations are requests given to ``submit`` and calls of other methods. Exits with 1 at the first difference
from the model and prints the command that runs its episode again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from tutti_runtime._progress import Progress
from tutti_runtime.testing.fuzz.task import EPISODE, Task, run_task
from tutti_runtime.testing.subjects import KINDS, make_subject

__all__ = ["main"]

_STUCK = 600.0


def _available(kinds: list[str], folder: Path) -> list[str]:
    """Those kinds that this machine has; says why it has not the others."""
    there = []
    for kind in kinds:
        try:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                subject = make_subject(kind, Path(place))
                with subject.runtime:
                    subject.open(4096)
        except OSError as error:
            print(f"{kind} is left out: {error}", file=sys.stderr)
        else:
            there.append(kind)
    return there


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tutti_runtime.testing.fuzz", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episode", type=int, help="only this one, with one of --kinds")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="where files are made (default: the temporary folder)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    for name in ("operations", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}={getattr(options, name)} must be 1 or more")
    if options.episode is not None and len(options.kinds) != 1:
        parser.error("--episode needs --kinds with the one kind that it ran on")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run episodes until there are enough operations. Returns the exit status."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        kinds = _available(options.kinds, Path(folder))
        if not kinds:
            print("none of the kinds is available", file=sys.stderr)
            return 1
        numbers = range(-(-options.operations // EPISODE))
        if options.episode is not None:
            numbers = range(options.episode, options.episode + 1)
        tasks = [Task(kinds[number % len(kinds)], options.seed, number, folder) for number in numbers]
        return _run_all(tasks, kinds, options)


def _run_all(tasks: list[Task], kinds: list[str], options: argparse.Namespace) -> int:
    begin = time.monotonic()
    operations = accepted = failed = late = 0
    context = multiprocessing.get_context("spawn")
    with (
        context.Pool(min(options.processes, len(tasks))) as pool,
        Progress(len(tasks), "fuzz", quiet=options.quiet) as progress,
    ):
        results = pool.imap_unordered(run_task, tasks)
        for _ in tasks:
            try:
                task, report, problem = results.next(_STUCK)
            except multiprocessing.TimeoutError:
                print(f"no episode has ended for {_STUCK:.0f} s", file=sys.stderr)
                return 1
            if report is None:
                print(
                    f"seed {task.seed}, episode {task.number} on {task.kind}: {problem}\nagain: python -m "
                    f"tutti_runtime.testing.fuzz --seed {task.seed} --episode {task.number} "
                    f"--kinds {task.kind}",
                    file=sys.stderr,
                )
                return 1
            operations += report.operations
            accepted += report.accepted
            failed += report.failed
            late += report.late
            progress.advance(1, f"{operations / 1e6:.2f} M operations")
    print(
        f"{operations} operations ({accepted} accepted requests, {failed} of them failed, timed out or were "
        f"canceled as told, {late} of them late) in {len(tasks)} episodes on {len(kinds)} kinds of runtimes, "
        f"seed {options.seed}: no difference from the model, {time.monotonic() - begin:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
