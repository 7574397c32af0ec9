# SPDX-License-Identifier: Apache-2.0
"""Which packages a change concerns. Pure functions; `tools/ci.py plan` prints the result.

| changed                                            | effect                                              |
| -------------------------------------------------- | --------------------------------------------------- |
| sources, CMake, pyproject of `packages/P`          | test P, all that depend on it, cross-package tests  |
| `packages/P/{tests,benchmarks,examples}`           | test P                                              |
| `*.md`, `changelog.d`, `docs`                      | documentation checks                                |
| `tests/**`                                         | the cross-package tests                             |
| `cmake`, `tools`, `.ci`, root files, anything else | everything                                          |

A package that is only needed by a tested one is built and not tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tools.layers import LAYERS, Distribution, closure

__all__ = ["PackagePlan", "Plan", "make_plan", "publication_order"]

TEST_FOLDERS = frozenset({"tests", "benchmarks", "examples"})
DOCUMENT_FOLDERS = frozenset({"docs", "changelog.d"})


@dataclass
class PackagePlan:
    """What is done with one package, and the first reason found for it."""

    build: bool = False
    test: bool = False
    reason: str = "not concerned"


@dataclass
class Plan:
    """What is done for a change. Lint is always run."""

    packages: dict[str, PackagePlan] = field(default_factory=dict)
    cross: bool = False
    docs: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, for `json.dumps`; `matrix` lists the packages to test."""
        return {**asdict(self), "matrix": [name for name, plan in self.packages.items() if plan.test]}


def publication_order(distributions: Mapping[str, Distribution]) -> list[str]:
    """Names, lowest layer first: the order of building and of publishing."""
    return [name for layer in LAYERS for name in layer if name in distributions]


def _mark(plan: Plan, name: str, reason: str) -> None:
    package = plan.packages[name]
    if not package.test:
        plan.packages[name] = PackagePlan(build=True, test=True, reason=reason)


def _concern(plan: Plan, path: str, distributions: dict[str, Distribution]) -> None:
    parts = PurePosixPath(path).parts
    if path.endswith(".md") or DOCUMENT_FOLDERS & set(parts[:-1]):
        plan.docs = True
    elif parts[0] == "tests":
        plan.cross = True
    elif parts[0] == "packages" and len(parts) > 2 and parts[1] in distributions:
        _mark(plan, parts[1], path)
        if parts[2] not in TEST_FOLDERS:
            plan.cross = True
            for name in distributions:
                if parts[1] in closure(distributions, name):
                    _mark(plan, name, f"depends on {parts[1]}: {path}")
    else:
        plan.cross = plan.docs = True
        for name in distributions:
            _mark(plan, name, path)


def make_plan(paths: Iterable[str], distributions: dict[str, Distribution]) -> Plan:
    """Plan for changed paths (relative to the repository's root, with slashes)."""
    plan = Plan({name: PackagePlan() for name in publication_order(distributions)})
    for path in paths:
        _concern(plan, path, distributions)
    wanted = set(plan.packages) if plan.cross else {name for name, item in plan.packages.items() if item.test}
    for name in sorted(wanted):
        for needed in {name, *closure(distributions, name)}:
            if not plan.packages[needed].build:
                user = "the cross-package tests" if plan.cross else name
                plan.packages[needed] = PackagePlan(build=True, reason=f"needed by {user}")
    return plan
