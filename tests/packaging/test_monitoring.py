# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alert rules: what they ask for exists, parses, and says the same as the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools import monitoring
from tools.layers import ROOT

FOLDER = monitoring.FOLDER
if not FOLDER.is_dir():  # tests of wheels run beside no package's sources
    FOLDER = Path(str(pytest.importorskip("tutti_vllm").__file__)).parent / FOLDER.name
DASHBOARD = FOLDER / "dashboard.json"
RULES = FOLDER / "alerts.yml"
VLLM_LABELS = {"instance", "model_name", "engine", "le"}


def rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def asked() -> list[str]:
    """Return every query, with Grafana's variables filled in as it does."""
    filled = [
        query.replace("$__rate_interval", "5m").replace("$model", ".*").replace("$instance", ".*")
        for query in monitoring.queries()
    ]
    assert not any("$" in query for query in filled)
    return [*filled, *(rule["expr"] for rule in rules())]


def labels_by_metric() -> dict[str, set[str]]:
    table = pytest.importorskip("tutti_vllm.metrics.metric_table", reason="tutti-vllm is not installed here")
    labels = {}
    for metric in table.METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for end in ends:
            labels[metric.shown_name + end] = set(metric.labels)
    return labels


def test_the_file_is_the_one_that_the_code_writes() -> None:
    assert DASHBOARD.read_text() == monitoring.text(), "`python tools/monitoring.py` writes it"


def test_every_query_parses_and_knows_its_metrics_and_labels() -> None:
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    known = labels_by_metric()
    seen = set()

    def look(node: Any, allowed: set[str]) -> set[str]:
        """Check an expression and return the labels that its series can have."""
        if isinstance(node, promql.VectorSelector):
            seen.add(node.name)
            if node.name.startswith("vllm:tutti_"):
                assert node.name in known, node.name
                labels = known[node.name] | VLLM_LABELS
                assert {each.name for each in node.matchers.matchers} <= labels
                return labels
            return VLLM_LABELS
        if isinstance(node, promql.MatrixSelector):
            return look(node.vector_selector, allowed)
        if isinstance(node, promql.AggregateExpr):
            inner = look(node.expr, allowed)
            by = set(node.modifier.labels) if node.modifier else set()
            assert by <= inner, (by, inner)
            return by
        if isinstance(node, promql.BinaryExpr):
            return look(node.lhs, allowed) | look(node.rhs, allowed)
        if isinstance(node, promql.Call):
            return set().union(*(look(each, allowed) for each in node.args))
        if isinstance(node, promql.ParenExpr):
            return look(node.expr, allowed)
        assert isinstance(node, promql.NumberLiteral), type(node)
        return set()

    for query in asked():
        look(promql.parse(query), set())
    assert seen == set().union(*map(monitoring.metric_names, asked()))


def test_counters_are_rated_and_gauges_are_not() -> None:
    for query in asked():
        for name in monitoring.metric_names(query):
            rated = re.search(rf"(rate|increase)\({name}\W", query) is not None
            assert rated == name.endswith(("_total", "_bucket")), query


def test_legends_and_texts_name_labels_that_are_there() -> None:
    for panel in monitoring.PANELS:
        for query, legend in panel.queries:
            assert all(label in query for label in re.findall(r"{{(\w+)}}", legend)), (query, legend)
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        for label in re.findall(r"\$labels\.(\w+)", texts):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), (rule["alert"], label)


def test_every_metric_that_people_need_is_on_the_dashboard() -> None:
    shown = set().union(*map(monitoring.metric_names, monitoring.queries()))
    # For those who read the source; and what is a quotient of two others.
    left_out = {"vllm:tutti_detail_total", "vllm:tutti_loaded_chunks_total", "vllm:tutti_loaded_tokens_total"}
    left_out |= {
        "vllm:tutti_transfer_bytes_per_second",
        "vllm:tutti_capacity_chunks",
        "vllm:tutti_load_seconds",
        "vllm:tutti_shared_load_seconds",
    }
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels_by_metric()}
    assert bases - left_out <= shown


def test_panels_do_not_lie_on_each_other() -> None:
    places = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= monitoring.WIDTH
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in places, panel["title"]
                places.add((x, y))


def test_the_command_puts_the_files_where_they_are_wanted(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="extra cli")
    command = pytest.importorskip("tutti_vllm.commands.monitoring", reason="tutti-vllm is not installed here")
    import typer
    from typer.testing import CliRunner

    app = typer.Typer()
    app.command()(command.monitoring)
    run = CliRunner().invoke
    found = run(app, [str(tmp_path / "new"), "--json"])
    assert found.exit_code == 0, found.output
    for each in json.loads(found.stdout)["files"]:
        assert Path(each).read_text() == (FOLDER / Path(each).name).read_text()
    (tmp_path / "new" / "alerts.yml").write_text("mine")
    refused = run(app, [str(tmp_path / "new")])
    assert refused.exit_code == 2 and "--force" in refused.stderr and refused.stderr.count("\n") == 1
    assert (tmp_path / "new" / "alerts.yml").read_text() == "mine"
    assert run(app, [str(tmp_path / "new"), "--force"]).exit_code == 0
    assert (tmp_path / "new" / "alerts.yml").read_text() == RULES.read_text()


def test_the_example_of_a_configuration_names_the_rules() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert found["rule_files"] == [RULES.name]
    assert found["scrape_configs"][0]["metrics_path"] == "/metrics"
    assert ROOT in monitoring.FOLDER.parents
