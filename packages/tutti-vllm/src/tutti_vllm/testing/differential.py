# SPDX-License-Identifier: Apache-2.0
"""Random schedules on a real vLLM engine, with and without the connector: no token may differ.

``python -m tutti_vllm.testing.differential --schedules 10000 --seed 1 --json result.json``

Each schedule is a short random script on a tiny model: prompts that share prefixes, aborts, resets of the
prefix cache with and without the connector's, too little memory (so preemptions), engines that end and start
again on what they stored, small stores that evict, and storage that is slow, fails, lies or hangs. Every
answer is compared with what vLLM alone says to that prompt, and after each schedule nothing may be held: no
block, pin, staging slot, plan or place, and no byte too many on disk. Some engines plan a step before the one
before it has ended, some fail requests whose load fails instead of computing them. With ``--shared`` the
engines of a campaign share a store, and most have nothing else when they start. Exit status 1 if anything is
wrong; a schedule that fails is made as short as it can be, and told as a command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutti_vllm.testing.campaign import MARK

__all__ = ["Result", "run", "shrink_failures"]

SCHEDULES_A_CAMPAIGN = 500

SHRUNK = 3
"""Campaigns whose first failure is made shorter."""


@dataclass
class Result:
    """What a run found.

    Attributes:
        seed: of the first campaign; each further one has the next number.
        schedules: that have run.
        engines: that were started with the connector.
        problems: one line each, with the command that shows it again.
        failures: campaign and number of each schedule with a problem.
        shortest: commands that run no more than what a failure needs, where that was looked for.
        deaths: campaigns that ended before their last schedule.
        faults: how many schedules ran with which mix of faults.
        totals: sums of the connector's counters and of what the schedules did.
        seconds: of the whole run.
        shared: whether engines shared a store.
    """

    seed: int
    schedules: int = 0
    engines: int = 0
    problems: list[str] = field(default_factory=list)
    failures: list[tuple[int, int]] = field(default_factory=list)
    shortest: list[str] = field(default_factory=list)
    deaths: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    shared: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return vars(self) | {"faults": dict(self.faults), "totals": dict(self.totals)}

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong, and hits were served at all."""
        loads = "shared_load_chunks" if self.shared else "load_chunks"
        return not self.problems and not self.deaths and self.totals[loads] > 0


def run(
    schedules: int,
    *,
    seed: int,
    jobs: int,
    told: Callable[[Result], None] = lambda result: None,
    shared: bool = False,
) -> Result:
    """Run schedules in several processes.

    Args:
        schedules: how many.
        seed: of the first campaign.
        jobs: processes at a time.
        told: called after each schedule, under a lock.
        shared: whether the engines of a campaign share a store, which is cut, hangs, is full, loses and
            damages objects while they run.
    """
    result = Result(seed, shared=shared)
    begin = time.monotonic()
    counts = [min(SCHEDULES_A_CAMPAIGN, schedules - n) for n in range(0, schedules, SCHEDULES_A_CAMPAIGN)]
    waiting = list(enumerate(counts, start=seed))
    turn = threading.Lock()

    def work() -> None:
        while True:
            with turn:
                if not waiting:
                    return
                number, count = waiting.pop(0)
            _run_campaign(number, count, result, turn, told)

    threads = [threading.Thread(target=work, name=f"campaigns-{n}") for n in range(min(jobs, len(counts)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.seconds = time.monotonic() - begin
    return result


def _run_campaign(
    seed: int, count: int, result: Result, turn: threading.Lock, told: Callable[[Result], None]
) -> None:
    command = [sys.executable, "-m", "tutti_vllm.testing.campaign"]
    other: list[str] = []
    last = -1
    with subprocess.Popen(
        [*command, "--seed", str(seed), "--schedules", str(count), *(["--shared"] if result.shared else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(MARK):
                other = [*other, line][-60:]
                continue
            report = json.loads(line.removeprefix(MARK))
            last = report.get("schedule", last)
            with turn:
                _take(report, seed, result)
                told(result)
    code = process.returncode
    if last + 1 < count:
        with turn:
            result.deaths += 1
            result.failures.append((seed, last + 1))
            result.problems.append(
                f"the engine's process ended with code {code}; {_again(seed, last + 1, result.shared)}\n"
                + "".join(other)
            )
            told(result)


def _take(report: dict[str, Any], seed: int, result: Result) -> None:
    if "schedule" in report:
        result.schedules += 1
        result.faults[report["faults"]] += 1
        again = _again(seed, report["schedule"], result.shared)
        result.problems += [f"{problem}; {again}" for problem in report["problems"]]
        result.failures += [(seed, report["schedule"])] if report["problems"] else []
    elif "engine" in report:
        result.engines += 1
        result.totals["overlapped_engines"] += bool(report["engine"].get("overlapped"))
        result.totals["engines_that_fail_requests"] += report["engine"].get("policy") == "fail"
        result.totals.update(report["counters"])
    else:
        result.problems.append(f"{report['death']}, somewhere in campaign {seed}")


def _again(seed: int, schedule: int, shared: bool) -> str:
    command = f"python -m tutti_vllm.testing.campaign --seed {seed} --schedules {schedule + 1}"
    return f"again: {command}{' --shared' if shared else ''}"


def shrink_failures(result: Result, seconds: float) -> None:
    """Look for the shortest script of each campaign's first failure, some seconds each; tell its command."""
    first: dict[int, int] = {}
    for seed, schedule in result.failures:
        first[seed] = min(schedule, first.get(seed, schedule))
    for seed, schedule in list(first.items())[:SHRUNK]:
        print(f"campaign {seed}, schedule {schedule}: looking for less that fails", file=sys.stderr)
        where = ["--seed", str(seed), "--schedule", str(schedule), "--seconds", str(seconds)]
        found = subprocess.run(
            [sys.executable, "-m", "tutti_vllm.testing.shrink", *where],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        if lines := found.stdout.splitlines():
            result.shortest.append(lines[-1])
            print(lines[-1], flush=True)


def describe(result: Result) -> str:
    """Return the state of a run in one line."""
    totals = result.totals
    from_shared = f"{totals['shared_load_chunks']} from the shared store, " if result.shared else ""
    return (
        f"{result.schedules} schedules, {result.engines} engines, {totals['finished']} answers, "
        f"{totals['load_chunks']} chunks loaded, {totals['load_failed_chunks']} failed, {from_shared}"
        f"{len(result.problems)} problems"
    )


@contextmanager
def _progress(schedules: int) -> Iterator[Callable[[Result], None]]:
    """Show how far a run is, and each problem at once: a bar on a terminal with rich, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _Lines()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=schedules)
        seen = 0

        def told(result: Result) -> None:
            nonlocal seen
            for problem in result.problems[seen:]:
                progress.console.print(problem, markup=False, soft_wrap=True)
            seen = len(result.problems)
            progress.update(task, completed=result.schedules, description=describe(result))

        yield told


class _Lines:
    """Prints a line every ten seconds."""

    def __init__(self) -> None:
        self._seen = 0
        self._next = 0.0

    def __call__(self, result: Result) -> None:
        for problem in result.problems[self._seen :]:
            print(problem, file=sys.stderr, flush=True)
        self._seen = len(result.problems)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 10
            print(describe(result), file=sys.stderr, flush=True)


def main() -> int:
    """Run; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="by default a random one, which is printed")
    parser.add_argument(
        "--shared", action="store_true", help="engines share a store that fails as well; none is shrunk"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--shrink", type=float, default=300.0, metavar="SECONDS", help="time for each failure; 0 leaves it"
    )
    arguments = parser.parse_args()
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr)
    with _progress(arguments.schedules) as told:
        result = run(arguments.schedules, seed=seed, jobs=arguments.jobs, told=told, shared=arguments.shared)
    if arguments.shrink > 0 and not arguments.shared:
        shrink_failures(result, arguments.shrink)
    if arguments.json:
        arguments.json.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    print(describe(result))
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
