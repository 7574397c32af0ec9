# SPDX-License-Identifier: Apache-2.0
"""Bytes go where the requests say, on every data path."""

from __future__ import annotations

import numpy as np
from runtime_kit import KIB, Setup, batch, request, run

import tutti_runtime as tr

MIB = 1024 * KIB


def test_written_bytes_come_back(setup: Setup) -> None:
    buffer, memory = setup.memory(MIB)
    target = setup.target(MIB)
    expected = buffer.fill_random(1)

    done = run(setup.runtime, batch(request(tr.WRITE, memory, 0, target, 0, MIB)))
    assert done.status.tolist() == [0]
    assert done.bytes.tolist() == [MIB]

    buffer.bytes[:] = 0
    done = run(setup.runtime, batch(request(tr.READ, memory, 0, target, 0, MIB)))
    assert done.status.tolist() == [0]
    assert done.bytes.tolist() == [MIB]
    assert np.array_equal(buffer.bytes, expected)
