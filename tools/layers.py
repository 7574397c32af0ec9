# SPDX-License-Identifier: Apache-2.0
"""Check that every distribution depends on lower layers only: `python tools/layers.py`.

The rule: a package names only packages of lower layers, siblings of one layer do not know each other.
Imports are checked by import-linter; this reads each `pyproject.toml` (dependencies, extras and build
requirements) and also rejects a range that excludes the version a sibling has today.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LAYERS", "ROOT", "Distribution", "closure", "problems", "read_distributions"]

ROOT = Path(__file__).resolve().parent.parent

# Lowest first. Distributions in one tuple are of one layer and independent of each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("tutti-runtime", "tutti-kv-kernels"),
    ("tutti-engine",),
    ("tutti-vllm",),
)


@dataclass(frozen=True)
class Distribution:
    """What one `packages/<name>/pyproject.toml` says."""

    name: str
    version: str
    requirements: tuple[tuple[str, Requirement], ...]
    """(where it is written, requirement) for dependencies, extras and build requirements."""

    def siblings(self) -> frozenset[str]:
        """Names of the project's own distributions that this one asks for, in any way."""
        ours = {name for layer in LAYERS for name in layer}
        return frozenset(canonicalize_name(requirement.name) for _, requirement in self.requirements) & ours


def parse(document: dict[str, Any]) -> Distribution:
    """Distribution described by a parsed pyproject.toml."""
    project = document["project"]
    named: list[tuple[str, str]] = [("dependencies", text) for text in project.get("dependencies", [])]
    for extra, texts in project.get("optional-dependencies", {}).items():
        named += [(f"extra {extra}", text) for text in texts]
    named += [("build-system.requires", text) for text in document["build-system"]["requires"]]
    requirements = tuple((place, Requirement(text)) for place, text in named)
    return Distribution(project["name"], project["version"], requirements)


def read_distributions(root: Path = ROOT) -> dict[str, Distribution]:
    """Every distribution under `packages/`, by name."""
    found = {}
    for path in sorted(root.glob("packages/*/pyproject.toml")):
        distribution = parse(tomllib.loads(path.read_text()))
        found[distribution.name] = distribution
    return found


def layer_of(name: str) -> int | None:
    """Index of a distribution's layer, None for one that is not ours."""
    return next((index for index, layer in enumerate(LAYERS) if name in layer), None)


def closure(distributions: dict[str, Distribution], name: str) -> frozenset[str]:
    """The siblings in `distributions` that `name` needs, directly or through others; not `name` itself."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        current = distributions.get(waiting.pop())
        fresh = (current.siblings() if current else frozenset()) - reached
        reached |= fresh
        waiting += fresh
    return frozenset(reached & set(distributions)) - {name}


def _problems_of(distribution: Distribution, distributions: dict[str, Distribution]) -> list[str]:
    own_layer = layer_of(distribution.name)
    if own_layer is None:
        return [f"{distribution.name}: not in tools/layers.py LAYERS; say which layer it belongs to"]
    found = []
    for place, requirement in distribution.requirements:
        name = canonicalize_name(requirement.name)
        layer = layer_of(name)
        if layer is None:
            continue
        where = f"{distribution.name}: {place}: {requirement}"
        if layer >= own_layer:
            relation = "its own layer" if layer == own_layer else "a layer above it"
            found.append(f"{where}: {name} is of {relation}; a package may name only lower layers")
        elif name not in distributions:
            found.append(f"{where}: there is no packages/{name}/pyproject.toml")
        elif not requirement.specifier:
            found.append(f"{where}: give a range, for example {name}>=0.1,<0.2")
        elif not requirement.specifier.contains(distributions[name].version, prereleases=True):
            found.append(f"{where}: excludes the current {name} {distributions[name].version}")
    return found


def problems(distributions: dict[str, Distribution]) -> list[str]:
    """Every breach of the layer rule, one line each; empty when all is well."""
    missing = {name for layer in LAYERS for name in layer} - set(distributions)
    found = [f"{name}: packages/{name}/pyproject.toml is missing" for name in sorted(missing)]
    for distribution in distributions.values():
        found += _problems_of(distribution, distributions)
    return found


def main() -> int:
    """Print the breaches; exit status 1 when there are any."""
    found = problems(read_distributions())
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
