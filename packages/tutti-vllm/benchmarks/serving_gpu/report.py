# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of what ``compare.py`` and ``families.py`` have measured.

    python packages/tutti-vllm/benchmarks/serving_gpu/report.py result.json
    ... result.json --keep docs/performance/h200.json --png docs/performance/h200.png
    ... docs/performance/h200.json --page docs/performance.md

``--keep`` writes the result without answers and paths; ``--page`` puts the tables between a page's marks
``<!-- tables -->`` and ``<!-- end of tables -->``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

__all__ = ["kept", "table", "with_tables"]

COMPUTED = "vLLM alone, computed"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def table(result: dict[str, Any]) -> str:
    """Return all tables as Markdown: medians."""
    tables = [_first_tokens(result), _ratios(result), _decoding(result), _hit_rates(result)]
    return "\n\n".join(part for part in tables if part)


def medians(result: dict[str, Any], name: str) -> list[float] | None:
    """Return the milliseconds to the first token for each length, or None for what was not measured."""
    entry = result.get("first_token", {}).get(name)
    if entry is None:
        return None
    return [statistics.median(column) * 1e3 for column in zip(*entry["seconds"], strict=True)]


def _lengths(result: dict[str, Any]) -> tuple[str, str]:
    return (
        " | ".join(f"{length:,}" for length in result["lengths"]),
        " ---: |" * len(result["lengths"]),
    )


def _first_tokens(result: dict[str, Any]) -> str:
    found = result.get("first_token", {})
    if not found:
        return ""
    head, rule = _lengths(result)
    lines = [f"| time to first token, ms | {head} | hit tokens | answers |", f"| --- |{rule} ---: | --- |"]
    expected = found.get(COMPUTED, {}).get("tokens")
    for name, entry in found.items():
        cells = " | ".join(f"{each:,.0f}" for each in medians(result, name) or [])
        same = entry.get("same")
        if same is None and expected is not None:
            same = _same(entry["tokens"], expected)
        answers = "" if same is None else ("same" if same else "differ")
        lines.append(f"| {name} | {cells} | {entry['hits'][-1][-1]:,} | {answers} |")
    return "\n".join(lines)


def _same(tokens: list[list[list[int]]], expected: list[list[list[int]]]) -> bool:
    return all(mine == theirs for mine, theirs in zip(tokens, expected, strict=False))


def _ratios(result: dict[str, Any]) -> str:
    pairs = [
        ("tutti, restarted", COMPUTED, "stored prompts after a restart: of computing them"),
        ("tutti, restarted", "host memory, no restart", "the same, of vLLM's host-memory tier"),
        ("fs, restarted", "tutti, restarted", "vLLM's file-system tier after a restart: of Tutti"),
        ("tutti, first time", COMPUTED, "new prompts: of vLLM alone"),
        ("tutti layer-wise, restarted", "tutti, restarted", "layer-wise loads: of whole requests"),
    ]
    lines = []
    for one, other, text in pairs:
        mine, theirs = medians(result, one), medians(result, other)
        if mine is not None and theirs is not None:
            cells = " | ".join(f"{a / b:.2f}" for a, b in zip(mine, theirs, strict=True))
            lines.append(f"| {text} | {cells} |")
    if not lines:
        return ""
    head, rule = _lengths(result)
    return "\n".join([f"| ratios of the medians | {head} |", f"| --- |{rule}", *lines])


def _decoding(result: dict[str, Any]) -> str:
    found = result.get("decoding", {})
    if not found:
        return ""
    lines = ["| decoding, medians | vLLM alone | with Tutti | ratio |", "| --- | ---: | ---: | ---: |"]
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
    head = " | ".join(f"{share} %" for share in shares)
    length = result["settings"]["hit_length"]
    lines = [
        f"| first token, ms, by stored share of {length:,} tokens | {head} |",
        "| --- |" + " ---: |" * len(shares),
    ]
    for system, entry in found.items():
        cells = " | ".join(
            f"{statistics.median(each['seconds'] for each in entry[share]) * 1e3:,.0f}" for share in shares
        )
        lines.append(f"| {system} | {cells} |")
    return "\n".join(lines)


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without answers and without the names of files."""
    expected = result.get("first_token", {}).get(COMPUTED, {}).get("tokens")
    first = {
        name: {
            "seconds": [[round(each, 5) for each in row] for row in entry["seconds"]],
            "hits": entry["hits"],
            "same": None if expected is None else _same(entry["tokens"], expected),
        }
        for name, entry in result.get("first_token", {}).items()
    }
    settings = {key: value for key, value in result["settings"].items() if key not in ("folder", "json")}
    return result | {"first_token": first, "settings": settings}


def with_tables(page: str, tables: str) -> str:
    """Return a page with other tables between its marks. Raises ValueError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the first tokens. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name in result["first_token"]:
        axes.plot(result["lengths"], medians(result, name) or [], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="ms to the first token")
    axes.set_xticks(result["lengths"], [f"{length:,}" for length in result["lengths"]])
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    """Print, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    result = json.loads(options.result.read_text(encoding="utf-8"))
    print(table(result))
    if options.keep:
        options.keep.write_text(json.dumps(kept(result)) + "\n", encoding="utf-8")
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(with_tables(page, table(result)), encoding="utf-8")
    if options.png:
        draw(result, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
