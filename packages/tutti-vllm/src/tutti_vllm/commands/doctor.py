# SPDX-License-Identifier: Apache-2.0
"""What ``tutti doctor`` shall say about vLLM, and about a shared store."""

from __future__ import annotations

from tutti_vllm.commands.doctor_shared import examine_shared
from tutti_vllm.compat import UnsupportedVllmError, check_vllm, untested

__all__ = ["examine"]


def examine() -> list[dict[str, str]]:
    """Return what is said of vLLM, and of the shared store if the environment names one."""
    return [*examine_vllm(), *examine_shared()]


def examine_vllm() -> list[dict[str, str]]:
    """Return one finding: the version and whether the tests ran it."""
    try:
        found = check_vllm()
    except UnsupportedVllmError as error:
        fix = "install a supported version beside tutti-vllm"
        return [{"verdict": "fail", "name": "vLLM", "found": str(error), "fix": fix}]
    news = untested(found)
    if news is not None:
        fix = "run a version that the tests run, or look closely"
        return [{"verdict": "warn", "name": "vLLM", "found": f"{found}. {news}", "fix": fix}]
    return [{"verdict": "ok", "name": "vLLM", "found": f"{found}, which the tests run", "fix": ""}]
