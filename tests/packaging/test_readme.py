# SPDX-License-Identifier: Apache-2.0
"""What the documents promise exists: commands, links, JSON, settings."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.layers import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")])
README = ROOT / "README.md"
HATCH: dict[str, Any] = tomllib.loads((ROOT / "hatch.toml").read_text())

by_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def hatch_scripts() -> set[str]:
    names = set()
    for environment, settings in HATCH["envs"].items():
        prefix = "" if environment == "default" else f"{environment}:"
        names.update(prefix + script for script in settings.get("scripts", {}))
    return names


def json_blocks(text: str) -> list[dict[str, Any]]:
    return [json.loads(block) for block in re.findall(r"'(\{\n.*?\n\})'", text, re.DOTALL)]


@by_document
def test_every_hatch_command_exists(document: Path) -> None:
    used = re.findall(r"hatch run ([a-z-]+:?[a-z-]*)", document.read_text())
    unknown = {name for name in used if name not in hatch_scripts()}
    assert not unknown, f"hatch.toml has no script {sorted(unknown)}"


@by_document
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


@by_document
def test_every_tool_that_is_named_exists(document: Path) -> None:
    named = re.findall(r"(?<![\w/])((?:tools|\.ci)/[\w./]+?)(?=[`\s,;:)]|\.\s|$)", document.read_text())
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing


def test_the_readme_gives_the_two_commands() -> None:
    text = README.read_text()
    assert "pip install hatch && hatch run demo" in text
    assert "pip install hatch && hatch run test" in text


def test_ci_runs_the_readmes_test_command_last() -> None:
    commands = re.findall(
        r"^(?:env \S+ |nice -n \d+ )?hatch run (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE
    )
    assert commands == ["lint:check", "ci:run", "test"]


def test_every_script_of_hatch_names_a_tool_that_exists() -> None:
    commands = json.dumps([environment.get("scripts", {}) for environment in HATCH["envs"].values()])
    missing = {name for name in re.findall(r"tools/\w+\.py", commands) if not (ROOT / name).exists()}
    assert not missing


def test_the_readmes_json_configures_the_connector() -> None:
    (configuration,) = json_blocks(README.read_text())
    assert configuration["kv_connector"] == "TuttiConnectorV1"
    assert configuration["kv_connector_module_path"] == "tutti_vllm.connector"
    assert configuration["kv_load_failure_policy"] == "recompute"
    assert isinstance(configuration["kv_connector_extra_config"]["capacity_bytes"], int)


def test_the_readmes_json_and_table_agree_with_the_settings() -> None:
    settings = pytest.importorskip("tutti_vllm.settings.settings", reason="tutti-vllm is not installed here")
    (configuration,) = json_blocks(README.read_text())
    parsed = settings.Settings.parse(configuration["kv_connector_extra_config"])
    assert [str(root) for root in parsed.roots] == configuration["kv_connector_extra_config"]["root"]
    in_table = set(re.findall(r"^\| `(\w+)` \|", README.read_text(), re.MULTILINE))
    names = {field.name for field in dataclasses.fields(settings.Settings)}
    # Policies and what is said of a shared store are keys of their own.
    names |= {*settings.PolicySettings.names(), *settings.SharedSettings.names()}
    assert in_table == {"root", *names} - {"roots", "policies", "shared"}
    for name in in_table - {"capacity_bytes"}:
        with pytest.raises(settings.SettingsError, match=name):
            settings.Settings.parse({"capacity_bytes": 1, name: object()})


def test_the_demos_table_has_its_place() -> None:
    text = README.read_text()
    assert text.count("<!-- demo table: start -->") == text.count("<!-- demo table: end -->") == 1
