# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tutti_engine.backends.memory import MemoryBackend


@pytest.mark.parametrize("name", ["num_layers", "segment_bytes", "num_chunks"])
def test_sizes_below_one_are_refused(name: str) -> None:
    sizes = {"num_layers": 1, "segment_bytes": 4096, "num_chunks": 1}
    with pytest.raises(ValueError, match=name):
        MemoryBackend(**(sizes | {name: 0}))
