# SPDX-License-Identifier: Apache-2.0
"""A CUDA driver and a cuFile of our own, built from ``fakes`` and loaded in place of the real ones."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_kit import CudaError, Driver

from tutti_runtime import nvme_layers

FAKES = Path(__file__).parent / "fakes"
NOT_READY = 600
INCLUDE = Path(__file__).parent.parent / "include"
LIBRARIES = {"libcuda.so.1": "fake_cuda.cpp", "libcufile.so.0": "fake_cufile.cpp"}
WITH_KERNELS = {"libcuda.so.1": "fake_kernels.cpp"}
"""A driver that runs the library's kernels too, as threads."""


def build(folder: Path, *names: str, sources: dict[str, str] = LIBRARIES) -> Path:
    """Compile the named libraries into `folder`."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: the CUDA driver for tests cannot be built")
    folder.mkdir(exist_ok=True)
    for name in names:
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{name}"]
        command += ["-I", str(INCLUDE), "-o", str(folder / name), str(FAKES / sources[name])]
        subprocess.run(command, check=True)
    return folder


def real_driver() -> bool:
    """Whether a real driver is here: the fake must not hide it. Asked in a process of its own."""
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def teams_driver() -> Driver:
    """The driver of a GPU that can run the library's kernel; skips the test where one of them is missing."""
    if not real_driver():
        pytest.skip("no CUDA driver is installed here")
    if nvme_layers.missing_kernel():
        pytest.skip(nvme_layers.missing_kernel())
    try:
        return Driver()
    except CudaError as error:
        pytest.skip(f"no CUDA device here: {error}")


class FakeCuda:
    """What a test does to the driver. Events and streams are numbers."""

    def __init__(self, folder: Path) -> None:
        # A library that is loaded already serves every later dlopen of its name.
        self.cuda = ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self.cufile_path = str(folder / "libcufile.so.0")
        self.cuda.fake_cuda_malloc.restype = ctypes.c_void_p
        self.cuda.fake_cuda_malloc.argtypes = [ctypes.c_uint64, ctypes.c_int]
        self.cuda.fake_cuda_stream.restype = ctypes.c_void_p
        self.cuda.fake_cuda_stream_idle.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.cuda.fake_cuda_set_event.argtypes = [ctypes.c_uint64, ctypes.c_int]
        self.cuda.fake_cuda_destroy_event.argtypes = [ctypes.c_uint64]
        self.cuda.fake_cuda_copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64]
        self.cuda.cuCtxGetCurrent.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
        self._events = 100

    def event(self, result: int = NOT_READY) -> int:
        self._events += 1
        self.set(self._events, result)
        return self._events

    def set(self, event: int, result: int = 0) -> None:
        self.cuda.fake_cuda_set_event(event, result)

    def destroy(self, event: int) -> None:
        self.cuda.fake_cuda_destroy_event(event)

    def stream(self, device: int = 0) -> int:
        return int(self.cuda.fake_cuda_stream(device))

    def idle(self, stream: int, seconds: float = 20.0) -> bool:
        return bool(self.cuda.fake_cuda_stream_idle(stream, int(seconds * 1000)))

    def record(self, result: int = 0, then: int = 0) -> None:
        """What recording an event answers, and what the event becomes when its stream has passed it."""
        self.cuda.fake_cuda_record(result, then)

    @property
    def events_made(self) -> int:
        return int(self.cuda.fake_cuda_events_made())

    def copy(self, stream: int, to: int, source: int, size: int) -> None:
        assert self.cuda.fake_cuda_copy(stream, to, source, size) == 0

    def malloc(self, size: int, device: int = 0) -> int:
        return int(self.cuda.fake_cuda_malloc(size, device))

    def current(self) -> int | None:
        context = ctypes.c_void_p()
        assert self.cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    @property
    def pinned(self) -> int:
        return int(self.cuda.fake_cuda_registered())

    @property
    def pinned_in_all(self) -> int:
        return int(self.cuda.fake_cuda_registered_in_all())

    @property
    def contexts(self) -> int:
        return int(self.cuda.fake_cuda_contexts_retained())


class FakeCufile:
    """What a test does to cuFile; :meth:`heal` takes it all back."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)

    def refuse_handles(self, error: int, cuda: int = 0) -> None:
        self.library.fake_cufile_refuse_handle(error, cuda)

    def refuse_buffers(self, error: int) -> None:
        self.library.fake_cufile_refuse_buffer(error)

    def answer(self, result: int, errno: int = 0) -> None:
        self.library.fake_cufile_io(result, errno)

    def most_bytes(self, count: int) -> None:
        self.library.fake_cufile_most_bytes(count)

    def heal(self) -> None:
        self.refuse_handles(0)
        self.refuse_buffers(0)
        self.answer(0)
        self.most_bytes(0)

    @property
    def handles(self) -> int:
        return int(self.library.fake_cufile_handles())

    @property
    def buffers(self) -> int:
        return int(self.library.fake_cufile_buffers())

    @property
    def calls_without_context(self) -> int:
        return int(self.library.fake_cufile_without_context())
