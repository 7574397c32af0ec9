# SPDX-License-Identifier: Apache-2.0
"""The documented metrics are those that the connector registers."""

from __future__ import annotations

import re

import pytest

from tools.layers import ROOT

DOCUMENT = ROOT / "packages" / "tutti-vllm" / "docs" / "metrics.md"


def test_the_table_is_the_one_that_the_code_prints() -> None:
    table = pytest.importorskip("tutti_vllm.metrics.metric_table", reason="tutti-vllm is not installed here")
    shown = DOCUMENT.read_text().partition("<!-- metrics: start -->\n")[2]
    shown = shown.partition("<!-- metrics: end -->")[0]
    assert shown == table.markdown(), "`python -m tutti_vllm.metrics.metric_table` prints it"


def test_every_metric_that_the_text_names_is_in_the_table() -> None:
    table = pytest.importorskip("tutti_vllm.metrics.metric_table", reason="tutti-vllm is not installed here")
    named = set(re.findall(r"vllm:tutti_\w+", DOCUMENT.read_text()))
    assert named == {metric.shown_name for metric in table.METRICS}
