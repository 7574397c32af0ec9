# SPDX-License-Identifier: Apache-2.0
"""Random operations on a runtime, compared with a model that knows every byte: ``python -m …fuzz --help``.

An episode is one runtime with a few targets and memories; episode ``e`` of seed ``s`` makes the same choices
wherever and whenever it runs, apart from what depends on when the device answers.
"""

from __future__ import annotations

from tutti_runtime.testing.fuzz.episode import EpisodeReport, run_episode
from tutti_runtime.testing.fuzz.model import Mismatch

__all__ = ["EpisodeReport", "Mismatch", "run_episode"]
