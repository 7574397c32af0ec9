# SPDX-License-Identifier: Apache-2.0
"""What ``tutti doctor`` says of Mooncake; the real one is asked in ``tests/contract/test_mooncake.py``."""

import errno

import pytest

from tutti_engine.doctor import mooncake
from tutti_engine.doctor.mooncake import examine_mooncake
from tutti_engine.errors import BackendError


@pytest.fixture
def builds(monkeypatch):
    def use(*names):
        monkeypatch.setattr(mooncake, "installed", lambda: iter(names))

    return use


@pytest.fixture
def cluster(monkeypatch):
    def use(answer):
        def check(options):
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(mooncake, "check_cluster", check)

    return use


def verdicts(master):
    return [(each.verdict, each.name) for each in examine_mooncake(master)]


def test_nobody_needs_it_unless_a_master_is_named(builds):
    builds()
    assert verdicts(None) == [("note", "mooncake")]
    assert verdicts("host:1") == [("fail", "mooncake")]


def test_several_builds_in_one_place_are_told(builds):
    builds("one 1", "other 1")
    (finding,) = examine_mooncake(None)
    assert finding.verdict == "fail" and "one 1, other 1" in finding.found


@pytest.mark.parametrize(
    ("answer", "verdict", "text"),
    [
        (0.0012, "ok", "host:1 answers a question in 1.2 ms"),
        (OSError(errno.ECONNREFUSED, "the master does not answer"), "fail", "does not answer"),
        (BackendError("a library is missing"), "fail", "a library is missing"),
    ],
)
def test_a_master_is_asked(builds, cluster, answer, verdict, text):
    builds("one 1")
    cluster(answer)
    _, finding = examine_mooncake("host:1")
    assert finding.verdict == verdict and text in finding.found
    assert finding.fix or verdict == "ok"


def test_what_is_no_address_is_told(builds):
    builds("one 1")
    _, finding = examine_mooncake("nowhere")
    assert finding.verdict == "fail" and "host:port" in finding.found
