# SPDX-License-Identifier: Apache-2.0
"""A drive for a guest that holds this Python, numpy, the installed package and a few tools: the guest runs
what the host would."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tutti_runtime import _core

__all__ = ["GUEST_LAB", "build_root_image", "libraries_of"]

GUEST_LAB = "/lab"
LEFT_OUT = ("test", "tests", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3", "__pycache__")
NOT_NEEDED_OF_PACKAGES = ("tests", "testing", "include", "f2py", "__pycache__")
TOOLS = ("nvme", "mkfs.ext4")


def libraries_of(files: Iterable[Path]) -> set[Path]:
    """Shared libraries that the loader would take for these files, and the loader itself."""
    asked = [str(file) for file in files]
    done = subprocess.run(["ldd", *asked], capture_output=True, text=True, check=False)
    return {Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)}


def _copy(source: Path, root: Path) -> None:
    """To the same path below ``root``, links followed."""
    target = root / str(source).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(source, target)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _copy_packages(site: Path) -> None:
    numpy = _package("numpy")
    ignore = shutil.ignore_patterns(*NOT_NEEDED_OF_PACKAGES)
    shutil.copytree(numpy, site / "numpy", ignore=ignore)
    libraries = numpy.parent / "numpy.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, site / "numpy.libs")
    ours = site / "tutti_runtime"
    shutil.copytree(_package("tutti_runtime"), ours, ignore=shutil.ignore_patterns("__pycache__"))
    # An editable installation keeps it elsewhere.
    compiled = Path(_core.__file__)
    if not (ours / compiled.name).exists():
        shutil.copy2(compiled, ours / compiled.name)


def _fill(root: Path, scripts: Sequence[Path], command: str) -> None:
    for name in ("proc", "sys", "dev", "tmp", "bin", "mnt"):
        (root / name).mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy2(busybox, root / "bin" / "busybox")
    for name in ("sh", "mount", "umount", "dmesg"):
        (root / "bin" / name).symlink_to("busybox")
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    _copy(python, root)
    stdlib = Path(sysconfig.get_path("stdlib"))
    target = root / str(stdlib).lstrip("/")
    ignore = shutil.ignore_patterns(*LEFT_OUT, "site-packages", "dist-packages", "config-*")
    shutil.copytree(stdlib, target, ignore=ignore, dirs_exist_ok=True)
    lab = root / GUEST_LAB.lstrip("/")
    _copy_packages(lab / "site")
    for script in scripts:
        if script.is_dir():
            shutil.copytree(script, lab / script.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(script, lab / script.name)
    tools = [
        Path(found) for name in TOOLS if (found := shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin"))
    ]
    for tool in tools:
        _copy(tool.resolve(), root)
        if not (root / "bin" / tool.name).exists():
            (root / "bin" / tool.name).symlink_to(tool.resolve())
    compiled = [path for path in root.rglob("*.so*") if path.is_file()]
    for library in libraries_of([python, *tools, *compiled]):
        if not library.is_relative_to(root):
            _copy(library, root)
    run = f"export PATH=/bin PYTHONPATH={GUEST_LAB}:{GUEST_LAB}/site PYTHONDONTWRITEBYTECODE=1 HOME=/tmp\n"
    (lab / "run.sh").write_text(f"{run}exec {python} {command}\n")


def build_root_image(folder: Path, scripts: Sequence[Path], command: str) -> Path:
    """An ext4 image; ``command`` are Python's arguments, ``scripts`` lie in ``GUEST_LAB``."""
    if shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin") is None or shutil.which("busybox") is None:
        pytest.skip("mkfs.ext4 or busybox is not installed (Debian: e2fsprogs, busybox-static)")
    root = folder / "root"
    root.mkdir()
    _fill(root, scripts, command)
    image = folder / "root.img"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    made = [
        "mkfs.ext4",
        "-q",
        "-F",
        "-b",
        "4096",
        "-O",
        "^has_journal",
        "-m",
        "0",
        "-d",
        str(root),
        str(image),
    ]
    subprocess.run(made, check=True, capture_output=True)
    shutil.rmtree(root)
    return image
