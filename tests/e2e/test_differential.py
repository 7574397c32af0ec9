# SPDX-License-Identifier: Apache-2.0
"""A short slice of ``python -m tutti_vllm.testing.differential``, which runs for an hour elsewhere."""

from __future__ import annotations

import os

import pytest

from tutti_vllm.testing.differential import describe, run


def test_random_schedules_change_no_token_and_leave_nothing_behind():
    result = run(50, seed=1, jobs=1)
    assert not result.problems, "\n".join(result.problems)
    assert result.schedules == 50
    assert result.is_clean, describe(result)
    assert result.totals["finished"] > 100
    assert result.totals["preempted"] > 0
    assert result.totals["load_failed_chunks"] > 0, "faults reached loads"


@pytest.mark.skipif(
    not os.environ.get("TUTTI_LONG_TESTS"),
    reason="TUTTI_LONG_TESTS=1 runs it; test_shared_random.py has a slice of its kind",
)
def test_random_schedules_of_engines_that_share_a_failing_store():
    result = run(25, seed=7, jobs=1, shared=True)
    assert not result.problems, "\n".join(result.problems)
    assert result.schedules == 25
    assert result.is_clean, describe(result)
    assert result.totals["shared_load_failed_chunks"] > 0, "trouble reached loads"
