# SPDX-License-Identifier: Apache-2.0
"""The tests for a GPU on a driver whose kernels are threads: whoever has a GPU finds tests that can pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_kit import INCLUDE, WITH_KERNELS, build, real_driver
from nvme_lab.machine import need_qemu

from tutti_runtime import nvme_layers

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if real_driver():
        pytest.skip("a real CUDA driver is here: the tests for a GPU run on it")
    if nvme_layers.missing_kernel():
        pytest.skip(nvme_layers.missing_kernel())
    if not INCLUDE.is_dir():
        pytest.skip("the library's headers, of which this driver is made, are not beside the tests")
    return build(tmp_path_factory.mktemp("kernels"), *WITH_KERNELS, sources=WITH_KERNELS)


def run_there(kernels: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"LD_LIBRARY_PATH": str(kernels), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_soft_controllers(kernels: Path) -> None:
    said = run_there(kernels, "test_nvme_gpu.py", "-k", "bytes_go or stream or by_the_device")
    assert "passed" in said and "skipped" not in said


def test_qemus_model(kernels: Path) -> None:
    need_qemu()
    said = run_there(kernels, "test_nvme_gpu_qemu.py")
    assert "passed" in said and "skipped" not in said
