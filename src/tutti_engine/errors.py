# SPDX-License-Identifier: Apache-2.0
"""Every error that the engine raises on purpose.

Each message names the value, the rule that it broke and what to do next, in one line.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ArchiveError",
    "BackendError",
    "CatalogueError",
    "GeometryError",
    "RootError",
    "StoreBusyError",
    "TuttiError",
]


class TuttiError(Exception):
    """Base of all errors of Tutti's Python packages."""


class ArchiveError(TuttiError, ValueError):
    """A file of exported chunks that is damaged, was cut short, or is of another format or namespace."""


class BackendError(TuttiError, ValueError):
    """A storage backend that does not exist, cannot be used, or speaks another version of the SPI."""


class GeometryError(TuttiError, ValueError):
    """Sizes that do not fit together: pages, blocks, chunks, capacity."""


class RootError(TuttiError, OSError):
    """A store directory that cannot be used. Keeps ``errno`` where the system gave one."""

    def __init__(self, message: str, *, path: Path, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno


class DeviceError(TuttiError, OSError):
    """A device refused what a mover needs."""


class StoreBusyError(TuttiError):
    """The store belongs to a running process."""

    def __init__(self, message: str, *, path: Path, pid: int | None) -> None:
        super().__init__(message)
        self.path = path
        self.pid = pid


class CatalogueError(TuttiError):
    """The catalogue cannot be read or written."""
