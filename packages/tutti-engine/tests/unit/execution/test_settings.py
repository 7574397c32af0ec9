# SPDX-License-Identifier: Apache-2.0
"""Numbers that no clock or lock can take are refused where they are given."""

import math

import pytest

from tutti_engine.execution.settings import ExecutionSettings


@pytest.mark.parametrize("name", ["io_timeout", "store_stall"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e10, True, "1", None])
def test_a_deadline_that_is_none_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        ExecutionSettings(**{name: value})
