# SPDX-License-Identifier: Apache-2.0
"""A cluster of several hosts on this machine in which something fails: all prompts right, and healed after.

With TUTTI_LONG_TESTS all failures, and cuts of 30 s; else the short ones.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import failures
from networks import why_not

from tutti_engine.testing.mooncake import mooncake_master

if mooncake_master() is None:
    pytest.skip("needs Mooncake: pip install mooncake-transfer-engine-non-cuda", allow_module_level=True)
if reason := why_not():
    pytest.skip(reason, allow_module_level=True)

LONG = "TUTTI_LONG_TESTS" in os.environ

SHORT = ("master_killed", "node_killed", "host_cut", "two_versions")


@pytest.mark.parametrize("name", failures.FAILURES if LONG else SHORT)
def test_prompts_go_on_are_right_and_the_cluster_heals(name):
    found = failures.run(name, 30.0 if LONG else 2.0)
    assert found["wrong"] == 0
    assert found["hit_chunks"] > 0
    assert found["prompts"] > 5
