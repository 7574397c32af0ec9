# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from shared_rig import Server

from tutti_engine.testing.shared_stores import MemoryPool


@pytest.fixture
def pool():
    return MemoryPool()


@pytest.fixture
def server(pool):
    made = []

    def make(**options):
        made.append(Server(pool, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
