# SPDX-License-Identifier: Apache-2.0
"""One fixture per thing that a runtime needs; ``setup`` runs a test on every data path and policy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Test files are imported without their folder on the path; the helpers beside them are not.
sys.path.insert(0, str(Path(__file__).parent))

from cuda_kit import LIBRARIES, FakeCuda, FakeCufile, build, real_driver
from loop_kit import Loops, loops_of
from runtime_kit import ALL_PATHS, FILE_PATHS, LoopMount, MakeFaulty, Setup, faulty, make, pair_id

from tutti_runtime import _core


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "root: needs root (loop mounts, resource limits)")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


@pytest.fixture
def make_setup(tmp_path: Path) -> Iterator[Callable[..., Setup]]:
    made: list[Setup] = []

    def build(pair: tuple[str, str], folder: Path | None = None, **settings: int) -> Setup:
        where = folder or tmp_path
        setup = Setup(*pair, where, make(*pair, where, **settings))
        made.append(setup)
        return setup

    yield build
    for setup in made:
        setup.runtime.shutdown(30.0)


@pytest.fixture(params=ALL_PATHS, ids=pair_id)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(params=FILE_PATHS, ids=pair_id)
def file_pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def setup(pair: tuple[str, str], make_setup: Callable[..., Setup]) -> Setup:
    return make_setup(pair)


@pytest.fixture
def file_setup(file_pair: tuple[str, str], make_setup: Callable[..., Setup]) -> Setup:
    return make_setup(file_pair)


@pytest.fixture
def loop_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopMount]:
    if os.geteuid() != 0:
        pytest.skip("a loop mount needs root")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    mount = LoopMount(tmp_path_factory.mktemp("loop"), 16 * 1024 * 1024)
    yield mount
    mount.unmount()


@pytest.fixture
def loops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loops]:
    with loops_of(tmp_path_factory.mktemp("loops")) as made:
        yield made


@pytest.fixture(params=["memory", "posix", "uring"])
def make_faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeFaulty]:
    made: list[tuple[Setup, _core.FaultControl]] = []

    def build(plan: dict[str, object], **settings: object) -> tuple[Setup, _core.FaultControl]:
        control = _core.FaultControl(plan)
        runtime = faulty(request.param, control, **settings)
        made.append((Setup(request.param, "off", tmp_path, runtime), control))
        return made[-1]

    yield build
    for setup, control in made:
        control.set_plan({})
        control.release()
        assert setup.runtime.shutdown(30.0)


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakes"), *LIBRARIES)


@pytest.fixture(scope="session")
def fake_cuda(fake_libraries: Path) -> FakeCuda:
    if real_driver():
        pytest.skip("a real CUDA driver is here, which the one for tests must not hide; the gpu tests use it")
    return FakeCuda(fake_libraries)


@pytest.fixture
def fake_cufile(fake_cuda: FakeCuda) -> Iterator[FakeCufile]:
    fake = FakeCufile(fake_cuda.cufile_path)
    yield fake
    fake.heal()
