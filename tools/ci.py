# SPDX-License-Identifier: Apache-2.0
"""Continuous integration of the four distributions, the same on a laptop and on a server.

python tools/ci.py plan --base REF      which packages the changes since REF concern, as JSON
python tools/ci.py plan PATH…           the same for named paths
python tools/ci.py run --all            build, check and test every package, then the cross-package tests
python tools/ci.py run --base REF       only what changed since REF
python tools/ci.py run tutti-engine     only the named packages (and what they are built on)
python tools/ci.py workflows [--check]  write .github/workflows, or tell whether they are up to date
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Called by path, Python puts tools/ first on the module path, not the folder that holds it.
sys.path.insert(0, str(ROOT))

from tools import ci_workflows  # noqa: E402
from tools.ci_plan import PackagePlan, Plan, make_plan, publication_order  # noqa: E402
from tools.ci_run import Runner  # noqa: E402
from tools.layers import closure, read_distributions  # noqa: E402

__all__ = ["changed_paths", "main"]


def changed_paths(base: str) -> list[str]:
    """Paths that differ between `base` and the working tree, untracked ones included."""
    commands = (
        ["git", "diff", "--name-only", "--no-renames", "-z", base, "--"],
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
    )
    paths: set[str] = set()
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"ci: `{' '.join(command)}`: {done.stderr.strip()}")
        paths.update(filter(None, done.stdout.split("\0")))
    return sorted(paths)


def plan_from(options: argparse.Namespace) -> Plan:
    """The plan that the command line asks for."""
    distributions = read_distributions()
    if options.all:
        plan = Plan({name: PackagePlan(True, True, "--all") for name in publication_order(distributions)})
        plan.cross = plan.docs = True
        return plan
    if options.base:
        return make_plan(changed_paths(options.base), distributions)
    names = options.names
    if options.command == "plan":
        return make_plan(names, distributions)
    strangers = sorted(set(names) - set(distributions) - {"cross"})
    if strangers or not names:
        known = ", ".join([*publication_order(distributions), "cross"])
        raise SystemExit(f"ci: {strangers or 'nothing'} to run; give --all, --base REF or some of: {known}")
    plan = Plan({name: PackagePlan() for name in publication_order(distributions)})
    plan.cross = "cross" in names
    for name in set(names) - {"cross"}:
        for needed in closure(distributions, name):
            plan.packages[needed].build = True
        plan.packages[name] = PackagePlan(True, True, "named")
    if plan.cross:
        for item in plan.packages.values():
            item.build = True
    return plan


def run(options: argparse.Namespace) -> int:
    """Carry out the plan; 0 when every step passed."""
    work = Path(options.work) if options.work else Path(tempfile.mkdtemp(prefix="tutti-ci-"))
    if work.resolve().is_relative_to(ROOT):
        # A test that finds the repository above it is not a test of what was installed.
        raise SystemExit(f"ci: --work {work} is inside the repository; name a folder outside of it")
    dist = Path(options.dist) if options.dist else work / "dist"
    plan = plan_from(options)
    if options.prebuilt:
        for item in plan.packages.values():
            item.build = False
    runner = Runner(dist.resolve(), work.resolve(), read_distributions(), options.with_vllm)
    passed = runner.run(plan)
    print(runner.summary(), flush=True)
    if not passed:
        print(f"ci: logs and environments are in {work}", flush=True)
    return 0 if passed else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    for name in ("plan", "run"):
        command = commands.add_parser(name)
        command.add_argument("names", nargs="*", help="paths (plan) or packages and `cross` (run)")
        command.add_argument("--all", action="store_true", help="every package and the cross-package tests")
        command.add_argument("--base", metavar="REF", help="what changed since this commit")
    command.add_argument("--work", help="folder for environments and logs (default: a new temporary one)")
    command.add_argument("--dist", help="folder for sdists and wheels (default: WORK/dist)")
    command.add_argument("--prebuilt", action="store_true", help="test the wheels that lie in --dist")
    command.add_argument("--with-vllm", action="store_true", help="cross-package tests with vLLM's CPU build")
    command = commands.add_parser("workflows")
    command.add_argument("--check", action="store_true", help="write nothing; exit status 1 when out of date")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.command == "plan":
        print(json.dumps(plan_from(options).as_json(), indent=2))
        return 0
    if options.command == "run":
        return run(options)
    stale = ci_workflows.stale(ROOT)
    if not options.check:
        ci_workflows.write(ROOT)
        return 0
    for path in stale:
        print(f"{path}: out of date; run `hatch run ci:workflows`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
