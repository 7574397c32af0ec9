# SPDX-License-Identifier: Apache-2.0
"""Stores for the command line to look at, and servers that have them open."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("owning.py")

KEYS = [b"chunk %d" % number for number in range(6)]


@pytest.fixture(scope="session")
def owning() -> ModuleType:
    pytest.importorskip("tutti_runtime", reason="the local store needs tutti-runtime")
    spec = importlib.util.spec_from_file_location("tutti_owning_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tutti() -> Callable[..., Any]:
    """Run the command line; the result has ``exit_code``, ``stdout``, ``stderr`` and JSON as ``document``."""
    pytest.importorskip("typer", reason="extra cli")
    from typer.testing import CliRunner

    from tutti_engine.cli.app import app

    def run(*arguments: object, code: int | None = 0) -> Any:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        assert code in (None, result.exit_code), (result.output, result.exception)
        assert "Traceback" not in result.output
        # The one whose --json takes a file.
        printed = arguments[0] != "simulate" and "--json" in arguments and result.stdout
        result.document = json.loads(result.stdout) if printed else None
        return result

    return run


@pytest.fixture
def store(tmp_path: Path, owning: ModuleType) -> Path:
    """A root with a store of ``KEYS`` that nobody has open."""
    root = tmp_path / "root"
    server = owning.start([root])
    server.store_chunks(KEYS)
    server.close()
    return root


@pytest.fixture
def owned() -> Iterator[Callable[[Path], int]]:
    """Start a server on a root in another process and return its pid; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(root: Path) -> int:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            program = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), str(root), *(key.decode() for key in KEYS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            assert program.stdout is not None and program.stdout.readline() == "ready\n"
            return program.pid

        yield start
