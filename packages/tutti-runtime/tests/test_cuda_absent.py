# SPDX-License-Identifier: Apache-2.0
"""Where there is no CUDA: nothing is loaded unasked, everything else works, what is asked for says what is
missing. Each case is a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cuda_kit import real_driver
from runtime_kit import child

TRY = """
    import errno
    import sys
    import tutti_runtime as tr
    from tutti_runtime import cuda
    from runtime_kit import Buffer
    buffer = Buffer(1 << 16)
    print(cuda.is_available(), cuda.why_unavailable())
    for ask in (
        lambda: tr.make_file_runtime(data_path="cufile", cufile_library=sys.argv[1]),
        lambda: cuda.allocate_pinned(1 << 16),
        lambda: tr.make_memory_runtime().register_memory(buffer.address, 1 << 16, kind="pinned_host"),
    ):
        try:
            ask()
        except OSError as error:
            print(errno.errorcode[error.errno], error)
        else:
            print("no error")
"""


def ask(folder: Path, environment: dict[str, str] | None = None) -> list[str]:
    """What it says for each thing asked for. An installed cuFile must not take the place of ours."""
    return child(TRY, str(folder / "libcufile.so.0"), environment=environment).splitlines()


@pytest.fixture
def no_driver() -> None:
    if real_driver():
        pytest.skip("a CUDA driver is installed here")


def libraries(fake: Path, folder: Path, *names: str) -> dict[str, str]:
    for name in names:
        shutil.copy(fake / name, folder / name)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_importing_and_host_io_load_no_cuda(fake_libraries: Path, tmp_path: Path) -> None:
    there = libraries(fake_libraries, tmp_path, "libcuda.so.1", "libcufile.so.0")
    code = """
        import tutti_runtime as tr
        from tutti_runtime import cuda
        from runtime_kit import Buffer
        buffer = Buffer(1 << 16)
        with tr.make_file_runtime() as runtime:
            runtime.register_memory(buffer.address, buffer.size)
            runtime.caps()
        maps = open("/proc/self/maps").read()
        print("libcuda" in maps or "libcufile" in maps)
    """
    assert child(code, environment=there) == "False"


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_every_request_names_it(tmp_path: Path) -> None:
    said = ask(tmp_path)
    assert said[0].startswith("False cannot load libcuda.so.1")
    assert len(said) == 4
    assert all(line.startswith("ENOENT") and "libcuda.so.1" in line for line in said[1:])


@pytest.mark.usefixtures("no_driver")
def test_cufile_is_never_called_before_the_driver_was_found(fake_libraries: Path, tmp_path: Path) -> None:
    there = libraries(fake_libraries, tmp_path, "libcufile.so.0")  # ends the process when called too early
    said = ask(tmp_path, there)
    assert said[1].startswith("ENOENT")
    assert "libcuda.so.1" in said[1]


def test_a_driver_without_a_device_says_so(fake_libraries: Path, tmp_path: Path) -> None:
    there = libraries(fake_libraries, tmp_path, "libcuda.so.1", "libcufile.so.0")
    said = ask(tmp_path, {**there, "FAKE_CUDA_INIT": "100"})
    assert "CUDA_ERROR_NO_DEVICE (100)" in said[0]
    assert all(line.startswith("ENODEV") for line in said[1:])


def test_without_cufile_the_rest_of_cuda_works(fake_libraries: Path, tmp_path: Path) -> None:
    there = libraries(fake_libraries, tmp_path, "libcuda.so.1")
    said = ask(tmp_path, there)
    assert said[0] == "True None"
    assert said[1].startswith("ENOENT")
    assert "libcufile.so.0" in said[1]
    assert said[2:] == ["no error", "no error"]


def test_a_cufile_driver_that_does_not_open_is_an_error(fake_libraries: Path, tmp_path: Path) -> None:
    there = libraries(fake_libraries, tmp_path, "libcuda.so.1", "libcufile.so.0")
    said = ask(tmp_path, {**there, "FAKE_CUFILE_OPEN": "5001"})
    assert said[1].startswith("ENODEV")
    assert "cuFileDriverOpen: cuFile error 5001" in said[1]


def test_an_open_cufile_driver_is_shared(fake_libraries: Path, tmp_path: Path) -> None:
    there = libraries(fake_libraries, tmp_path, "libcuda.so.1", "libcufile.so.0")
    said = ask(tmp_path, {**there, "FAKE_CUFILE_OPEN": "5026"})
    assert said[1:] == ["no error"] * 3
