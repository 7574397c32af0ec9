# SPDX-License-Identifier: Apache-2.0
"""Two vLLM engines over one Mooncake cluster: cold on A, a hit on B, and on B after the death of A."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tutti_engine.testing.mooncake import mooncake_master

pytestmark = [
    pytest.mark.skipif(
        "TUTTI_LONG_TESTS" not in os.environ, reason="two minutes of demonstration: set TUTTI_LONG_TESTS"
    ),
    pytest.mark.skipif(
        mooncake_master() is None, reason="needs Mooncake: pip install mooncake-transfer-engine-non-cuda"
    ),
]

DEMO = Path(__file__).parents[2] / "tools" / "cluster_demo.py"


def test_the_demonstration_shows_what_it_is_to_show(tmp_path):
    command = [sys.executable, DEMO, "--length", "1024", "--root", tmp_path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
