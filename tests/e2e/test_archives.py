# SPDX-License-Identifier: Apache-2.0
"""A prompt's chunks leave one store as a file, come into another one, and are hits of a server there."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import CHUNK_TOKENS, prompt


def run(*arguments):
    """Run the command line with the connector's commands and return what it printed."""
    from typer.testing import CliRunner

    from tutti_engine.cli.app import app
    from tutti_vllm.commands.keys import keys

    if not any(command.name == "keys" for command in app.registered_commands):
        # Run from the source, which has no entry points.
        app.command("keys")(keys)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_a_prompts_chunks_travel_in_a_file_and_are_hits_elsewhere(start, tmp_path):
    pytest.importorskip("typer", reason="extra cli")
    one, other = prompt(70, 500), prompt(71, 500)
    salted = prompt(72, 200)
    engine = start(tmp_path / "here")
    first = engine.answer(one)
    engine.answer(other)
    assert engine.transferred() == (0, 14)
    # The server goes on running beside what follows.
    assert engine._core.scheduler.connector._scheduler.engine.planner._journal.flush(30)

    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": one}, {"prompt": salted}, {"prompt": salted, "cache_salt": "tenant"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    told = json.loads(run("keys", prompts, tmp_path / "here", "--json"))
    assert [each["resident"] for each in told["prompts"]] == [7, 0, 0]
    assert [each["chunks"] for each in told["prompts"]] == [7, 3, 3] and len(told["keys"]) == 13

    prompts.write_text(json.dumps(lines[0]))
    wanted, file = tmp_path / "keys", tmp_path / "file"
    wanted.write_text(run("keys", prompts, tmp_path / "here"))
    assert (
        json.loads(run("export", tmp_path / "here", "--keys", wanted, "--to", file, "--json"))["chunks"] == 7
    )
    (tmp_path / "there").mkdir()
    done = json.loads(run("import", file, tmp_path / "there", "--capacity-bytes", 64 << 20, "--json"))
    assert done["imported"] == 7

    engine = start(tmp_path / "there")
    assert engine.answer(one) == first
    assert engine.transferred() == (7, 0) and 7 * CHUNK_TOKENS == 448
    engine.answer(other)
    assert engine.transferred() == (7, 7), "only what was asked for came along"
