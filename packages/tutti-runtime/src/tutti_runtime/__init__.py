# SPDX-License-Identifier: Apache-2.0
"""Asynchronous storage runtime: batches of reads and writes between registered memory and opened targets."""

from __future__ import annotations

from tutti_runtime.errors import (
    BusyError,
    ExtentError,
    ForkedRuntimeError,
    InvalidHandleError,
    InvalidUriError,
    RuntimeClosedError,
    TuttiRuntimeError,
)
from tutti_runtime.extents import (
    EXTENT_DTYPE,
    EXTENT_REASONS,
    ExtentMap,
    ExtentSignature,
    Revalidation,
    resolve_extents,
)
from tutti_runtime.factories import (
    make_file_runtime,
    make_memory_runtime,
    make_nvme_runtime,
    make_runtime,
    make_striped_runtime,
)
from tutti_runtime.host_memory import HostMemory
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
from tutti_runtime.runtime import Runtime
from tutti_runtime.windows import submit_all
from tutti_runtime.write_policy import WritePolicy

__version__ = "0.1.0"

__all__ = [
    "EXTENT_DTYPE",
    "EXTENT_REASONS",
    "FLUSH",
    "READ",
    "REQUEST_DTYPE",
    "WRITE",
    "BusyError",
    "Completion",
    "ExtentError",
    "ExtentMap",
    "ExtentSignature",
    "ForkedRuntimeError",
    "Gate",
    "HostMemory",
    "InvalidHandleError",
    "InvalidUriError",
    "OpenResult",
    "Revalidation",
    "Runtime",
    "RuntimeClosedError",
    "SubmitResult",
    "TuttiRuntimeError",
    "WordDependency",
    "WritePolicy",
    "__version__",
    "make_file_runtime",
    "make_memory_runtime",
    "make_nvme_runtime",
    "make_runtime",
    "make_striped_runtime",
    "resolve_extents",
    "submit_all",
]
