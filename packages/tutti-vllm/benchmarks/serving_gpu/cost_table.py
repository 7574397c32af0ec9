# SPDX-License-Identifier: Apache-2.0
"""What ``costs.py`` found, as tables."""

from __future__ import annotations

import statistics
from typing import Any

import phases
from goals import goals

__all__ = ["table"]


def table(found: dict[str, Any]) -> str:
    """Return everything as Markdown: medians in milliseconds, hits, and the milestones of loads."""
    text = []
    for part, title in (
        ("token", "ms a token"),
        ("whole", "ms in all"),
        ("new", "new prompt: first token, ms"),
        ("stored", "stored prompt: first token, ms"),
        ("layers", "first token, ms"),
        ("drive", "stored on a drive: first token, ms"),
    ):
        kinds = found.get(part, {})
        names = list(dict.fromkeys(name for kind in kinds.values() for name in kind))
        if not names:
            continue
        text.append(f"| {title} | " + " | ".join(kinds) + " |\n| --- |" + " ---: |" * len(kinds))
        for name in names:
            cells = [kinds[kind].get(name) for kind in kinds]
            shown = ["" if cell is None else f"{statistics.median(cell) * 1e3:.2f}" for cell in cells]
            text.append(f"| {name} | " + " | ".join(shown) + " |")
    text += [*_hits(found.get("hits", {}), "hits"), *_hits(found.get("drive hits", {}), "hits, on a drive")]
    for length, variants in found.get("loads", {}).items():
        text.append(f"\nmilestones of loads of {length} tokens, ms after arrival, medians:")
        for variant, entries in variants.items():
            stones = {
                event: [entry["milestones"][event] for entry in entries if event in entry["milestones"]]
                for event in phases.EVENTS
            }
            shown = [f"{event} {statistics.median(each):.1f}" for event, each in stones.items() if each]
            text.append(f"- {variant}: " + ", ".join(shown))
            steps: dict[str, list[str]] = {}
            for entry in entries[-1:]:
                for name, (count, median, total) in entry["spans"].items():
                    steps[name] = [f"{count} x {median:.2f} = {total:.1f}"]
            text.append("  " + ", ".join(f"{name} {each[0]}" for name, each in steps.items()))
    for name, calls in found.get("calls", {}).items():
        steps = max(1, calls.get("build_connector_meta", (1, 0.0))[0])
        each = {what: count * mean / steps for what, (count, mean) in calls.items()}
        shown = ", ".join(f"{what} {us:.1f}" for what, us in each.items())
        text.append(f"callbacks, {name}: {sum(each.values()):.1f} us a step ({steps} steps): {shown}")
    for share, names in found.get("overlap", {}).items():
        for name, values in names.items():
            shown = values
            if isinstance(values, dict):
                shown = ", ".join(f"{what} {value:.3f}" for what, value in values.items())
            text.append(f"overlap, {name}, {share}: {shown}")
    for name, lines in found.get("log", {}).items():
        text += [
            f"{name} said: {line}" for line in dict.fromkeys(lines) if " go by " in line or "WARN" in line
        ]
    for name, error in found.get("failed", {}).items():
        text.append(f"{name} ended: {error[-300:]}")
    return "\n".join([*text, "", *goals(found)])


def _hits(hits: dict[str, dict[str, list[int]]], title: str) -> list[str]:
    """Return a line for each variant: the fewest and the most tokens of each length."""
    text = []
    for variant in dict.fromkeys(name for each in hits.values() for name in each):
        shown = []
        for length, each in hits.items():
            if variant in each:
                least, most = min(each[variant]), max(each[variant])
                seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
                shown.append(f"{seen} of {int(length):,}")
        text.append(f"{title}, {variant}: " + ", ".join(shown))
    return text
