# SPDX-License-Identifier: Apache-2.0
"""Backends by name, from this package and from others that are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tutti_engine import BackendError, backend_names, make_backend
from tutti_engine.backends.memory import MemoryBackend

SIZES = {"num_layers": 2, "segment_bytes": 4096, "num_chunks": 3}

MODULE = """
from tutti_engine.backends.memory import MemoryBackend

class Good(MemoryBackend):
    pass

class Unsaid(MemoryBackend):
    spi_version = None

class Newer(MemoryBackend):
    spi_version = 9

class Half:
    spi_version = 2
    def chunk_ids(self, count): ...
    def shutdown(self): ...

def by_function(**options):
    return MemoryBackend(**options)

number = 5
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a distribution with some entry points."""
    (tmp_path / "tutti_registry_example.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(distribution: str = "example", **points: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {place}" for name, place in points.items()]
        (info / "entry_points.txt").write_text("[tutti_engine.backends]\n" + "\n".join(lines) + "\n")

    yield make
    sys.modules.pop("tutti_registry_example", None)


def test_own_backends_are_known_without_being_installed() -> None:
    assert {"local", "memory"} <= set(backend_names())
    assert isinstance(make_backend("memory", **SIZES), MemoryBackend)


@pytest.mark.parametrize("attribute", ["Good", "by_function"])
def test_an_installed_backend_is_found_by_its_name(install, attribute: str) -> None:
    install(mine=f"tutti_registry_example:{attribute}")
    assert "mine" in backend_names()
    assert list(make_backend("mine", **SIZES).chunk_ids(3)) == [0, 1, 2]


def test_names_alone_import_nothing(install) -> None:
    install(mine="tutti_registry_example:Good")
    backend_names()
    assert "tutti_registry_example" not in sys.modules


@pytest.mark.parametrize(
    ("name", "hint"),
    [("memry", r"did you mean 'memory'\?"), ("s3", "known are .*local.*memory"), ("", "known are")],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(BackendError, match=f"no storage backend is called '{name}': {hint}"):
        make_backend(name)


@pytest.mark.parametrize("options", [{}, SIZES | {"colour": "red"}, {"num_layers": 2}])
def test_options_are_the_backends_own_and_strict(options: dict) -> None:
    with pytest.raises(TypeError, match=r"backend 'memory' takes \(\*, num_layers: "):
        make_backend("memory", **options)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("tutti_registry_example:Newer", "'mine' was written for version 9 .* this engine speaks 1, 2"),
        ("tutti_registry_example:Unsaid", "'mine' does not say for which version"),
        ("tutti_registry_example:Half", "made a Half, which lacks bind_staging, write_segments"),
        ("tutti_registry_example:number", "is not callable"),
        ("tutti_registry_example:Absent", "cannot be used"),
        ("tutti_registry_absent:Good", "cannot be used: No module named"),
    ],
)
def test_a_backend_that_cannot_be_used_says_why(install, place: str, message: str) -> None:
    install(mine=place)
    with pytest.raises(BackendError, match=message):
        make_backend("mine", **({} if "Half" in place else SIZES))


def test_two_backends_of_one_name_are_refused(install) -> None:
    install(mine="tutti_registry_example:Good", memory="tutti_registry_example:Good")
    install("other", mine="tutti_registry_example:by_function")
    for name in ("mine", "memory"):
        with pytest.raises(BackendError, match=f"several storage backends are called '{name}'"):
            make_backend(name, **SIZES)
