# SPDX-License-Identifier: Apache-2.0
"""Hit rate over capacity, one line a policy, as PNG. Needs matplotlib, of the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutti_engine.errors import TuttiError
from tutti_engine.simulator.sweep import CLAIRVOYANT, Row

__all__ = ["PlotError", "write_plot", "write_plots"]

WIDTH, HEIGHT = 4.2, 3.2
"""Inches of one panel."""

COLUMNS = 3

DPI = 90


class PlotError(TuttiError):
    """No plot can be made."""


def write_plot(path: Path, rows: Sequence[Row], *, title: str = "") -> None:
    """Write one panel. Raises PlotError without matplotlib."""
    write_plots(path, {title: rows})


def write_plots(path: Path, panels: Mapping[str, Sequence[Row]]) -> None:
    """Write a panel a trace, side by side. Raises PlotError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlotError(f"{error.name} is not installed: pip install 'tutti-engine[plot]'") from None
    across = min(COLUMNS, len(panels))
    down = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flat
    for axis, (title, rows) in zip(axes, panels.items()):
        draw(axis, rows, title)
    for axis in list(axes)[len(panels) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=DPI)


def draw(axis: Any, rows: Sequence[Row], title: str) -> None:
    """Draw one panel."""
    for policy in dict.fromkeys(row.policy for row in rows):
        points = sorted((row.share, row.block_hit_rate) for row in rows if row.policy == policy)
        shares, rates = zip(*points)
        style = "--" if policy == CLAIRVOYANT else "-"
        axis.plot([100 * share for share in shares], rates, style, marker=".", label=policy)
    axis.set_xscale("log")
    axis.set_title(title)
    axis.set_xlabel("capacity, % of different blocks")
    axis.set_ylabel("prompt blocks hit")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
