# SPDX-License-Identifier: Apache-2.0
"""The README's table of settings, made from the code: ``python -m tutti_vllm.settings.table`` prints it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from typing import Any

from tutti_engine import PolicySettings
from tutti_vllm.settings.settings import Settings
from tutti_vllm.settings.shared import SharedSettings

__all__ = ["markdown", "meanings"]

_KEYS = {"roots": "root"}
"""What users write, where it differs from the field."""

_DEFAULTS = {"capacity_bytes": "required", "roots": "`tutti` in the user's cache directory"}
"""Defaults that no value shows."""


def meanings(cls: type) -> dict[str, str]:
    """Return what the docstring of a dataclass says of each of its attributes, on one line."""
    text = inspect.getdoc(cls) or ""
    part = text.partition("Attributes:\n")[2].split("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", part, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", meaning).strip().rstrip(".") for name, meaning in entries}


def markdown() -> str:
    """Return the table: each setting with its default and its meaning."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for cls in (Settings, PolicySettings, SharedSettings):
        said = meanings(cls)
        for each in dataclasses.fields(cls):
            if each.name in ("policies", "shared"):
                continue
            key = _KEYS.get(each.name, each.name)
            default = _DEFAULTS.get(each.name) or _shown(each.default)
            lines.append(f"| `{key}` | {default} | {said[each.name].replace('``', '`')} |")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    return "none" if default is None else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    print(markdown(), end="")
