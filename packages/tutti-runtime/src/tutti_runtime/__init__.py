# SPDX-License-Identifier: Apache-2.0
"""Asynchronous storage runtime: batches of reads and writes between registered memory and opened targets."""

from __future__ import annotations

from tutti_runtime.errors import (
    BusyError,
    ForkedRuntimeError,
    InvalidHandleError,
    InvalidUriError,
    RuntimeClosedError,
    TuttiRuntimeError,
)
from tutti_runtime.ordering import Gate, WordDependency
from tutti_runtime.requests import (
    FLUSH,
    READ,
    REQUEST_DTYPE,
    WRITE,
    Completion,
    OpenResult,
    SubmitResult,
)
from tutti_runtime.runtime import (
    Runtime,
    make_file_runtime,
    make_memory_runtime,
    make_runtime,
    make_striped_runtime,
)

__version__ = "0.1.0"

__all__ = [
    "FLUSH",
    "READ",
    "REQUEST_DTYPE",
    "WRITE",
    "BusyError",
    "Completion",
    "ForkedRuntimeError",
    "Gate",
    "InvalidHandleError",
    "InvalidUriError",
    "OpenResult",
    "Runtime",
    "RuntimeClosedError",
    "SubmitResult",
    "TuttiRuntimeError",
    "WordDependency",
    "__version__",
    "make_file_runtime",
    "make_memory_runtime",
    "make_runtime",
    "make_striped_runtime",
]
