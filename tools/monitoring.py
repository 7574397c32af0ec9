# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard as code: `python tools/monitoring.py` writes it beside the alert rules.

A panel is a title, what it says, its unit and its queries; the rest of Grafana's JSON follows from that.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "PANELS", "Panel", "dashboard", "metric_names", "queries"]

FOLDER = Path(__file__).resolve().parent.parent / "packages/tutti-vllm/src/tutti_vllm/monitoring"

WIDTH, HEIGHT = 24, 8
"""Of Grafana's grid, and of a panel in it."""

SERVER = 'model_name=~"$model", instance=~"$instance"'
RATE = "[$__rate_interval]"

SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """One panel; a title alone begins a row.

    Attributes:
        title: above it.
        says: what to see in it, and what to do about it.
        unit: Grafana's name of the unit.
        queries: PromQL and legend of each line.
        kind: Grafana's name of the panel.
        width: of the grid's 24 columns.
        most: upper end of the axis.
    """

    title: str
    says: str = ""
    unit: str = "short"
    queries: tuple[tuple[str, str], ...] = ()
    kind: str = "timeseries"
    width: int = 8
    most: float | None = None


def total(metric: str, by: str = "", more: str = "") -> str:
    """Return the rate of a counter, added up over servers but for some labels."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{{{SERVER}{more}}}{RATE}))"


def state(metric: str, by: str = "", how: str = "sum", more: str = "") -> str:
    """Return a gauge, added up (or else) over servers but for some labels."""
    return f"{how}{f' by ({by}) ' if by else ''}({metric}{{{SERVER}{more}}})"


def share(part: str, whole: str) -> str:
    """Return the quotient of two rates."""
    return f"{part} / {whole}"


def quantile(q: float, metric: str) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({q}, {total(f'{metric}_bucket', 'le')})"


PANELS: tuple[Panel, ...] = (
    Panel("How it goes"),
    Panel(
        "Servers without the cache",
        "More than 0: a server runs without the cache or a part of it. Its log, or tutti doctor, says why.",
        queries=((state("vllm:tutti_degraded"), ""),),
        kind="stat",
        width=4,
    ),
    Panel(
        "Prompt tokens from the cache",
        "Of all prompt tokens, those that were promised from the cache, beyond what vLLM had in memory.",
        "percentunit",
        ((share(total("vllm:tutti_hit_tokens_total"), total("vllm:tutti_prompt_tokens_total")), ""),),
        "stat",
        4,
    ),
    Panel(
        "Places taken",
        "At 100 % chunks are evicted for new ones, which is how a cache works.",
        "percentunit",
        ((share(state("vllm:tutti_resident_chunks"), state("vllm:tutti_capacity_chunks")), ""),),
        "stat",
        4,
    ),
    Panel(
        "Read from storage",
        unit="Bps",
        queries=((total("vllm:tutti_transfer_bytes_total", more=', direction="load"'), ""),),
        kind="stat",
        width=4,
    ),
    Panel(
        "Written to storage",
        "What wears the drives; daily_write_bytes bounds it.",
        "Bps",
        ((total("vllm:tutti_transfer_bytes_total", more=', direction="store"'), ""),),
        "stat",
        4,
    ),
    Panel(
        "Chunks that did not verify",
        "In the last 24 hours. More than a few: look at the drive (smartctl), then tutti verify.",
        queries=((f"sum(increase(vllm:tutti_corrupt_chunks_total{{{SERVER}}}[24h]))", ""),),
        kind="stat",
        width=4,
    ),
    Panel("Hits"),
    Panel(
        "Prompt tokens a second",
        "Where prompt tokens come from: computed are those neither vLLM's memory nor the cache had.",
        queries=(
            (total("vllm:tutti_prompt_tokens_total"), "all"),
            (total("vllm:tutti_hit_tokens_total"), "from the cache"),
            (total("vllm:prefix_cache_hits_total"), "from vLLM's memory"),
        ),
    ),
    Panel(
        "Prompts",
        unit="reqps",
        queries=(
            (total("vllm:tutti_prompts_total"), "all"),
            (total("vllm:tutti_hits_total"), "with a hit"),
        ),
    ),
    Panel(
        "Load or compute",
        "Hits that were weighed: compute means that loading would have taken longer. Many of them: the"
        " storage is slower than this GPU computes.",
        "ops",
        ((total("vllm:tutti_break_even_total", "answer"), "{{answer}}"),),
    ),
    Panel(
        "Time to the first token",
        "vLLM's own, of all requests.",
        "s",
        tuple((quantile(q, "vllm:time_to_first_token_seconds"), f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)),
    ),
    Panel(
        "Requests",
        "vLLM's own. Waiting includes those that wait for a load.",
        queries=(
            (state("vllm:num_requests_running"), "running"),
            (state("vllm:num_requests_waiting"), "waiting"),
        ),
    ),
    Panel(
        "Loads by mode",
        "async: the request waits beside the steps; layerwise: layers are loaded while earlier ones compute.",
        "ops",
        ((total("vllm:tutti_loads_total", "mode"), "{{mode}}"),),
    ),
    Panel("Transfers"),
    Panel(
        "Bandwidth while moving",
        "Bytes over the seconds in which something moved, of one rank. Compare with tutti bench.",
        "Bps",
        (
            (
                share(
                    total("vllm:tutti_transfer_bytes_total", "direction, path"),
                    total("vllm:tutti_transfer_seconds_total", "direction, path"),
                ),
                "{{direction}} {{path}}",
            ),
        ),
    ),
    Panel(
        "Busy ranks",
        "How many ranks moved something, on average. A load that is always near the number of ranks: the"
        " storage is what requests wait for.",
        queries=((total("vllm:tutti_transfer_seconds_total", "direction"), "{{direction}}"),),
    ),
    Panel(
        "Time of a load",
        "From the order until every page is there.",
        "s",
        tuple((quantile(q, "vllm:tutti_load_seconds"), f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)),
    ),
    Panel(
        "Waiting and under way",
        queries=(
            (state("vllm:tutti_queued_loads"), "loads that wait"),
            (state("vllm:tutti_transfers_under_way", "direction"), "{{direction}} under way"),
            (state("vllm:tutti_pending_plans", "direction"), "{{direction}} not reported by all ranks"),
        ),
    ),
    Panel(
        "Staging memory",
        "Full for long: transfers wait for it (load_staging_bytes, store_staging_bytes).",
        "percentunit",
        (
            (
                share(
                    state("vllm:tutti_staging_used_bytes", "direction"),
                    state("vllm:tutti_staging_bytes", "direction"),
                ),
                "{{direction}}",
            ),
        ),
        most=1.0,
    ),
    Panel(
        "Bytes moved",
        unit="Bps",
        queries=((total("vllm:tutti_transfer_bytes_total", "direction, path"), "{{direction}} {{path}}"),),
    ),
    Panel("The store"),
    Panel(
        "Room",
        unit="bytes",
        queries=(
            (state("vllm:tutti_resident_bytes"), "in use"),
            (state("vllm:tutti_capacity_bytes"), "capacity"),
        ),
    ),
    Panel(
        "Chunks that come and go",
        "lost: a load of it failed. Evicted nearly as fast as stored: more capacity would give more hits"
        " (tutti plan).",
        "ops",
        (
            (total("vllm:tutti_stored_chunks_total"), "stored"),
            (total("vllm:tutti_removed_chunks_total", "reason"), "{{reason}}"),
        ),
    ),
    Panel(
        "Chunks that were not stored",
        "no_room: the drive or the staging memory cannot keep up, or the disk is full.",
        "ops",
        ((total("vllm:tutti_dropped_chunks_total", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Write budget left",
        "Only with daily_write_bytes.",
        "bytes",
        ((state("vllm:tutti_write_budget_left_bytes"), "left"),),
    ),
    Panel("The shared store"),
    Panel(
        "Tokens from the shared store",
        "Only with shared_store: prompt tokens that were promised from there.",
        queries=((total("vllm:tutti_shared_hit_tokens_total"), "tokens"),),
    ),
    Panel(
        "Hits, and hits that were not taken",
        "lookup: the store said too late what it holds; turn: too much was on its way; compute: faster.",
        "ops",
        (
            (total("vllm:tutti_shared_hits_total"), "hits"),
            (total("vllm:tutti_shared_lookup_timeouts_total"), "lookup"),
            (total("vllm:tutti_shared_turn_refusals_total"), "turn"),
            (total("vllm:tutti_shared_break_even_total", "answer"), "{{answer}}"),
        ),
    ),
    Panel(
        "To and from the shared store",
        unit="Bps",
        queries=(
            (total("vllm:tutti_shared_bytes_total", "direction"), "{{direction}}"),
            (state("vllm:tutti_shared_pending_plans", "direction"), "{{direction}} under way"),
        ),
    ),
    Panel(
        "Chunks of the shared store",
        "Dropped: not written, as too much was on its way there.",
        "ops",
        (
            (total("vllm:tutti_shared_chunks_total", "direction"), "{{direction}}"),
            (total("vllm:tutti_shared_dropped_chunks_total"), "dropped"),
        ),
    ),
    Panel(
        "Trouble with the shared store",
        "lost: chunks that it said to have and had not, or that did not verify. All of it costs time alone.",
        "ops",
        (
            (total("vllm:tutti_shared_failed_chunks_total", "direction"), "{{direction}} failed"),
            (total("vllm:tutti_shared_failed_transfers_total", "direction, kind"), "{{direction}} {{kind}}"),
            (total("vllm:tutti_shared_lost_chunks_total", "reason"), "lost: {{reason}}"),
            (total("vllm:tutti_shared_lookups_total", "outcome"), "lookup {{outcome}}"),
        ),
    ),
    Panel(
        "Shared store in use",
        "1: in use. Paused 1: after repeated failures, tried again now and then.",
        queries=(
            (state("vllm:tutti_shared_up", "instance", "min"), "{{instance}} in use"),
            (
                state("vllm:tutti_shared_breaker_open", "instance, direction", "max"),
                "{{instance}} {{direction}} paused",
            ),
        ),
        most=1.0,
    ),
    Panel(
        "Time of a load from the shared store",
        "From the order until every page is there.",
        "s",
        tuple((quantile(q, "vllm:tutti_shared_load_seconds"), f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)),
    ),
    Panel("Trouble"),
    Panel(
        "Transfers that failed",
        "By the gravest reason. checksum: bytes on the drive changed; timeout: the drive did not answer.",
        "ops",
        ((total("vllm:tutti_failed_transfers_total", "direction, kind"), "{{direction}} {{kind}}"),),
    ),
    Panel(
        "Chunks that failed",
        "Failed loads are computed again: they cost time, no answer.",
        "ops",
        ((total("vllm:tutti_failed_chunks_total", "direction"), "{{direction}}"),),
    ),
    Panel(
        "Paused directions",
        "1: paused after repeated failures, tried again now and then.",
        queries=(
            (state("vllm:tutti_breaker_open", "instance, direction", "max"), "{{instance}} {{direction}}"),
        ),
        most=1.0,
    ),
)


def queries() -> list[str]:
    """Return every query of the dashboard."""
    return [query for panel in PANELS for query, _ in panel.queries]


def metric_names(text: str) -> set[str]:
    """Return the names of metrics in a text; all that are used here have vLLM's prefix."""
    return set(re.findall(r"vllm:\w+", text))


def panel_json(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    """Return one panel as Grafana has it."""
    place = {"x": x, "y": y, "w": panel.width, "h": HEIGHT // 2 if panel.kind == "stat" else HEIGHT}
    found: dict[str, Any] = {"id": number, "title": panel.title, "type": panel.kind, "gridPos": place}
    if not panel.queries:
        return found | {
            "type": "row",
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "stat":
        options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    else:
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return found | {
        "description": panel.says,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + each), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for each, (query, legend) in enumerate(panel.queries)
        ],
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a choice at the dashboard's top: all values of a label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it (schema 39, Grafana 11 and later)."""
    panels: list[dict[str, Any]] = []
    x = y = below = 0
    for number, panel in enumerate(PANELS, 1):
        if not panel.queries or x + panel.width > WIDTH:
            x, y = 0, below
        panels.append(panel_json(number, panel, x, y))
        place = panels[-1]["gridPos"]
        below = y + place["h"]
        x = place["x"] + place["w"]
    return {
        "title": "Tutti",
        "uid": "tutti-kv-cache",
        "tags": ["vllm", "tutti", "kv-cache"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                variable("model", "Model", "label_values(vllm:tutti_capacity_chunks, model_name)"),
                variable("instance", "Server", "label_values(vllm:tutti_capacity_chunks, instance)"),
            ]
        },
        "panels": panels,
    }


def text() -> str:
    """Return the dashboard's file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    (FOLDER / "dashboard.json").write_text(text(), encoding="utf-8")
