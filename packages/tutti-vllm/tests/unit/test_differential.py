# SPDX-License-Identifier: Apache-2.0
"""What the differential test makes of its campaigns' reports, also of those that end too soon."""

import json
import sys

import pytest

from tutti_vllm.testing import differential
from tutti_vllm.testing.campaign import MARK
from tutti_vllm.testing.differential import Result, run, shrink_failures

GOOD = {"schedule": 0, "problems": [], "faults": "none"}
BAD = {"schedule": 1, "problems": ["prompt 3: wrong"], "faults": "slow"}
ENGINE = {"engine": {"overlapped": True, "policy": "fail"}, "counters": {"load_chunks": 4, "finished": 2}}


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    """Let campaigns print given reports, and noise, instead of running."""

    def say(*reports, code=0):
        lines = ["noise", *(MARK + json.dumps(report) for report in reports)]
        fake = tmp_path / "fake.sh"
        quoted = " ".join(f"'{line}'" for line in lines)
        fake.write_text(f"#!/bin/sh\nprintf '%s\\n' {quoted}\nexit {code}\n")
        fake.chmod(0o700)
        monkeypatch.setattr(differential.sys, "executable", str(fake))

    assert differential.sys is sys
    return say


def test_reports_add_up_over_campaigns(campaign, monkeypatch):
    monkeypatch.setattr(differential, "SCHEDULES_A_CAMPAIGN", 1)
    campaign(GOOD, ENGINE)
    told = []
    result = run(3, seed=7, jobs=2, told=lambda result: told.append(result.schedules))
    assert (result.schedules, result.engines, result.deaths) == (3, 3, 0)
    assert result.is_clean
    told_of = {"overlapped_engines": 3, "engines_that_fail_requests": 3}
    assert result.totals == {"load_chunks": 12, "finished": 6} | told_of
    assert max(told) == 3
    assert json.loads(json.dumps(result.as_json()))["faults"] == {"none": 3}


def test_a_problem_comes_with_the_command_that_shows_it_again(campaign):
    campaign(GOOD, BAD, ENGINE, code=1)
    result = run(2, seed=7, jobs=1)
    assert not result.is_clean and result.failures == [(7, 1)]
    assert result.problems == [
        "prompt 3: wrong; again: python -m tutti_vllm.testing.campaign --seed 7 --schedules 2"
    ]


def test_an_engine_that_dies_is_a_problem(campaign):
    campaign(GOOD, {"death": "TimeoutError()"}, code=1)
    result = run(5, seed=7, jobs=1)
    assert result.deaths == 1 and not result.is_clean
    assert "TimeoutError" in result.problems[0]
    assert "--seed 7 --schedules 2" in result.problems[1] and "noise" in result.problems[1]


def test_a_run_without_any_hit_proves_nothing(campaign):
    campaign(GOOD, {"engine": {}, "counters": {"load_chunks": 0}})
    assert not run(1, seed=7, jobs=1).is_clean


def test_each_campaigns_first_failure_is_made_shorter(monkeypatch, tmp_path, capsys):
    fake = tmp_path / "fake.sh"
    fake.write_text('#!/bin/sh\necho noise\necho "shorter: $*"\n')
    fake.chmod(0o700)
    monkeypatch.setattr(differential.sys, "executable", str(fake))
    result = Result(7, failures=[(7, 9), (8, 4), (7, 3)])
    shrink_failures(result, 5.0)
    run = "-m tutti_vllm.testing.shrink"
    assert result.shortest == [
        f"shorter: {run} --seed 7 --schedule 3 --seconds 5.0",
        f"shorter: {run} --seed 8 --schedule 4 --seconds 5.0",
    ]
    assert "--seed 8 --schedule 4" in capsys.readouterr().out
