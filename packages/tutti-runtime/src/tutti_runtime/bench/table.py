# SPDX-License-Identifier: Apache-2.0
"""The report as text, and as the table of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["as_markdown", "as_text", "update_readme"]

BEGIN, END = "<!-- bench table: begin -->", "<!-- bench table: end -->"
NEEDS = {
    "uring": "Linux 5.6 or later with io_uring allowed (containers often forbid it); no privileges",
    "posix": "nothing: any Linux, any file system",
    "cufile": "an NVIDIA GPU, `libcuda.so.1` and `libcufile.so.0`; of use for device memory",
    "memory": "nothing: for tests, `mem://` targets only",
}


def as_text(report: dict[str, Any]) -> str:
    """Tables for a person at a terminal."""
    lines = [_machine(report), ""]
    lines += [
        f"{'block':>9}  {'direction':9}  {'path':8} {'GB/s':>7} {'of fio':>7} {'CPU s/GB':>9} {'of fio':>7}"
    ]
    for row in sorted(report["transfer"], key=lambda row: (row["block"], row["direction"])):
        lines.append(
            f"{row['block'] >> 10:5d} KiB  {row['direction']:9}  {row['path']:8} {row['gbs']:7.2f} "
            f"{_ratio(row.get('ratio')):>7} {row['cpu_s_per_gb']:9.3f} {_ratio(row.get('cpu_ratio')):>7}"
        )
    if report.get("latency"):
        lines += ["", f"{'single reads':>20}  {'path':8} {'p50 us':>8} {'p99 us':>8}"]
        for row in report["latency"]:
            lines.append(
                f"{row['block'] >> 10:16d} KiB  {row['path']:8} {row['p50_us']:8.1f} {row['p99_us']:8.1f}"
            )
    if report.get("opening"):
        lines += ["", f"opening {report['opening']['files']} files, us a file"]
        lines += [f"{name:>20}  {value:8.1f}" for name, value in report["opening"]["us_per_file"].items()]
    if report.get("fio") is None:
        lines += ["", "fio is not there or was left out: no ratios"]
    return "\n".join(lines)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _machine(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    return (
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']} "
        f"({machine['architecture']}), {machine['file_system']} on a {machine['drive']}; "
        f"{settings['file_bytes'] >> 20} MiB file, depth {settings['depth']}, "
        f"O_DIRECT {'on' if settings['direct'] else 'off'}, medians of {settings['rounds']} rounds, "
        f"{report['fio'] or 'no fio'}, load average {machine['load']} when it began"
    )


def as_markdown(report: dict[str, Any]) -> str:
    """Data path x (bandwidth ratio to fio, CPU per GB, needs), worst and best over the blocks."""
    lines = [
        "| data path | bandwidth, part of fio's: read | write | CPU seconds per GB: read | write | needs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    measured = list(dict.fromkeys(row["path"] for row in report["transfer"]))
    for name in [*NEEDS, *(["fio"] if "fio" in measured else [])]:
        cells = []
        for key in ("ratio", "cpu_s_per_gb"):
            for direction in ("read", "write"):
                rows = [r for r in report["transfer"] if (r["path"], r["direction"]) == (name, direction)]
                cells.append(_span([row[key] for row in rows if row.get(key) is not None], name, key))
        lines.append(
            f"| {'fio' if name == 'fio' else f'`{name}`'} | {' | '.join(cells)} | {NEEDS.get(name, '')} |"
        )
    blocks = sorted({row["block"] >> 10 for row in report["transfer"]})
    note = f"Blocks of {', '.join(str(block) for block in blocks)} KiB; {_machine(report)}."
    return "\n".join([*lines, "", note])


def _span(values: list[float], name: str, key: str) -> str:
    if name == "fio" and key == "ratio":
        return "1"
    if not values:
        return "not measured here" if name == "cufile" else "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def update_readme(report: dict[str, Any], readme: Path) -> None:
    """Put the table between its two marks. Raises ``ValueError`` when they are not there."""
    text = readme.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{readme} must have the lines {BEGIN!r} and {END!r} once, in this order")
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    readme.write_text(f"{head}\n\n{as_markdown(report)}\n\n{tail}")
