# SPDX-License-Identifier: Apache-2.0
"""The table names each thing once, knows what the two sides tell, and is what the engine counts."""

import ast
from pathlib import Path

import pytest

import tutti_engine
import tutti_vllm
from tutti_vllm.metrics.metric_table import DETAIL, METRICS, REST, detail, resolve


def test_names_and_keys_are_unique():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    keys = [key for metric in METRICS for key in metric.series]
    assert len(set(keys)) == len(keys)
    series = [(metric.name, labels) for metric in METRICS for labels in metric.series.values()]
    assert len(set(series)) == len(series)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_well_formed(metric):
    assert metric.kind in ("counter", "gauge", "histogram")
    assert all(len(values) == len(metric.labels) for values in metric.series.values())
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert metric.full_name.startswith("vllm:tutti_")
    assert not metric.full_name.endswith("_total"), "Prometheus adds it"
    assert "|" not in metric.help and metric.help.endswith(".")


def test_label_values_come_with_the_key():
    sample = resolve("load_rate@uring@2", 5.0)
    assert (sample.metric.name, sample.labels, sample.value) == (
        "transfer_bytes_per_second",
        ("load", "uring", "2"),
        5.0,
    )
    assert resolve("nobody", 1.0) is None


def test_a_counter_that_no_metric_names_is_shown_all_the_same():
    assert detail("worker.load_slot_waits", 1).labels == ("worker", "load_slot_waits")
    assert detail("new_counter", 1).labels == ("scheduler", "new_counter")
    assert detail("new_counter", 1).metric is DETAIL


def test_what_the_table_expects_is_counted_somewhere():
    # A renamed counter would otherwise stay at 0 and nobody would see.
    sources = [Path(package.__file__).parent for package in (tutti_engine, tutti_vllm)]
    texts = {
        node.value
        for source in sources
        for path in source.rglob("*.py")
        if path.name != "metric_table.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    expected = {
        key
        for metric in METRICS
        if metric.kind == "counter"
        for key, labels in metric.series.items()
        if REST not in labels
    }
    assert len(expected) >= 17
    assert expected - texts == set()
