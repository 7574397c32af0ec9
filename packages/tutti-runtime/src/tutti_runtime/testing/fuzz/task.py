# SPDX-License-Identifier: Apache-2.0
"""What the processes of the fuzz do."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tutti_runtime.testing.fuzz.episode import EpisodeReport, run_episode

__all__ = ["EPISODE", "Task", "run_task"]

EPISODE = 20_000
"""Operations of an episode, at least."""


@dataclass(frozen=True, slots=True)
class Task:
    """Which episode to run, and where to put files."""

    kind: str
    seed: int
    number: int
    folder: str


def run_task(task: Task) -> tuple[Task, EpisodeReport | None, str]:
    """Run an episode; returns its report, or what went wrong."""
    logging.getLogger("tutti_runtime").setLevel(logging.ERROR)  # stepping down is wanted here
    try:
        with tempfile.TemporaryDirectory(dir=task.folder) as folder:
            return task, run_episode(task.kind, task.seed, task.number, EPISODE, Path(folder)), ""
    except Exception as error:
        return task, None, f"{type(error).__name__}: {error}"
