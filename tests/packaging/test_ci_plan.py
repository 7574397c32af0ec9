# SPDX-License-Identifier: Apache-2.0
"""Which packages a change concerns, and that the checked-in workflows are the generated ones."""

from __future__ import annotations

import json

import pytest

from tools import ci_run, ci_workflows
from tools.ci_plan import Plan, make_plan, publication_order
from tools.layers import ROOT, closure, read_distributions

DISTRIBUTIONS = read_distributions()
EVERYTHING = {"tutti-runtime", "tutti-kv-kernels", "tutti-engine", "tutti-vllm"}


def to_test(plan: Plan) -> set[str]:
    return {name for name, item in plan.packages.items() if item.test}


def to_build(plan: Plan) -> set[str]:
    return {name for name, item in plan.packages.items() if item.build}


@pytest.mark.parametrize(
    ("path", "packages"),
    [
        ("packages/tutti-runtime/csrc/uring_path.cpp", {"tutti-runtime", "tutti-engine", "tutti-vllm"}),
        ("packages/tutti-kv-kernels/pyproject.toml", {"tutti-kv-kernels", "tutti-engine", "tutti-vllm"}),
        ("packages/tutti-engine/src/tutti_engine/plan.py", {"tutti-engine", "tutti-vllm"}),
        ("packages/tutti-vllm/src/tutti_vllm/connector.py", {"tutti-vllm"}),
    ],
)
def test_a_source_change_tests_the_package_and_what_depends_on_it(path: str, packages: set[str]) -> None:
    plan = make_plan([path], DISTRIBUTIONS)
    assert to_test(plan) == packages
    assert plan.cross
    assert to_build(plan) == EVERYTHING
    assert path in plan.packages[path.split("/")[1]].reason


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_a_change_of_tests_concerns_that_package_alone(folder: str) -> None:
    plan = make_plan([f"packages/tutti-runtime/{folder}/x.py"], DISTRIBUTIONS)
    assert to_test(plan) == {"tutti-runtime"}
    assert to_build(plan) == {"tutti-runtime"}
    assert not plan.cross


def test_what_a_tested_package_needs_is_built_and_not_tested() -> None:
    plan = make_plan(["packages/tutti-vllm/tests/x.py"], DISTRIBUTIONS)
    assert to_test(plan) == {"tutti-vllm"}
    assert to_build(plan) == EVERYTHING
    assert plan.packages["tutti-runtime"].reason == "needed by tutti-vllm"


@pytest.mark.parametrize(
    "path",
    [
        "cmake/TuttiTarget.cmake",
        "hatch.toml",
        "pyproject.toml",
        "tools/ci.py",
        ".ci/run",
        "packages/new/x.py",
        "x",
    ],
)
def test_shared_and_unknown_paths_concern_everything(path: str) -> None:
    plan = make_plan([path], DISTRIBUTIONS)
    assert to_test(plan) == EVERYTHING
    assert plan.cross


@pytest.mark.parametrize(
    "path", ["README.md", "packages/tutti-engine/README.md", "packages/tutti-engine/changelog.d/+x.added.rst"]
)
def test_documents_build_nothing(path: str) -> None:
    plan = make_plan([path], DISTRIBUTIONS)
    assert to_build(plan) == set()
    assert plan.docs


def test_top_level_tests_are_the_cross_package_tests() -> None:
    plan = make_plan(["tests/e2e/test_restart.py"], DISTRIBUTIONS)
    assert to_test(plan) == set()
    assert plan.cross
    assert to_build(plan) == EVERYTHING


def test_no_change_does_nothing() -> None:
    plan = make_plan([], DISTRIBUTIONS)
    assert to_build(plan) == set()
    assert not plan.cross


def test_the_order_of_building_puts_needs_first() -> None:
    order = publication_order(DISTRIBUTIONS)
    assert set(order) == EVERYTHING
    for position, name in enumerate(order):
        assert closure(DISTRIBUTIONS, name) <= set(order[:position])


def test_the_plan_is_json_with_the_matrix_of_jobs() -> None:
    document = json.loads(json.dumps(make_plan(["packages/tutti-vllm/tests/x.py"], DISTRIBUTIONS).as_json()))
    assert document["matrix"] == ["tutti-vllm"]
    assert document["cross"] is False


def test_every_package_has_rounds_that_install_only_lower_layers() -> None:
    assert set(ci_run.ROUNDS) == EVERYTHING
    for name, rounds in ci_run.ROUNDS.items():
        assert rounds, name
        for item in rounds:
            assert set(item.siblings) <= closure(DISTRIBUTIONS, name)


def test_the_workflows_are_the_generated_ones() -> None:
    assert ci_workflows.stale(ROOT) == []


def test_what_needs_torch_or_kernels_runs_beside_them() -> None:
    for path in (ROOT / "packages/tutti-engine/tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if 'importorskip("torch"' in text or 'importorskip("tutti_kv_kernels"' in text:
            assert str(path.relative_to(ROOT)).startswith(ci_run.TOGETHER)
    assert all((ROOT / each).exists() for each in ci_run.TOGETHER)
