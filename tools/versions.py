# SPDX-License-Identifier: Apache-2.0
"""Keep the distributions' versions in step: `python tools/versions.py --check` or `--set X.Y.Z`.

Versions are static text in each pyproject.toml, so that every tool reads them. All four share major and
minor; a patch release may be made for one of them alone. A `__version__ = "…"` in a package must say the
same.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

__all__ = ["check", "read_versions", "set_version"]

ROOT = Path(__file__).resolve().parent.parent
VERSION_LINE = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
MODULE_LINE = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
SIBLING_RANGE = re.compile(r"(tutti-[a-z-]+(?:\[[a-z, -]+\])?)>=\d+\.\d+(?:\.\d+)?,<\d+\.\d+")
NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(?:a|b|rc)\d+)?$")


def _projects(root: Path) -> list[Path]:
    return sorted(root.glob("packages/*/pyproject.toml"))


def _modules(project: Path) -> list[Path]:
    return sorted(project.parent.glob("src/*/__init__.py"))


def read_versions(root: Path = ROOT) -> dict[str, str]:
    """Version of each distribution, by folder name. Raises ValueError for a file without exactly one."""
    versions = {}
    for project in _projects(root):
        found = VERSION_LINE.findall(project.read_text())
        if len(found) != 1:
            raise ValueError(f'{project}: {len(found)} lines read `version = "…"`, expected one')
        versions[project.parent.name] = found[0]
    return versions


def check(root: Path = ROOT) -> list[str]:
    """What is out of step, one line each; empty when all is well."""
    try:
        versions = read_versions(root)
    except ValueError as error:
        return [str(error)]
    found = [
        f"{name}: version {text!r} is not X.Y.Z" for name, text in versions.items() if not NUMBER.match(text)
    ]
    minors = {tuple(text.split(".")[:2]) for text in versions.values()}
    if len(minors) > 1:
        listed = ", ".join(f"{name} {text}" for name, text in versions.items())
        found.append(f"major and minor differ: {listed}; run tools/versions.py --set X.Y.Z")
    for project in _projects(root):
        for module in _modules(project):
            for text in MODULE_LINE.findall(module.read_text()):
                if text != versions[project.parent.name]:
                    wanted = versions[project.parent.name]
                    found.append(f"{module.relative_to(root)}: __version__ {text} is not {wanted}")
    return found


def set_version(version: str, root: Path = ROOT) -> list[Path]:
    """Write `version` everywhere and move the sibling ranges to its minor; returns the changed files."""
    match = NUMBER.match(version)
    if match is None:
        raise ValueError(f"version {version!r} is not X.Y.Z")
    major, minor = int(match.group(1)), int(match.group(2))
    sibling_range = rf"\g<1>>={major}.{minor},<{major}.{minor + 1}"
    changed = []
    for project in _projects(root):
        text = VERSION_LINE.sub(f'version = "{version}"', project.read_text())
        edits = [(project, SIBLING_RANGE.sub(sibling_range, text))]
        for module in _modules(project):
            edits.append((module, MODULE_LINE.sub(f'__version__ = "{version}"', module.read_text())))
        for path, after in edits:
            if after != path.read_text():
                path.write_text(after)
                changed.append(path)
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when something is out of step."""
    parser = argparse.ArgumentParser(description="versions of the four distributions")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="tell what is out of step")
    action.add_argument("--set", metavar="X.Y.Z", help="write one version everywhere")
    options = parser.parse_args(arguments)
    if options.set:
        try:
            changed = set_version(options.set)
        except ValueError as error:
            print(f"versions: {error}", file=sys.stderr)
            return 1
        for path in changed:
            print(path.relative_to(ROOT))
        return 0
    found = check()
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
