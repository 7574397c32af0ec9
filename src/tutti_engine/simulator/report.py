# SPDX-License-Identifier: Apache-2.0
"""Results of a sweep as cells of a table, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutti_engine.simulator.sweep import Row

__all__ = ["COLUMNS", "cells", "figures", "write_csv", "write_json"]

COLUMNS = (
    "policy",
    "capacity",
    "share",
    "hit blocks",
    "hit tokens",
    "read GB",
    "written GB",
    "write ampl.",
    "drive writes/day",
    "evicted",
    "not stored",
    "memory",
)


def cells(row: Row) -> list[str]:
    """Return one text a column."""
    start = [row.policy, f"{row.capacity_chunks:,}", f"{row.share:.1%}", f"{row.block_hit_rate:.4f}"]
    outcome = row.outcome
    if outcome is None:
        return [*start, *[""] * (len(COLUMNS) - len(start))]
    memory = "" if outcome.memory_bytes is None else f"{outcome.memory_bytes / 1e6:.1f} MB"
    return [
        *start,
        f"{outcome.token_hit_rate:.4f}",
        f"{outcome.read_bytes / 1e9:,.0f}",
        f"{outcome.written_bytes / 1e9:,.0f}",
        f"{outcome.write_amplification:.2f}",
        f"{outcome.drive_writes_a_day:,.1f}",
        f"{outcome.evicted:,}",
        f"{outcome.refused + outcome.over_budget + outcome.over_quota:,}",
        memory,
    ]


def figures(row: Row) -> dict[str, Any]:
    """Return everything about a result, flat; what does not apply is left out."""
    found: dict[str, Any] = {
        "policy": row.policy,
        "capacity_chunks": row.capacity_chunks,
        "capacity_share": row.share,
        "block_hit_rate": row.block_hit_rate,
    }
    outcome = row.outcome
    if outcome is not None:
        found |= asdict(outcome)
        found["token_hit_rate"] = outcome.token_hit_rate
        found["write_amplification"] = outcome.write_amplification
        found["drive_writes_a_day"] = outcome.drive_writes_a_day
    return found


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write one line a result."""
    table = [figures(row) for row in rows]
    names = list(dict.fromkeys(name for line in table for name in line))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)


def write_json(path: Path, trace: str, rows: Sequence[Row]) -> None:
    """Write one object with the trace's name and all results."""
    text = json.dumps({"trace": trace, "rows": [figures(row) for row in rows]}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
