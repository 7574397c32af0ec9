# SPDX-License-Identifier: Apache-2.0
"""tools/wheels.py: each rule refuses a wheel made to break it."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tools import wheels

ENGINE = (
    "tutti_engine/__init__.py",
    "tutti_engine/py.typed",
    "tutti_engine-0.1.0.dist-info/licenses/LICENSE",
)
RUNTIME = (
    "tutti_runtime/__init__.py",
    "tutti_runtime/py.typed",
    "tutti_runtime-0.1.0.dist-info/licenses/LICENSE",
)
RUNTIME_WHEEL = "tutti_runtime-0.1.0-cp311-cp311-linux_x86_64.whl"

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("readelf")),
    reason="needs g++ and readelf to make a shared library",
)


def wheel(folder: Path, name: str, *members: str, library: Path | None = None) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, "x")
        if library is not None:
            archive.write(library, "tutti_runtime/_core.so")
    return path


def shared_library(folder: Path, source: str, *options: str) -> Path:
    (folder / "x.cpp").write_text(source)
    target = folder / "x.so"
    subprocess.run(["g++", "-shared", "-fPIC", *options, "-o", target, folder / "x.cpp"], check=True)
    return target


def test_a_proper_pure_wheel_passes(tmp_path: Path) -> None:
    assert wheels.check_wheel(wheel(tmp_path, "tutti_engine-0.1.0-py3-none-any.whl", *ENGINE)) == []


@pytest.mark.parametrize(
    ("name", "members", "words"),
    [
        ("tutti_engine-0.1.0-cp311-cp311-linux_x86_64.whl", ENGINE, "tag cp311"),
        ("tutti_runtime-0.1.0-cp311-cp310-linux_x86_64.whl", RUNTIME, "tag cp311-cp310"),
        ("tutti_engine-0.1.0-py3-none-any.whl", ENGINE[:2], "no LICENSE"),
        ("tutti_engine-0.1.0-py3-none-any.whl", (ENGINE[0], ENGINE[2]), "py.typed"),
        ("tutti_engine-0.1.0-py3-none-any.whl", (*ENGINE, "tests/test_x.py"), "holds tests/test_x.py"),
        ("tutti_engine-0.1.0-py3-none-any.whl", (*ENGINE, "tutti_engine/x.hpp"), "holds tutti_engine/x.hpp"),
        ("tutti_engine-0.1.0-py3-none-any.whl", (*ENGINE, "adapter/__init__.py"), "top-level adapter"),
        ("tutti_engine-0.1.0-py3-none-any.whl", (*ENGINE, "tutti_engine/x.so"), "a pure package holds"),
        ("other-0.1.0-py3-none-any.whl", ENGINE, "not a distribution of this project"),
    ],
)
def test_a_breach_is_named(tmp_path: Path, name: str, members: tuple[str, ...], words: str) -> None:
    assert any(words in line for line in wheels.check_wheel(wheel(tmp_path, name, *members)))


def test_a_large_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, "tutti_engine-0.1.0-py3-none-any.whl", *ENGINE)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("tutti_engine/data.bin", bytes(wheels.RULES["tutti-engine"].max_bytes))
    assert any("bytes, at most" in line for line in wheels.check_wheel(path))


@needs_compiler
def test_a_library_with_hidden_symbols_passes(tmp_path: Path) -> None:
    source = '#include <string>\nextern "C" __attribute__((visibility("default"))) void PyInit__core() {}\n'
    source += "std::string twice(const std::string& s) { return s + s; }\n"
    library = shared_library(tmp_path, source, "-fvisibility=hidden")
    assert wheels.check_wheel(wheel(tmp_path, RUNTIME_WHEEL, *RUNTIME, library=library)) == []


@needs_compiler
@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("namespace tutti { int leak() { return 1; } }", (), "exports _ZN5tutti4leakEv"),
        ("", ("-Wl,-rpath,/opt/lib",), "run path '/opt/lib'"),
        (
            'extern const char p[]; const char p[] = "/home/me/src/x.cpp";',
            ("-fvisibility=hidden",),
            "build path",
        ),
        ("", ("-Wl,--no-as-needed", "-lresolv"), "needs libresolv"),
    ],
)
def test_a_library_that_breaks_a_rule_is_named(
    tmp_path: Path, source: str, options: tuple[str, ...], words: str
) -> None:
    library = shared_library(tmp_path, source, *options)
    found = wheels.check_wheel(wheel(tmp_path, RUNTIME_WHEEL, *RUNTIME, library=library))
    assert any(words in line for line in found), found
