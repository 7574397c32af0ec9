# SPDX-License-Identifier: Apache-2.0
"""Tables of what ``compare.py`` has measured.

python packages/tutti-vllm/benchmarks/serving_gpu/report.py result.json
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

__all__ = ["table"]

COMPUTED = "vLLM alone, computed"


def table(result: dict[str, Any]) -> str:
    """Return all tables as Markdown: medians."""
    tables = [_first_tokens(result), _decoding(result), _hit_rates(result)]
    return "\n\n".join(part for part in tables if part)


def _first_tokens(result: dict[str, Any]) -> str:
    found = result.get("first_token", {})
    if not found:
        return ""
    head = " | ".join(f"{length:,}" for length in result["lengths"])
    lines = [
        f"| time to first token, ms | {head} | hit tokens | answers |",
        "| --- |" + " ---: |" * len(result["lengths"]) + " ---: | --- |",
    ]
    expected = found.get(COMPUTED, {}).get("tokens")
    for name, entry in found.items():
        cells = " | ".join(
            f"{statistics.median(column) * 1e3:,.0f}" for column in zip(*entry["seconds"], strict=True)
        )
        same = "" if expected is None else ("same" if _same(entry["tokens"], expected) else "differ")
        lines.append(f"| {name} | {cells} | {entry['hits'][-1][-1]:,} | {same} |")
    return "\n".join(lines)


def _same(tokens: list[list[list[int]]], expected: list[list[list[int]]]) -> bool:
    return all(mine == theirs for mine, theirs in zip(tokens, expected, strict=False))


def _decoding(result: dict[str, Any]) -> str:
    found = result.get("decoding", {})
    if not found:
        return ""
    lines = [
        "| decoding, medians | vLLM alone | with Tutti | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    for kind, systems in found.items():
        if "tutti" not in systems or "alone" not in systems:
            continue
        for what, key, factor in (("ms a token", "token_seconds", 1e3), ("s in all", "seconds", 1.0)):
            one, other = (
                statistics.median(each[key] for each in systems[system]) for system in ("alone", "tutti")
            )
            lines.append(
                f"| {kind}: {what} | {one * factor:.3f} | {other * factor:.3f} | {other / one:.3f} |"
            )
    return "\n".join(lines)


def _hit_rates(result: dict[str, Any]) -> str:
    found = result.get("hit_rates", {})
    if not found:
        return ""
    shares = list(next(iter(found.values())))
    lines = [
        f"| first token, ms, by stored share of {result['settings']['hit_length']:,} tokens | "
        + " | ".join(f"{share} %" for share in shares)
        + " |",
        "| --- |" + " ---: |" * len(shares),
    ]
    for system, entry in found.items():
        cells = " | ".join(
            f"{statistics.median(each['seconds'] for each in entry[share]) * 1e3:,.0f}" for share in shares
        )
        lines.append(f"| {system} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
