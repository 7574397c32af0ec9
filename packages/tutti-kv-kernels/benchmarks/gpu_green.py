# SPDX-License-Identifier: Apache-2.0
"""Two green contexts of one device: some multiprocessors for transfers, the others for everything else.

Through the driver's own interface (``cuda.h`` since CUDA 12.4), as torch has no call for the rest of a split.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

__all__ = ["GreenContexts", "GreenError"]

SM_RESOURCE = 1
"""``CU_DEV_RESOURCE_TYPE_SM``."""
IGNORE_COSCHEDULING = 1
"""``CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING``: parts need not be whole groups of multiprocessors."""
DEFAULT_STREAM = 1
"""``CU_GREEN_CTX_DEFAULT_STREAM``; the driver demands it."""
NON_BLOCKING = 1
"""``CU_STREAM_NON_BLOCKING``."""


class GreenError(RuntimeError):
    """The driver refused a call; the message names both."""


class Resource(ctypes.Structure):
    """``CUdevResource``: 144 bytes, of which the number of multiprocessors is at 96."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("padding", ctypes.c_ubyte * 92),
        ("sm_count", ctypes.c_uint),
        ("more", ctypes.c_ubyte * 44),
    ]


class GreenContexts:
    """A part of a device's multiprocessors and the rest, each with a context and a stream.

    Attributes:
        sms: multiprocessors of the part and of the rest, as the driver has cut them.
        streams: handles of their streams, for ``torch.cuda.ExternalStream``.
    """

    def __init__(self, sms: int, device: int = 0, *, driver: Any = None, priority: int = -1) -> None:
        """Cut a device of which a primary context exists.

        Args:
            sms: least multiprocessors of the part; the driver rounds up, by whole groups from 8 on.
            device: number of the device.
            driver: libcuda, loaded if left out.
            priority: of the part's stream.

        Raises GreenError where the driver is missing, too old, or refuses.
        """
        try:
            self._driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
        except OSError as error:
            raise GreenError(f"no CUDA driver: {error}") from error
        handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        whole, part, rest = Resource(), Resource(), Resource()
        self._call("cuDeviceGetDevResource", handle, ctypes.byref(whole), ctypes.c_int(SM_RESOURCE))
        groups = ctypes.c_uint(1)
        self._call(
            "cuDevSmResourceSplitByCount",
            ctypes.byref(part),
            ctypes.byref(groups),
            ctypes.byref(whole),
            ctypes.byref(rest),
            ctypes.c_uint(0 if sms >= 8 else IGNORE_COSCHEDULING),
            ctypes.c_uint(sms),
        )
        self.sms = part.sm_count, rest.sm_count
        self._contexts: list[ctypes.c_void_p] = []
        self.streams: list[int] = []
        for resource, level in ((part, priority), (rest, 0)):
            self._make(handle, resource, level)

    def _make(self, device: ctypes.c_int, resource: Resource, priority: int) -> None:
        description, green, context, stream = (ctypes.c_void_p() for _ in range(4))
        self._call(
            "cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(resource), ctypes.c_uint(1)
        )
        self._call(
            "cuGreenCtxCreate", ctypes.byref(green), description, device, ctypes.c_uint(DEFAULT_STREAM)
        )
        self._call("cuCtxFromGreenCtx", ctypes.byref(context), green)
        self._call(
            "cuGreenCtxStreamCreate",
            ctypes.byref(stream),
            green,
            ctypes.c_uint(NON_BLOCKING),
            ctypes.c_int(priority),
        )
        self._contexts.append(context)
        self.streams.append(stream.value or 0)

    @contextlib.contextmanager
    def current(self, which: int) -> Iterator[None]:
        """Make a context the calling thread's own: 0 is the part's, 1 the rest's."""
        self._call("cuCtxPushCurrent_v2", self._contexts[which])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._driver, name)
        except AttributeError:
            raise GreenError(f"the CUDA driver has no {name}: green contexts came with CUDA 12.4") from None
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise GreenError(f"{name} failed with {code}: {(text.value or b'?').decode()}")
