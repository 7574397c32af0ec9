# SPDX-License-Identifier: Apache-2.0
"""How a guest tells its host what became of each check: a line of JSON, ``{"check", "error", "seconds"}``."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["parse", "report"]

T = TypeVar("T")


def report(subject: T, checks: Sequence[Callable[[T], None]]) -> None:
    """Run the checks in their order, also after a failed one."""
    for check in checks:
        started = time.monotonic()
        error = ""
        try:
            check(subject)
        except Exception:
            error = traceback.format_exc()
        line = {"check": check.__name__, "error": error, "seconds": round(time.monotonic() - started, 2)}
        print(json.dumps(line), flush=True)


def parse(printed: str) -> dict[str, dict[str, Any]]:
    """The host's side: check -> its line."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {line["check"]: line for line in lines if "check" in line}
