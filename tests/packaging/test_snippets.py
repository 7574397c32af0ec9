# SPDX-License-Identifier: Apache-2.0
"""What the documentation tells people to type is run, or at least exists word by word."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tools.docs_pages import pages
from tools.layers import ROOT
from tools.snippets import Snippet, commands, read_snippets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# test_translations.py: what pages in Chinese show is to the letter what the English ones do.
ORIGINALS = [page for page in pages() if not page.startswith("docs/zh/") and not page.endswith(".zh.md")]
SNIPPETS = [snippet for page in ORIGINALS for snippet in read_snippets(page)]
RUN_PAGES = sorted({snippet.page for snippet in SNIPPETS if snippet.is_run})
CHECKED = [snippet for snippet in SNIPPETS if snippet.is_code and not snippet.mark]
HARMLESS = {"cd", "mkdir", "curl", "grep", "export", "pre-commit"}
UNKNOWN = "nobody knows how to check"
SPANS = {"load", "store"}  # of OpenTelemetry, which are called `tutti load` and `tutti store`
EXAMPLE = ROOT / "packages" / "tutti-vllm" / "examples" / "serve_and_curl.sh"


def named(snippet: Snippet) -> str:
    return f"{snippet.page}:{snippet.line}"


def is_installed(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


def has_command(name: str) -> bool:
    return name in {point.name for point in entry_points(group="tutti_engine.commands")}


def environment(folder: Path) -> dict[str, str]:
    """A shell that finds `tutti`, `python` and `python3` of this interpreter, and nobody's settings."""
    tools = folder / "bin"
    tools.mkdir()
    for name, words in {
        "tutti": "-m tutti_engine.cli",
        "python": "",
        "python3": "",
    }.items():
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")}
    return kept | {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder), "COLUMNS": "200"}


@pytest.mark.skipif(
    not (is_installed("tutti_engine", "tutti_vllm", "typer", "rich", "vllm") and has_command("config")),
    reason="the documents' commands need vLLM, tutti-vllm and tutti-engine[cli] installed",
)
@pytest.mark.parametrize("page", RUN_PAGES)
def test_what_is_to_be_run_runs(page: str, tmp_path: Path) -> None:
    settings = environment(tmp_path)
    for snippet in (one for one in read_snippets(page) if one.is_run):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", snippet.text.replace("/mnt/", f"{tmp_path}/mnt-")],
            cwd=tmp_path,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in snippet.exit_codes, f"{named(snippet)}\n{done.stdout}{done.stderr}"


# How each command is checked: a function of its words that returns what is wrong, or nothing.


def lacking_options(words: list[str], text: str) -> list[str]:
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [option for option in options if option not in text]


def check_pip(words: list[str]) -> list[str]:
    wrong = []
    for word in words[2:] if words[1:2] == ["install"] else []:
        name, _, extras = word.removeprefix("./packages/").partition("[")
        if name.startswith("tutti-"):
            project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
            known = project.get("optional-dependencies", {})
            wrong += [
                f"{name} has no extra {one}"
                for one in extras.rstrip("]").split(",")
                if one and one not in known
            ]
    return wrong


def check_file(path: str, words: list[str]) -> list[str]:
    # A page of a package may be about that package's own folder.
    places = [ROOT / path, *ROOT.glob(f"packages/*/{path}")]
    for place in places:
        if place.exists():
            return lacking_options(words, place.read_text()) if place.is_file() else []
    return [f"there is no {path}"]


def check_module(module: str, words: list[str]) -> list[str]:
    if module in {"pytest", "pip"}:
        return check_pytest(["pytest", *words]) if module == "pytest" else []
    if not is_installed(module.partition(".")[0]):
        return []
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return [f"there is no module {module}"]
    if spec is None or spec.origin is None:
        return [f"there is no module {module}"]
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__") or spec
    return lacking_options(words, Path(spec.origin or "").read_text())


def check_python(words: list[str]) -> list[str]:
    if words[1] == "-m":
        return check_module(words[2], words[3:])
    if words[1] == "-c":
        compile(words[2], "-c", "exec")
        return []
    return check_file(words[1], words[2:])


def check_pytest(words: list[str]) -> list[str]:
    paths = [word for word in words[1:] if "/" in word and not word.startswith("-")]
    return [wrong for path in paths for wrong in check_file(path, [])]


def check_tutti(words: list[str]) -> list[str]:
    if not is_installed("tutti_engine", "typer", "rich") or words[1].startswith("-"):
        return []
    done = subprocess.run(
        [sys.executable, "-m", "tutti_engine.cli", words[1], "--help"],
        env=os.environ | {"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [f"tutti has no command {words[1]}"]
    return lacking_options(words, done.stdout)


def check_vllm(words: list[str]) -> list[str]:
    wrong = []
    for option, value in zip(words, [*words[1:], ""]):
        if option == "--kv-transfer-config" and value.startswith("{"):
            extra = json.loads(value)["kv_connector_extra_config"]
            if is_installed("tutti_vllm", "tutti_engine"):
                from tutti_vllm.settings.settings import Settings

                Settings.parse(extra)
    if is_installed("vllm"):
        (folder,) = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr, misc]
        known = Path(folder, "engine", "arg_utils.py").read_text() + EXAMPLE.read_text().replace("-", "_")
        options = [word for word in words if word.startswith("--")]
        wrong += [option for option in options if option.lstrip("-").replace("-", "_") not in known]
    return wrong


def check_hatch(words: list[str]) -> list[str]:
    environments = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    if words[1] != "run":
        return []
    where, colon, script = words[2].partition(":")
    where, script = (where, script) if colon else ("default", where)
    return [] if script in environments.get(where, {}).get("scripts", {}) else [f"no script {words[2]}"]


CHECKS: dict[str, Callable[[list[str]], list[str]]] = {
    "pip": check_pip,
    "python": check_python,
    "python3": check_python,
    "pytest": check_pytest,
    "tutti": check_tutti,
    "vllm": check_vllm,
    "hatch": check_hatch,
    "compute-sanitizer": lambda words: check(words[1:]),
}


def check(words: list[str]) -> list[str]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words or words[0] in HARMLESS:
        return []
    if words[0] in CHECKS:
        return CHECKS[words[0]](words)
    if "/" in words[0]:
        return check_file(words[0], [])
    return [f"{UNKNOWN} `{words[0]}`: mark the block (see tools/snippets.py)"]


@pytest.mark.parametrize("snippet", CHECKED, ids=named)
def test_what_is_not_run_exists(snippet: Snippet) -> None:
    if snippet.language == "python":
        compile(snippet.text, named(snippet), "exec")
        return
    wrong = [f"{words}: {fault}" for words in commands(snippet.text) for fault in check(words)]
    is_new = snippet.page not in (ROOT / "mkdocs.yml").read_text()
    if wrong and is_new and all(UNKNOWN in one for one in wrong):
        pytest.skip(f"{snippet.page} has no place in mkdocs.yml yet: {wrong}")
    assert not wrong


@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if one.language in {"json", "toml"}], ids=named)
def test_data_can_be_read(snippet: Snippet) -> None:
    reader: Any = json if snippet.language == "json" else tomllib
    assert reader.loads(snippet.text)


def test_no_other_mark_is_used() -> None:
    marks = {snippet.mark for snippet in SNIPPETS if snippet.mark}
    assert [
        mark for mark in marks if not re.fullmatch(r"run(, exit \d( or \d)*)?|not run, .{10,}", mark)
    ] == []
    text = "".join((ROOT / page).read_text() for page in ORIGINALS)
    assert text.count("<!-- snippet: ") == sum(bool(snippet.mark) for snippet in SNIPPETS)


def test_the_quick_start_asks_as_the_example_does() -> None:
    (program, question) = (
        words
        for snippet in read_snippets("docs/quick-start.md")
        for words in commands(snippet.text)
        if words[0] == "python3" or "http://127.0.0.1:8000/v1/completions" in words
    )
    example = EXAMPLE.read_text()
    assert program[2] in example
    assert len(question) == 9
    for word in question[1:]:
        assert word.replace("8000", "$port").replace("@", "@$work/") in example, word


@pytest.mark.skipif(
    not (is_installed("tutti_engine", "typer", "rich") and has_command("config")),
    reason="the command line needs tutti-vllm and tutti-engine[cli] installed",
)
def test_every_command_that_the_text_names_exists() -> None:
    named = {
        (page, name)
        for page in pages()
        for name in re.findall(r"`tutti ([a-z]\w*)", (ROOT / page).read_text())
    }
    done = subprocess.run(
        [sys.executable, "-m", "tutti_engine.cli", "--help"],
        env=os.environ | {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    known = set(re.findall(r"^\W*([a-z]\w*)  ", done.stdout, re.MULTILINE))
    assert {"doctor", "config"} <= known
    assert {(page, name) for page, name in named if name not in known | SPANS} == set()
