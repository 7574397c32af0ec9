# SPDX-License-Identifier: Apache-2.0
"""Every metric that the connector shows at vLLM's ``/metrics``: its name, its labels, where it comes from.

The one home of these facts: what is exported, the log line of vLLM's statistics and ``docs/metrics.md`` are
made from this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["DETAIL", "METRICS", "REST", "Metric", "Sample", "detail", "markdown", "resolve"]

# vLLM removes what begins like this from the registry when an engine starts anew in the same process.
_PREFIX = "vllm:tutti_"

REST = "*"
"""Label value that the payload's key carries after ``@``."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: without the prefix; Prometheus adds ``_total`` to a counter's.
        kind: ``counter``, ``gauge`` or ``histogram``.
        help: what it says, with its unit.
        labels: label names beside vLLM's own ``model_name`` and ``engine``.
        series: for each key of the payload the values of ``labels``.
        buckets: upper ends of a histogram's buckets.
        late: whether it shows only once it was told: 0 would mean something where there is nothing to tell.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    series: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    late: bool = False

    @property
    def full_name(self) -> str:
        """The name to register."""
        return _PREFIX + self.name

    @property
    def shown_name(self) -> str:
        """The name at ``/metrics``."""
        return self.full_name + ("_total" if self.kind == "counter" else "")


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a payload, placed: which metric, which label values, in the metric's unit."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def _plain(*keys: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(keys, ())


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


_COUNTERS = (
    Metric("prompts", "counter", "Prompts that were first scheduled.", series=_plain("prompts")),
    Metric("prompt_tokens", "counter", "Their tokens.", series=_plain("prompt_tokens")),
    Metric("hits", "counter", "Prompts of which a part was promised from the cache.", series=_plain("hits")),
    Metric(
        "hit_tokens",
        "counter",
        "Prompt tokens promised from the cache, beyond what vLLM had in memory. A load that fails later is"
        " computed after all and shows in failed_chunks.",
        series=_plain("hit_tokens"),
    ),
    Metric(
        "loads",
        "counter",
        "Loads that were ordered, by mode: async (the request waits beside the steps), layerwise.",
        ("mode",),
        {"async_loads": ("async",), "layerwise_loads": ("layerwise",)},
    ),
    Metric("loaded_chunks", "counter", "Chunks loaded and verified.", series=_plain("load_chunks")),
    Metric("loaded_tokens", "counter", "Tokens of those chunks.", series=_plain("load_tokens")),
    Metric(
        "stored_chunks", "counter", "Chunks that became durable on every rank.", series=_plain("store_chunks")
    ),
    Metric(
        "failed_chunks",
        "counter",
        "Chunks whose transfer failed on some rank; failed loads are computed again.",
        ("direction",),
        {"load_failed_chunks": ("load",), "store_failed_chunks": ("store",)},
    ),
    Metric(
        "failed_transfers",
        "counter",
        "Transfers (a request's chunks on one rank) with a failure, by the gravest: checksum, gone, timeout,"
        " canceled, queue_full, no_space or the name of an errno.",
        ("direction", "kind"),
        {"load_errors": ("load", REST), "store_errors": ("store", REST)},
    ),
    Metric(
        "dropped_chunks",
        "counter",
        "Chunks that were computed and not stored: admission (the policy), write_budget, tenant_quota,"
        " no_room (no free place, no staging memory or a full disk).",
        ("reason",),
        {
            "refused_chunks": ("admission",),
            "over_budget_chunks": ("write_budget",),
            "over_quota_chunks": ("tenant_quota",),
            "store_dropped_chunks": ("no_room",),
        },
    ),
    Metric(
        "removed_chunks",
        "counter",
        "Chunks that left the cache: evicted (for room), expired (ttl_seconds), lost (a load of it, or of one"
        " before it in its prompt, failed), reset.",
        ("reason",),
        {
            "evicted_chunks": ("evicted",),
            "expired_chunks": ("expired",),
            "lost_chunks": ("lost",),
            "reset_chunks": ("reset",),
        },
    ),
    Metric(
        "corrupt_chunks",
        "counter",
        "Lost chunks that were read and did not verify.",
        series=_plain("corrupt_chunks"),
    ),
    Metric(
        "break_even",
        "counter",
        "Hits that were weighed against computing: load, compute (refused, as loading would take longer),"
        " probe (loaded to measure anew).",
        ("answer",),
        {
            "break_even_loads": ("load",),
            "break_even_refused": ("compute",),
            "break_even_probes": ("probe",),
        },
    ),
    Metric(
        "transfer_bytes",
        "counter",
        "Bytes read from and written to storage, padding included, over all ranks. path: what moved them,"
        " such as uring or posix.",
        ("direction", "path"),
        {"load_bytes": ("load", REST), "store_bytes": ("store", REST)},
    ),
    Metric(
        "transfer_seconds",
        "counter",
        "Seconds in which at least one transfer of a direction was under way, summed over ranks.",
        ("direction", "path"),
        {"load_seconds": ("load", REST), "store_seconds": ("store", REST)},
    ),
)

_SHARED_COUNTERS = (
    Metric(
        "shared_hits",
        "counter",
        "Prompts of which a part was promised from the shared store; they are among hits as well.",
        series=_plain("shared_hits"),
    ),
    Metric("shared_hit_tokens", "counter", "Tokens promised from there.", series=_plain("shared_hit_tokens")),
    Metric(
        "shared_chunks",
        "counter",
        "Chunks loaded and verified from the shared store, or written to it by every rank.",
        ("direction",),
        {"shared_load_chunks": ("load",), "shared_store_chunks": ("store",)},
    ),
    Metric(
        "shared_failed_chunks",
        "counter",
        "Chunks whose transfer from or to the shared store failed on some rank.",
        ("direction",),
        {"shared_load_failed_chunks": ("load",), "shared_store_failed_chunks": ("store",)},
    ),
    Metric(
        "shared_failed_transfers",
        "counter",
        "Transfers from or to the shared store with a failure, by the gravest; as failed_transfers.",
        ("direction", "kind"),
        {"shared_load_errors": ("load", REST), "shared_store_errors": ("store", REST)},
    ),
    Metric(
        "shared_lost_chunks",
        "counter",
        "Chunks that the shared store had when it was asked and not when they were read: gone, or damaged.",
        ("reason",),
        {"shared_lost_chunks": ("gone",), "shared_damaged_chunks": ("damaged",)},
    ),
    Metric(
        "shared_dropped_chunks",
        "counter",
        "Chunks that were not written to the shared store for lack of room on the way.",
        series=_plain("shared_dropped_chunks"),
    ),
    Metric(
        "shared_bytes",
        "counter",
        "Bytes of chunks read from and written to the shared store, over all ranks.",
        ("direction",),
        {"shared_read_bytes": ("load",), "shared_written_bytes": ("store",)},
    ),
    Metric(
        "shared_break_even",
        "counter",
        "Hits of the shared store that were weighed against computing; as break_even.",
        ("answer",),
        {
            "shared_break_even_loads": ("load",),
            "shared_break_even_refused": ("compute",),
            "shared_break_even_probes": ("probe",),
        },
    ),
    Metric(
        "shared_lookups",
        "counter",
        "Questions to the shared store: asked, error, hang (no answer in time).",
        ("outcome",),
        {
            "shared_lookups": ("asked",),
            "shared_lookup_errors": ("error",),
            "shared_lookup_hangs": ("hang",),
        },
    ),
    Metric(
        "shared_lookup_timeouts",
        "counter",
        "Requests that went on before the shared store had said what it holds.",
        series=_plain("shared_lookup_timeouts"),
    ),
    Metric(
        "shared_turn_refusals",
        "counter",
        "Answers that a hit of the shared store is computed, as too much was on its way from there.",
        series=_plain("shared_turn_refusals"),
    ),
)

_GAUGES = (
    Metric(
        "transfer_bytes_per_second",
        "gauge",
        "Bandwidth of a rank while it last moved something, queue and copy included.",
        ("direction", "path", "rank"),
        {"load_rate": ("load", REST, REST), "store_rate": ("store", REST, REST)},
    ),
    Metric(
        "transfers_under_way",
        "gauge",
        "Transfers of a rank that have begun and not ended.",
        ("direction", "rank"),
        {"loads_under_way": ("load", REST), "stores_under_way": ("store", REST)},
    ),
    Metric(
        "queued_loads",
        "gauge",
        "Loads (or layers of them) of a rank that wait for their turn.",
        ("rank",),
        {"queued_loads": (REST,)},
    ),
    Metric(
        "staging_used_bytes",
        "gauge",
        "Staging memory of a rank in use.",
        ("direction", "rank"),
        {"load_staging_used": ("load", REST), "store_staging_used": ("store", REST)},
    ),
    Metric(
        "staging_bytes",
        "gauge",
        "Staging memory of a rank.",
        ("direction", "rank"),
        {"load_staging": ("load", REST), "store_staging": ("store", REST)},
    ),
    Metric(
        "pending_plans",
        "gauge",
        "Transfers that some rank has not reported yet.",
        ("direction",),
        {"pending_loads": ("load",), "pending_stores": ("store",)},
    ),
    Metric("resident_chunks", "gauge", "Chunks that can be hit.", series=_plain("resident_chunks")),
    Metric("resident_bytes", "gauge", "Their bytes, over all ranks.", series=_plain("resident_bytes")),
    Metric("capacity_chunks", "gauge", "Chunks that fit.", series=_plain("capacity_chunks")),
    Metric("capacity_bytes", "gauge", "Their bytes, over all ranks.", series=_plain("capacity_bytes")),
    Metric(
        "write_budget_left_bytes",
        "gauge",
        "Bytes that may be written at once now; only with daily_write_bytes.",
        series=_plain("write_budget_left"),
        late=True,
    ),
    Metric(
        "breaker_open",
        "gauge",
        "1 while a direction is paused after repeated failures, but for a probe now and then.",
        ("direction",),
        {"load_breaker": ("load",), "store_breaker": ("store",)},
    ),
    Metric(
        "degraded",
        "gauge",
        "1 while the server runs without the cache or a part of it: it could not be opened, a rank cannot use"
        " it, or a breaker is open.",
        series=_plain("degraded"),
    ),
)

_SHARED_GAUGES = (
    Metric(
        "shared_up",
        "gauge",
        "1 while the shared store is used; 0 without a connection, and while a breaker is open. Only with"
        " shared_store.",
        series=_plain("shared_up"),
        late=True,
    ),
    Metric(
        "shared_pending_plans",
        "gauge",
        "Transfers of the shared store that some rank has not reported yet.",
        ("direction",),
        {"shared_pending_loads": ("load",), "shared_pending_stores": ("store",)},
    ),
    Metric(
        "shared_breaker_open",
        "gauge",
        "1 while a direction, or asking what is there, is paused: the shared store failed repeatedly.",
        ("direction",),
        {
            "shared_load_breaker": ("load",),
            "shared_store_breaker": ("store",),
            "shared_lookup_breaker": ("lookup",),
        },
    ),
)

_HISTOGRAMS = (
    Metric(
        "load_seconds",
        "histogram",
        "Seconds from when a rank got a request's load until every page was there, or it failed.",
        series=_plain("load_wait"),
        buckets=_SECONDS,
    ),
    Metric(
        "shared_load_seconds",
        "histogram",
        "As load_seconds, of loads from the shared store.",
        series=_plain("shared_load_wait"),
        buckets=_SECONDS,
    ),
)

DETAIL = Metric(
    "detail",
    "counter",
    "Every other counter of the engine by its own name, such as worker load_slot_waits; for people who read"
    " the source.",
    ("side", "counter"),
)
"""Takes the counters that no other metric names: a new one shows without a change here."""

METRICS = (*_COUNTERS, *_SHARED_COUNTERS, *_GAUGES, *_SHARED_GAUGES, *_HISTOGRAMS, DETAIL)

_BY_KEY = {key: (metric, labels) for metric in METRICS for key, labels in metric.series.items()}


def resolve(key: str, value: float) -> Sample | None:
    """Return what a number of the payload means; None for a gauge or sample that no metric names.

    A key may carry label values after ``@``, and ``worker.`` before a name tells a worker's counter.
    """
    name, *rest = key.split("@")
    found = _BY_KEY.get(name)
    if found is None:
        return None
    metric, labels = found
    values = iter(rest)
    filled = tuple(next(values, "") if label == REST else label for label in labels)
    return Sample(metric, filled, value)


def detail(key: str, value: float) -> Sample:
    """Return a counter that no metric names as one of ``DETAIL``."""
    side, dot, name = key.partition(".")
    return Sample(DETAIL, (side, name) if dot else ("scheduler", key), value)


def markdown(metrics: Iterable[Metric] = METRICS) -> str:
    """Return the table of the documentation."""
    lines = ["| metric | labels | kind | what it says |", "| --- | --- | --- | --- |"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.shown_name}` | {labels} | {metric.kind} | {metric.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    # Writes the documentation's table: python -m tutti_vllm.metrics.metric_table > table.md
    print(markdown(), end="")
