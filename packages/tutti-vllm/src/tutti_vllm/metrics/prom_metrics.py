# SPDX-License-Identifier: Apache-2.0
"""The table's metrics in vLLM's own Prometheus registry."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from tutti_vllm.metrics.metric_table import METRICS, REST, Metric, Sample, detail, resolve

__all__ = ["TuttiPromMetrics"]

logger = logging.getLogger(__name__)


class TuttiPromMetrics(KVConnectorPromMetrics):
    """Registers every metric once and keeps one series an engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._classes: dict[str, Any] = {
            "counter": metric_types[Counter],
            "gauge": metric_types[Gauge],
            "histogram": metric_types[Histogram],
        }
        self._registered = {metric.name: self._register(metric) for metric in METRICS}
        # What is known beforehand shows as 0 from the start, so that rates see its first step.
        for metric in METRICS:
            for labels in metric.series.values():
                if REST not in labels and not metric.late:
                    for engine in per_engine_labelvalues:
                        self._series(metric, labels, engine)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one payload of one engine."""
        try:
            self._observe(transfer_stats_data, engine_idx)
        except Exception:
            # vLLM's server would end with it.
            logger.exception("Tutti: metrics of a step are lost.")

    def _observe(self, data: dict[str, Any], engine: int) -> None:
        for key, amount in data.get("counts", {}).items():
            sample = resolve(key, amount) or detail(key, amount)
            self._series(sample.metric, sample.labels, engine).inc(sample.value)
        for key, value in data.get("gauges", {}).items():
            self._each(resolve(key, value), engine, "set")
        for key, values in data.get("samples", {}).items():
            for value in values:
                self._each(resolve(key, value), engine, "observe")

    def _each(self, sample: Sample | None, engine: int, action: str) -> None:
        if sample is not None:
            getattr(self._series(sample.metric, sample.labels, engine), action)(sample.value)

    def _series(self, metric: Metric, labels: tuple[str, ...], engine: int) -> Any:
        return self._registered[metric.name].labels(*self.per_engine_labelvalues[engine], *labels)

    def _register(self, metric: Metric) -> Any:
        extra: dict[str, Any] = {}
        if metric.kind == "gauge":
            # As vLLM's own: with several front-end processes the newest value counts.
            extra["multiprocess_mode"] = "mostrecent"
        elif metric.kind == "histogram":
            extra["buckets"] = metric.buckets
        return self._classes[metric.kind](
            name=metric.full_name,
            documentation=metric.help,
            labelnames=[*self._labelnames, *metric.labels],
            **extra,
        )
