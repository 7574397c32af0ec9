# SPDX-License-Identifier: Apache-2.0
"""tools/release.py and tools/sbom.py: what is published is repaired, checked and listed, or nothing is."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import release, sbom, wheels
from tools.ci_plan import publication_order
from tools.layers import ROOT, read_distributions

DISTRIBUTIONS = read_distributions()
VERSION = DISTRIBUTIONS["tutti-engine"].version
TAGS = {"tutti-runtime": f"cp311-cp311-linux_{release.platform.machine()}"}
TAGS["tutti-kv-kernels"] = f"py3-none-linux_{release.platform.machine()}"
PYBIND11 = (ROOT / "packages/tutti-runtime/LICENSES/pybind11.txt").read_text()


def make_wheel(folder: Path, name: str, library: bytes = b"", *, licence: bool = True) -> Path:
    """Make a wheel as small as the rules allow."""
    module, tag = name.replace("-", "_"), TAGS.get(name, "py3-none-any")
    info = f"{module}-{VERSION}.dist-info"
    pure = str(tag.endswith("any")).lower()
    files = {
        f"{module}/__init__.py": b"",
        f"{module}/py.typed": b"",
        f"{info}/licenses/LICENSE": b"words",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {VERSION}\nLicense-Expression: Apache-2.0\n"
            "Requires-Dist: numpy>=1.26\nRequires-Dist: rich>=13; extra == 'cli'\n\nAbout it.\n"
        ).encode(),
    }
    if library:
        files[f"{module}/_core.so"] = library
        if licence:
            files[f"{info}/licenses/LICENSES/pybind11.txt"] = PYBIND11.encode()
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    path = folder / f"{module}-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(member, data)
    return path


def library(folder: Path, source: str, *options: str) -> bytes:
    """Compile a library. Skips without a compiler."""
    if not (shutil.which("g++") and shutil.which("readelf")):
        pytest.skip("needs g++ and readelf to make a shared library")
    (folder / "x.cpp").write_text(source)
    target = folder / "x.so"
    command = [
        "g++",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-s",
        *options,
        "-o",
        target,
        folder / "x.cpp",
    ]
    subprocess.run(command, check=True)
    return target.read_bytes()


OLD = 'extern "C" __attribute__((visibility("default"), used)) const char NAME[] = "pybind11_object";'
# Moved to libc.so.6 in glibc 2.34, with a new version.
NEW = f"""#include <pthread.h>
static void* f(void*) {{ return 0; }}
__attribute__((used)) int go() {{ pthread_t t; return pthread_create(&t, 0, f, 0); }}
{OLD}"""


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """What a build leaves, with libraries that ask for no new glibc."""
    folder = tmp_path / "dist"
    folder.mkdir()
    make_wheel(folder, "tutti-engine")
    make_wheel(folder, "tutti-vllm")
    make_wheel(folder, "tutti-runtime", library(tmp_path, OLD.replace("NAME", "PyInit__core")))
    make_wheel(folder, "tutti-kv-kernels", library(tmp_path, OLD.replace("NAME", "tutti_x")))
    for name in DISTRIBUTIONS:
        (folder / f"{name.replace('-', '_')}-{VERSION}.tar.gz").write_bytes(b"sources")
    return folder


def test_a_bill_says_what_the_wheel_is_asks_for_and_holds(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tutti-runtime", b"\x7fELF pybind11_object .nv_fatbin")
    found = sbom.sbom(wheel)
    own = found["metadata"]["component"]
    assert (own["name"], own["version"]) == ("tutti-runtime", VERSION)
    assert own["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    held = {each["name"]: each["licenses"][0]["license"] for each in own["components"]}
    assert held == {
        "pybind11": {"id": "BSD-3-Clause"},
        "cudart_static": {"name": "NVIDIA CUDA Toolkit EULA"},
    }
    assert [each["name"] for each in found["components"]] == ["numpy"], "extras are not asked for"
    assert found == sbom.sbom(wheel), "equal wheels have equal bills"
    references = {own["bom-ref"], *(each["bom-ref"] for each in [*own["components"], *found["components"]])}
    assert {each["ref"] for each in found["dependencies"]} == references


def test_a_bill_is_cyclonedx(tmp_path: Path) -> None:
    schema = pytest.importorskip("cyclonedx.schema", reason="cyclonedx-python-lib is not installed")
    validation = pytest.importorskip("cyclonedx.validation.json")
    for name, data in (("tutti-runtime", b"pybind11_object .nv_fatbin"), ("tutti-engine", b"")):
        wheel = make_wheel(tmp_path, name, data)
        text = sbom.write(wheel, tmp_path).read_text()
        validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
        assert validator.validate_str(text) is None


def test_a_wheel_without_the_licence_of_what_it_holds_gets_no_bill(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tutti-runtime", b"pybind11_object", licence=False)
    with pytest.raises(ValueError, match=r"holds pybind11 and not its licence"):
        sbom.sbom(wheel)
    assert sbom.main([str(wheel)]) == 1
    (tmp_path / "broken.whl").write_bytes(b"no zip")
    assert sbom.main([str(tmp_path / "broken.whl")]) == 1


def test_a_release_is_repaired_checked_and_listed_in_its_order(dist: Path, tmp_path: Path) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    to = tmp_path / "out"
    files = release.release(dist, to)
    names = [each.name for each in files]
    assert set(files) == set(to.iterdir())
    order = [name.replace("-", "_") for name in publication_order(DISTRIBUTIONS)]
    assert [name.partition("-")[0] for name in names if name.endswith(".tar.gz")] == order
    compiled = [each for each in files if each.suffix == ".whl" and not each.name.endswith("-any.whl")]
    assert len(compiled) == 2 and all(release.POLICY in each.name for each in compiled)
    assert all(wheels.check_wheel(each) == [] for each in compiled)
    for wheel in (each for each in files if each.suffix == ".whl"):
        bill = json.loads((to / f"{wheel.stem}.cdx.json").read_text())
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert bill["metadata"]["component"]["hashes"][0]["content"] == digest
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=to, check=False)
    assert done.returncode == 0
    with pytest.raises(release.ReleaseError, match="not empty"):
        release.release(dist, to)


def test_a_library_of_newer_systems_is_refused(dist: Path, tmp_path: Path) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    make_wheel(dist, "tutti-runtime", library(tmp_path, NEW.replace("NAME", "PyInit__core")))
    with pytest.raises(release.ReleaseError, match=r"auditwheel refuses manylinux_2_17"):
        release.release(dist, tmp_path / "out", "manylinux_2_17")


@pytest.mark.parametrize("lacking", ["tutti_vllm-*.tar.gz", "tutti_engine-*.whl"])
def test_a_release_that_lacks_something_is_refused(dist: Path, tmp_path: Path, lacking: str) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    for each in dist.glob(lacking):
        each.unlink()
    command = [sys.executable, str(ROOT / "tools/release.py"), str(dist), "--to", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "needs one sdist and a wheel" in done.stderr
    assert not (tmp_path / "out" / "SHA256SUMS").exists()


def test_the_recipe_names_tools_that_exist() -> None:
    script = ROOT / "tools/manylinux.sh"
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert "tools/release.py" in text and release.POLICY in text
    assert all(name in text for name in DISTRIBUTIONS)
