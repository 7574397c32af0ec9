# SPDX-License-Identifier: Apache-2.0
"""The log lines and metrics that the operating guide explains are those of the sources."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.layers import ROOT

GUIDE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
TABLE = GUIDE.partition("## What you see, what it means, what to do")[2]
QUOTED = re.findall(r"^\| `([^`]+)` \|", TABLE, re.MULTILINE)
ANY = "…"
PLACE = re.compile(r"%[-.\d]*[a-z]")


def literals(node: ast.AST) -> Iterator[str]:
    """Every text of a source; what is filled in later is ``ANY``."""
    inner = set()
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            inner.update(map(id, each.values))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in inner:
            yield PLACE.sub(ANY, each.value)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    folders = []
    for module in ("tutti_engine", "tutti_vllm"):
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"{module} is not installed here")
        folders.append(Path(next(iter(spec.submodule_search_locations))))
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return [text for file in files for text in literals(ast.parse(file.read_text(encoding="utf-8")))]


def found(part: str, texts: list[str]) -> bool:
    """Whether a source has this part of a line; what differs in the line may be spelt out in the source."""
    return any(part in text for text in texts)


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_line_stands_in_the_sources(line: str, texts: list[str]) -> None:
    parts = [part for part in line.split(ANY) if len(part.strip(" :().;,")) > 2]
    assert parts, "a quotation of nothing but what differs"
    # Errors are put together from a frame and a reason, so each part is looked for by itself, but whole.
    reasons = [
        piece for part in parts for piece in re.split(r"(?<=^: )|(?=; name another root)", part) if piece
    ]
    assert [
        part for part in reasons if not found(part.strip(), texts) and not found(part.strip(" :"), texts)
    ] == []


def test_there_is_much_to_check() -> None:
    assert len(QUOTED) > 20


def test_the_metrics_that_the_guide_names_exist() -> None:
    table = pytest.importorskip("tutti_vllm.metrics.metric_table", reason="tutti-vllm is not installed here")
    named = set(re.findall(r"vllm:tutti_\w+", GUIDE))
    assert named and named <= {metric.shown_name for metric in table.METRICS}


def test_the_settings_that_the_guide_names_exist() -> None:
    settings = pytest.importorskip("tutti_vllm.settings.settings", reason="tutti-vllm is not installed here")
    policies = set(settings.PolicySettings.names())
    fields = set(settings.Settings.__dataclass_fields__) | policies | {"root"}
    first_cells = re.findall(r"^\| `(\w+)(?:: \w+)?` \| [a-z]", GUIDE, re.MULTILINE)
    assert {"daily_write_bytes", "admission"} <= set(first_cells)
    assert set(first_cells) <= fields
