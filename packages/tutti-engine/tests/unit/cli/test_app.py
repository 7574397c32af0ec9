# SPDX-License-Identifier: Apache-2.0
"""The commands of other distributions stand beside those of this one."""

from types import SimpleNamespace

import pytest


def test_commands_of_others_are_added_and_a_broken_one_costs_a_line(monkeypatch, capsys):
    typer = pytest.importorskip("typer", reason="extra cli")
    from typer.testing import CliRunner

    from tutti_engine.cli import app as module

    def greet() -> None:
        print("hello")

    def broken():
        raise ImportError("no such module")

    points = [
        SimpleNamespace(name="greet", value="other:greet", load=lambda: greet),
        SimpleNamespace(name="bad", value="other:bad", load=broken),
        SimpleNamespace(name="own", value="other:own", load=lambda: greet),
    ]
    monkeypatch.setattr(module, "entry_points", lambda group: points)
    app = typer.Typer()
    app.command("own")(lambda: print("mine"))
    module.add_commands(app)
    said = capsys.readouterr().err
    assert "bad of other:bad is left out: no such module" in said and "own of other:own" in said
    assert CliRunner().invoke(app, ["greet"]).stdout == "hello\n"
    assert CliRunner().invoke(app, ["own"]).stdout == "mine\n"


def test_importing_the_package_needs_none_of_the_command_lines_libraries():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules.update(typer=None, rich=None)\n"
        "import tutti_engine, tutti_engine.doctor, tutti_engine.store.verify, tutti_engine.store.collect\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
