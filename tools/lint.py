# SPDX-License-Identifier: Apache-2.0
"""All checks of form, one line each: `python tools/lint.py check [NAME…]`, `fix`, `list`.

Every check runs even when one before it failed; the exit status is 1 when any did. Only files that git
knows or could know are looked at. clang-tidy needs a configured build of the C++ packages and makes one
under `build/lint`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

__all__ = ["CHECKS", "FIXES", "main"]

ROOT = Path(__file__).resolve().parent.parent
CXX_SUFFIXES = (".cpp", ".hpp", ".h", ".cu", ".cuh")
Command = list[str]


@cache
def files() -> tuple[str, ...]:
    """Tracked files and new ones that are not ignored, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file()))


def named(*suffixes: str) -> Command:
    """Files that end in one of `suffixes`."""
    return [name for name in files() if name.endswith(suffixes)]


def sources() -> Command:
    """`src` folders of the packages that have Python code."""
    return sorted({"/".join(name.split("/")[:3]) for name in named(".py") if name.split("/")[2:3] == ["src"]})


def mypy() -> list[Command]:
    """One run a package, so that each is strict on its own; then the tools.

    Each has a cache of its own: runs side by side have crashed on a shared one.
    """
    return [
        ["mypy", "--cache-dir", f".mypy_cache/{folder.replace('/', '-')}", folder]
        for folder in [*sources(), "tools"]
    ]


def on_files(command: Command, *suffixes: str) -> list[Command]:
    """`command` with the matching files, or nothing when there are none."""
    found = named(*suffixes)
    return [[*command, *found]] if found else []


def headers() -> list[str]:
    """Source files whose first lines lack the SPDX licence line."""
    wanted = named(".py", ".pyi", *CXX_SUFFIXES, ".cmake", ".sh", "CMakeLists.txt")
    return [
        f"{name}: no `SPDX-License-Identifier: Apache-2.0` in its first three lines"
        for name in wanted
        if (ROOT / name).stat().st_size > 0
        and "SPDX-License-Identifier: Apache-2.0" not in "\n".join((ROOT / name).read_text().splitlines()[:3])
    ]


def licences() -> list[str]:
    """Package LICENSE files that differ from the root's (they are published on their own)."""
    text = (ROOT / "LICENSE").read_bytes()
    return [
        f"{name}: differs from the root's LICENSE"
        for name in named("/LICENSE")
        if (ROOT / name).read_bytes() != text
    ]


def tidy() -> list[Command]:
    """clang-tidy over every C++ source that the configured builds compile."""
    commands: list[Command] = []
    for package, extra in (("tutti-runtime", ["pybind11"]), ("tutti-kv-kernels", ["torch"])):
        database = configure(package, extra)
        # Only what this machine can build: the CUDA part is left out where there is no CUDA compiler.
        units = [name for name in compiled(database) if name.startswith(f"packages/{package}/csrc/")]
        if database and units:
            tool = ["clang-tidy", "--quiet", "-p", str(database)]
            commands += [[*tool, *half] for half in (units[::2], units[1::2]) if half]
    return commands


def compiled(database: Path | None) -> Command:
    """Tracked C++ sources that a configured build compiles."""
    if database is None:
        return []
    entries = json.loads((database / "compile_commands.json").read_text())
    known = {Path(entry["directory"], entry["file"]).resolve() for entry in entries}
    return [name for name in named(".cpp") if (ROOT / name).resolve() in known]


def configure(package: str, modules: list[str]) -> Path | None:
    """Configured build folder of a C++ package with compile_commands.json; None where it cannot be made."""
    source = ROOT / "packages" / package
    if not (source / "CMakeLists.txt").is_file():
        return None
    for module in modules:
        probe = subprocess.run(
            [sys.executable, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec('{module}'))"],
            check=False,
        )
        if probe.returncode != 0:
            print(f"      clang-tidy: {package} left out, {module} is not in this environment", flush=True)
            return None
    build = ROOT / "build" / "lint" / package
    command = ["cmake", "--fresh", "-S", str(source), "-B", str(build), "-G", "Ninja"]
    command += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    command += [f"-DSKBUILD_PROJECT_NAME={package.replace('-', '_')}", "-DSKBUILD_PROJECT_VERSION=0"]
    if "pybind11" in modules:
        where = [sys.executable, "-m", "pybind11", "--cmakedir"]
        command.append(
            "-Dpybind11_DIR="
            + subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
        )
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"configuring {package} failed:\n{done.stdout}")
    return build


# name -> commands to run, or a function that returns complaints itself.
CHECKS: dict[str, Callable[[], list[Command]]] = {
    "ruff": lambda: [["ruff", "check", "."]],
    "ruff-format": lambda: [["ruff", "format", "--check", "."]],
    "mypy": mypy,
    "clang-format": lambda: on_files(["clang-format", "--dry-run", "--Werror"], *CXX_SUFFIXES),
    "clang-tidy": tidy,
    "gersemi": lambda: on_files(["gersemi", "--check"], "CMakeLists.txt", ".cmake"),
    "codespell": lambda: [["codespell", *named(".py", ".md", ".toml", ".yml", ".txt", ".sh", *CXX_SUFFIXES)]],
    "imports": lambda: [["lint-imports", "--no-cache"]],
    "layers": lambda: [[sys.executable, "tools/layers.py"]],
    "versions": lambda: [[sys.executable, "tools/versions.py", "--check"]],
    "workflows": lambda: [[sys.executable, "tools/ci.py", "workflows", "--check"]],
    "pyproject": lambda: on_files(["validate-pyproject"], "pyproject.toml"),
}
OWN_CHECKS: dict[str, Callable[[], list[str]]] = {"headers": headers, "licences": licences}
FIXES: dict[str, Callable[[], list[Command]]] = {
    "ruff": lambda: [["ruff", "check", "--fix", "."], ["ruff", "format", "."]],
    "clang-format": lambda: on_files(["clang-format", "-i"], *CXX_SUFFIXES),
    "gersemi": lambda: on_files(["gersemi", "--in-place"], "CMakeLists.txt", ".cmake"),
    "workflows": lambda: [[sys.executable, "tools/ci.py", "workflows"]],
}


def environment() -> dict[str, str]:
    """Module path for import-linter: the packages' sources, without installing them."""
    path = os.pathsep.join(str(ROOT / folder) for folder in sources())
    return {**os.environ, "PYTHONPATH": path, "CLICOLOR_FORCE": "0"}


def run_command(command: Command) -> str:
    """Output of a command that failed, empty when it passed."""
    if command[0] != sys.executable and shutil.which(command[0]) is None:
        return f"{command[0]} is not installed; run this as `hatch run lint:check`\n"
    settings = environment() if command[0] == "lint-imports" else None
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    # clang-tidy counts its files between the complaints; CI logs are short, so only the complaints are kept.
    return "".join(line for line in done.stdout.splitlines(True) if "] Processing file " not in line)


def run_commands(commands: list[Command]) -> str:
    """Output of the commands that failed, empty when all passed. Two run at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return "".join(pool.map(run_command, commands))


def run_check(name: str) -> str:
    """Complaints of one check, empty when it passed."""
    try:
        if name in OWN_CHECKS:
            return "\n".join(OWN_CHECKS[name]())
        return run_commands(CHECKS[name]())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        return f"{type(error).__name__}: {error}"


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when a check failed."""
    parser = argparse.ArgumentParser(description="checks of form")
    parser.add_argument("action", choices=["check", "fix", "list"])
    parser.add_argument("names", nargs="*", help="checks to run; all when none is named")
    options = parser.parse_args(arguments)
    every = [*CHECKS, *OWN_CHECKS]
    if options.action == "list":
        print(*every, sep="\n")
        return 0
    if options.action == "fix":
        # One after the other: two formatters must not write one file at once.
        leftovers = "".join(
            run_command(command) for name in options.names or FIXES for command in FIXES[name]()
        )
        print(leftovers, end="")
        return 1 if leftovers else 0
    unknown = sorted(set(options.names) - set(every))
    if unknown:
        parser.error(f"no check {', '.join(unknown)}; there are: {', '.join(every)}")
    failed = []
    for name in options.names or every:
        started = time.monotonic()
        complaints = run_check(name)
        verdict = "FAIL" if complaints else "ok"
        print(f"{verdict:5} {name} ({time.monotonic() - started:.1f} s)", flush=True)
        if complaints:
            failed.append(name)
            print(complaints.rstrip(), flush=True)
    if failed:
        print(f"lint: failed: {', '.join(failed)}; `hatch run lint:fix` repairs what is only format")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
