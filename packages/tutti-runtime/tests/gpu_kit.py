# SPDX-License-Identifier: Apache-2.0
"""A little of the CUDA driver by ctypes: streams, events, device memory and copies. Also for the benchmark.

Every call makes its device's context current and restores the caller's. Nothing but what says so waits for a
device without a limit.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

NOT_READY = 600
_POINTER = ctypes.c_void_p


class CudaError(RuntimeError):
    """A call that CUDA refused; ``code`` is the CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


class Driver:
    """``libcuda.so.1``, initialised. Raises ``OSError`` without it and :class:`CudaError`."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def result(self, name: str, *arguments: object) -> int:
        return int(getattr(self.library, name)(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        code = self.result(name, *arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def count(self) -> int:
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def current(self) -> int | None:
        """The calling thread's context."""
        context = _POINTER()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value


class Gpu:
    """One device with its primary context. Streams, events and device addresses are numbers."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self.driver, self.ordinal = driver, ordinal
        self._device = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(self._device), ordinal)
        self._context = _POINTER()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.streams: list[int] = []
        self._events: list[int] = []
        self._memory: list[int] = []

    @contextmanager
    def current(self) -> Iterator[None]:
        self.driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(_POINTER()))

    def _make(self, call: str, kept: list[int], *arguments: object) -> int:
        made = ctypes.c_uint64()
        with self.current():
            self.driver.call(call, ctypes.byref(made), *arguments)
        kept.append(made.value)
        return made.value

    def stream(self, priority: int = 0) -> int:
        """A stream that does not wait for the default one; a priority below 0 goes before others."""
        return self._make("cuStreamCreateWithPriority", self.streams, 1, priority)

    def malloc(self, size: int) -> int:
        return self._make("cuMemAlloc_v2", self._memory, ctypes.c_size_t(size))

    def free(self, address: int) -> None:
        """Give memory back, which waits for all that runs on the device."""
        self._memory.remove(address)
        with self.current():
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(address))

    def wait_for_everything(self) -> None:
        """Wait for all that runs on the device: without a limit, as the driver has none."""
        with self.current():
            self.driver.call("cuCtxSynchronize")

    def pin(self, address: int, size: int) -> None:
        """Pin whole pages of the host for every device, under the addresses that they have."""
        portable_and_mapped = 3
        with self.current():
            arguments = (ctypes.c_void_p(address), ctypes.c_size_t(size), portable_and_mapped)
            self.driver.call("cuMemHostRegister_v2", *arguments)

    def unpin(self, address: int) -> None:
        """Undo :meth:`pin`, which waits for all that runs on the device."""
        with self.current():
            self.driver.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def record(self, stream: int) -> int:
        """A new event (without times) behind all that is on the stream."""
        event = self._make("cuEventCreate", self._events, 2)
        with self.current():
            self.driver.call("cuEventRecord", ctypes.c_uint64(event), _POINTER(stream))
        return event

    def copy_in(self, stream: int, device_address: int, host_address: int, size: int) -> None:
        arguments = (ctypes.c_uint64(device_address), _POINTER(host_address), ctypes.c_size_t(size))
        with self.current():
            self.driver.call("cuMemcpyHtoDAsync_v2", *arguments, _POINTER(stream))

    def copy_out(self, stream: int, host_address: int, device_address: int, size: int) -> None:
        arguments = (_POINTER(host_address), ctypes.c_uint64(device_address), ctypes.c_size_t(size))
        with self.current():
            self.driver.call("cuMemcpyDtoHAsync_v2", *arguments, _POINTER(stream))

    def idle(self, stream: int, seconds: float = 0.0) -> bool:
        """Whether all that is on the stream has finished, within a time."""
        end = time.monotonic() + seconds
        while True:
            with self.current():
                code = self.driver.result("cuStreamQuery", _POINTER(stream))
            if code != NOT_READY:
                if code:
                    raise CudaError("cuStreamQuery", code, "the stream failed")
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.0001)

    def close(self) -> None:
        """Destroy everything; the streams must be idle."""
        with self.current():
            for stream in self.streams:
                self.driver.call("cuStreamDestroy_v2", _POINTER(stream))
            for event in self._events:
                self.driver.call("cuEventDestroy_v2", ctypes.c_uint64(event))
            for address in self._memory:
                self.driver.call("cuMemFree_v2", ctypes.c_uint64(address))
        self.driver.call("cuDevicePrimaryCtxRelease_v2", self._device)
