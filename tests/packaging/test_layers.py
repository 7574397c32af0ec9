# SPDX-License-Identifier: Apache-2.0
"""The layer rule: what tools/layers.py accepts and refuses, and that the packages obey it."""

from __future__ import annotations

from typing import Any

import pytest

from tools import layers


def project(name: str, *dependencies: str, version: str = "0.1.0", **more: Any) -> layers.Distribution:
    return layers.parse(
        {
            "project": {"name": name, "version": version, "dependencies": list(dependencies), **more},
            "build-system": {"requires": ["scikit-build-core"]},
        }
    )


def distributions(*changed: layers.Distribution) -> dict[str, layers.Distribution]:
    usual = [
        project("tutti-runtime", "numpy"),
        project("tutti-kv-kernels", "torch"),
        project("tutti-engine", **{"optional-dependencies": {"local": ["tutti-runtime>=0.1,<0.2"]}}),
        project("tutti-vllm", "tutti-engine[local]>=0.1,<0.2"),
    ]
    return {item.name: item for item in [*usual, *changed]}


def test_the_packages_obey_the_rule() -> None:
    assert layers.problems(layers.read_distributions()) == []


def test_every_layer_has_its_package() -> None:
    assert set(layers.read_distributions()) == {name for layer in layers.LAYERS for name in layer}


def test_dependencies_on_lower_layers_are_accepted() -> None:
    assert layers.problems(distributions()) == []


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        (project("tutti-engine", "tutti-vllm>=0.1,<0.2"), "a layer above it"),
        (project("tutti-runtime", "tutti-kv-kernels>=0.1,<0.2"), "its own layer"),
        (project("tutti-runtime", "Tutti_Engine>=0.1,<0.2"), "a layer above it"),
        (project("tutti-vllm", "tutti-engine>=0.2"), "excludes the current tutti-engine 0.1.0"),
        (project("tutti-vllm", "tutti-engine"), "give a range"),
        (project("tutti-cli", "tutti-engine>=0.1"), "say which layer"),
        (project("tutti-engine", **{"optional-dependencies": {"x": ["tutti-vllm>=0.1"]}}), "extra x"),
    ],
)
def test_a_breach_is_named(culprit: layers.Distribution, words: str) -> None:
    found = layers.problems(distributions(culprit))
    assert len(found) == 1
    assert culprit.name in found[0]
    assert words in found[0]


def test_an_upward_build_requirement_is_a_breach() -> None:
    culprit = layers.parse(
        {
            "project": {"name": "tutti-runtime", "version": "0.1.0"},
            "build-system": {"requires": ["tutti-engine>=0.1"]},
        }
    )
    assert "build-system.requires" in layers.problems(distributions(culprit))[0]


def test_a_missing_package_is_named() -> None:
    present = distributions()
    del present["tutti-engine"]
    found = layers.problems(present)
    assert any("packages/tutti-engine/pyproject.toml is missing" in line for line in found)


def test_closure_follows_chains_and_leaves_out_the_start() -> None:
    assert layers.closure(distributions(), "tutti-vllm") == {"tutti-engine", "tutti-runtime"}
    assert layers.closure(distributions(), "tutti-runtime") == frozenset()
