# SPDX-License-Identifier: Apache-2.0
"""Check built wheels: `python tools/wheels.py dist/*.whl`.

For each wheel: the tag, the size, what it must and must not contain; for each shared library in it: the
libraries it asks for, its run path, the symbols it exports, and that no path of the build machine is left
in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RULES", "WheelRule", "check_wheel"]

KIB = 1024
BASE_LIBRARIES = frozenset(
    {
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
    }
    | {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
)
# libstdc++'s headers give their own templates default visibility; every C++ library has some of them.
STANDARD_SYMBOLS = re.compile(r"_Z(N|T[ISV]|Z|GV)*(N?K?S[tabsiod]|N?K?9__gnu_cxx|TI|TS)|_ZN10__cxxabiv1")
# Set by some linkers in every library; they name no code.
LINKER_SYMBOLS = frozenset({"__bss_start", "_edata", "_end", "_init", "_fini"})
BUILD_PATH = re.compile(rb"/(?:home|root|tmp|work|builds?|Users|var/tmp)/[\x21-\x7e]{2,120}")
FORBIDDEN_MEMBERS = re.compile(
    r"(^|/)(tests?|benchmarks|examples|csrc|include|changelog\.d|__pycache__)/|\.(a|o|cpp|hpp|h)$"
)


@dataclass(frozen=True)
class WheelRule:
    """What the wheel of one distribution may be."""

    tag: str
    """Regular expression for python-abi-platform."""
    max_bytes: int
    libraries: frozenset[str] = frozenset()
    """Shared libraries allowed in NEEDED beyond the C and C++ run time."""
    exports: str = r"$^"
    """Regular expression for exported symbols, beyond the C++ standard library's templates."""


PURE = r"py3-none-any"
PLATFORM = r"(linux|manylinux_\d+_\d+|manylinux\d+)_(x86_64|aarch64)"
RULES: dict[str, WheelRule] = {
    # With the NVMe driver, its transports, controller and broker, and the image of a kernel (75 KB).
    "tutti-runtime": WheelRule(rf"(cp3\d+)-\1-{PLATFORM}", 1000 * KIB, exports=r"PyInit__core$"),
    # With CUDA: some fifty kernels, and CUDA's runtime, which is linked statically.
    "tutti-kv-kernels": WheelRule(
        rf"py3-none-{PLATFORM}", 1600 * KIB, libraries=frozenset({"libtorch_cpu.so"}), exports=r"tutti_"
    ),
    "tutti-engine": WheelRule(PURE, 500 * KIB),
    "tutti-vllm": WheelRule(PURE, 300 * KIB),
}


def _readelf(option: str, library: Path) -> list[str]:
    done = subprocess.run(["readelf", option, "--wide", library], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def exported_symbols(library: Path) -> set[str]:
    """Names that other libraries can see: defined, global or weak, not hidden."""
    names = set()
    for line in _readelf("--dyn-syms", library):
        fields = line.split()
        if len(fields) < 8 or fields[6] == "UND":
            continue
        if fields[4] in {"GLOBAL", "WEAK", "UNIQUE"} and fields[5] in {"DEFAULT", "PROTECTED"}:
            names.add(fields[7].partition("@")[0])
    return names


def check_library(library: Path, shown: str, rule: WheelRule) -> list[str]:
    """Breaches of one shared library."""
    found = []
    dynamic = "\n".join(_readelf("--dynamic", library))
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    for name in sorted(needed - BASE_LIBRARIES - rule.libraries):
        found.append(f"{shown}: needs {name}; open it at run time (dlopen) or allow it in tools/wheels.py")
    for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", dynamic):
        found.append(f"{shown}: run path {path!r}; it must be empty")
    for name in sorted(exported_symbols(library) - LINKER_SYMBOLS):
        if not re.match(rule.exports, name) and not STANDARD_SYMBOLS.match(name):
            found.append(f"{shown}: exports {name}; compile with hidden visibility")
    for path in sorted(set(BUILD_PATH.findall(library.read_bytes())))[:5]:
        found.append(f"{shown}: holds the build path {path.decode()!r}; use -ffile-prefix-map")
    return found


def _check_members(names: list[str], package: str, shown: str) -> list[str]:
    found = [f"{shown}: holds {name}" for name in names if FORBIDDEN_MEMBERS.search(name)]
    licences = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    if not licences:
        found.append(f"{shown}: has no LICENSE")
    if f"{package}/py.typed" not in names:
        found.append(f"{shown}: has no {package}/py.typed")
    strangers = {name.partition("/")[0] for name in names} - {package}
    found += [f"{shown}: top-level {name}" for name in sorted(strangers) if not name.endswith(".dist-info")]
    return found


def check_wheel(path: Path) -> list[str]:
    """Breaches of one wheel file, one line each; empty when all is well."""
    package, _, tag = path.stem.split("-", 2)
    rule = RULES.get(package.replace("_", "-"))
    if rule is None:
        return [f"{path.name}: not a distribution of this project"]
    found = []
    if not re.fullmatch(rule.tag, tag):
        found.append(f"{path.name}: tag {tag} does not match {rule.tag}")
    size = path.stat().st_size
    if size > rule.max_bytes:
        found.append(f"{path.name}: {size} bytes, at most {rule.max_bytes} are allowed")
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        found += _check_members(names, package, path.name)
        libraries = [name for name in names if name.endswith(".so")]
        if libraries and rule.tag == PURE:
            return [*found, f"{path.name}: a pure package holds {libraries}"]
        for name in libraries:
            found += check_library(Path(archive.extract(name, folder)), f"{path.name}: {name}", rule)
    return found


def main(arguments: list[str]) -> int:
    """Check the named wheels; exit status 1 when any breaks a rule, 2 when none is named."""
    if not arguments:
        print("usage: python tools/wheels.py WHEEL…", file=sys.stderr)
        return 2
    found = [line for name in arguments for line in check_wheel(Path(name))]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
