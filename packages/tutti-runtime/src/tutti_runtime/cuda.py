# SPDX-License-Identifier: Apache-2.0
"""CUDA beside the runtime: pinned windows, gates that streams wait on, words that streams write.

Nothing here needs CUDA to be installed until it is called, and importing it makes no context. Streams are
given as numbers (``CUstream``, ``cudaStream_t``) or as objects with ``cuda_stream`` (``torch.cuda.Stream``).
The calling thread's current device stays as it is, and no call waits for a device.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tutti_runtime import _core, config
from tutti_runtime._anonymous import AnonymousMemory
from tutti_runtime.ordering import native_stream
from tutti_runtime.runtime import Runtime

__all__ = [
    "PinnedBuffer",
    "Word",
    "allocate_pinned",
    "is_available",
    "stream_wait_gate",
    "stream_write_word",
    "why_unavailable",
    "word_pointer",
]


class Word(Protocol):
    """A 64-bit word in registered memory and a value: what ``Gate`` and ``WordDependency`` are."""

    @property
    def memory(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> int: ...


def why_unavailable() -> str | None:
    """Why CUDA cannot be used here; ``None`` where it can. Loads and initialises the driver."""
    try:
        _core.cuda_require()
    except OSError as error:
        return error.strerror or str(error)
    return None


def is_available() -> bool:
    """Whether CUDA can be used here. Loads and initialises the driver."""
    return why_unavailable() is None


class _PinnedArea:
    """Mapped memory and its pin: the owner of every array over it."""

    def __init__(self, size: int, device: int) -> None:
        self._pin: Any = None
        self._memory = AnonymousMemory(size)
        room = self._memory.room
        self.address = self._memory.address
        self.huge_pages = self._memory.huge_pages
        self.numa_node = _core.numa_node(_core.cuda_pci_bus_id(device))
        if self.numa_node >= 0:
            _core.prefer_node(self.address, room, self.numa_node)
        # Pinning makes the pages, so it comes after all that says where they go and how large they are.
        self._pin = _core.HostPin(self.address, room, device)
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }

    def unpin(self) -> None:
        self._pin = None

    def __del__(self) -> None:
        self.unpin()  # before the mapping goes


class PinnedBuffer:
    """Host memory that CUDA has pinned, on the NUMA node beside a device. Made by :func:`allocate_pinned`.

    ``bytes`` is a NumPy array over it; ``numpy.asarray(buffer)`` and, from Python 3.12 on,
    ``memoryview(buffer)`` work too. It is a context manager. ``address`` (a multiple of 64 KiB), ``nbytes``,
    ``device``, ``numa_node`` (-1: the system names none) and ``huge_pages`` (whether the system was asked for
    them) say what it is.
    """

    def __init__(self, size: int, device: int) -> None:
        self._area = _PinnedArea(size, device)
        self._bytes: NDArray[np.uint8] | None = np.asarray(self._area)
        self.nbytes = size
        self.device = device
        self.address = self._area.address
        self.numa_node = self._area.numa_node
        self.huge_pages = self._area.huge_pages

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The memory as an array of bytes. Raises ``ValueError`` after :meth:`close`."""
        if self._bytes is None:
            raise ValueError("this pinned buffer is closed")
        return self._bytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return dict(self.bytes.__array_interface__)

    def __buffer__(self, flags: int) -> memoryview:
        return self.bytes.data

    def close(self) -> None:
        """Unpin the memory; it goes back to the system when the last array over it has gone.

        Unregister it from runtimes and finish copies before.
        """
        self._area.unpin()
        self._bytes = None

    def __enter__(self) -> PinnedBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._bytes is None else f"address={self.address:#x}"
        return (
            f"<PinnedBuffer {state} nbytes={self.nbytes} device={self.device} numa_node={self.numa_node} "
            f"huge_pages={self.huge_pages}>"
        )


def allocate_pinned(size: int, *, device: int = 0) -> PinnedBuffer:
    """Allocate ``size`` bytes (a multiple of 4 KiB) of pinned host memory, local to a CUDA device.

    Huge pages are used where the system gives them. Register it with ``kind="pinned_host"``. Raises
    ``ValueError`` for a bad size or device, ``OSError`` where CUDA is missing or memory cannot be pinned.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0 or size % 4096:
        raise ValueError(f"size={size!r} must be an int, a multiple of 4096 and more than 0")
    return PinnedBuffer(size, config.check_device(device))


def stream_wait_gate(runtime: Runtime, stream: object, gate: Word) -> None:
    """Let a stream wait until a gate of ``runtime.submit(..., gate=gate)`` is open.

    The gate opens whatever becomes of the batch: what runs behind it reads the status word, 8 bytes behind
    the gate's (:func:`word_pointer`), before it trusts the bytes. Call it before or after ``submit``. The
    stream waits until the word has reached the gate's value, in wrapping order, so a word that counts up
    serves many batches. Raises ``OSError`` with CUDA's error, ``InvalidHandleError`` or ``ValueError``.
    """
    address = runtime._core.word_address(gate.memory, gate.offset, 16)
    _core.stream_wait_word(native_stream(stream), address, gate.value)


def stream_write_word(runtime: Runtime, stream: object, word: Word) -> None:
    """Let a stream store ``word.value`` when all that was put on it before has finished.

    With ``runtime.submit(..., after=word)`` a batch waits for that: cheaper than an event, since nothing asks
    the driver. Raises as :func:`stream_wait_gate` does.
    """
    address = runtime._core.word_address(word.memory, word.offset, 8)
    _core.stream_write_word(native_stream(stream), address, word.value)


def word_pointer(runtime: Runtime, memory: int, offset: int, *, device: int = 0) -> int:
    """The address under which kernels on ``device`` read a 64-bit word of registered pinned memory."""
    return _core.cuda_device_pointer(runtime._core.word_address(memory, offset, 8), device)
