# SPDX-License-Identifier: Apache-2.0
"""Errors of the storage runtime. What the operating system refuses arrives as ``OSError`` with errno and
filename."""

from __future__ import annotations

__all__ = [
    "BusyError",
    "ExtentError",
    "ForkedRuntimeError",
    "InvalidHandleError",
    "InvalidUriError",
    "RuntimeClosedError",
    "TuttiRuntimeError",
]


class TuttiRuntimeError(Exception):
    """Base of every error that this package defines."""


class InvalidHandleError(TuttiRuntimeError, ValueError):
    """A handle is stale, was consumed, is of another kind or belongs to another runtime."""


class InvalidUriError(TuttiRuntimeError, ValueError):
    """A target URI does not follow the grammar, or is for another data path."""


class BusyError(TuttiRuntimeError):
    """The target or memory still has I/O in flight: wait for it, then close or unregister."""


class RuntimeClosedError(TuttiRuntimeError):
    """``shutdown`` was called."""


class ForkedRuntimeError(TuttiRuntimeError):
    """The runtime was inherited by ``fork``; a child process makes its own."""


class ExtentError(TuttiRuntimeError):
    """A file's blocks must not be addressed on its device.

    ``reason`` is a key of ``tutti_runtime.EXTENT_REASONS``. ``extent`` is the one at fault as the kernel told
    it, ``(logical, physical, length, flags)`` in bytes, or ``None`` when the whole file is. ``path`` is the
    file's, where it is known.
    """

    reason: str = ""
    extent: tuple[int, int, int, int] | None = None
    path: str | None = None
