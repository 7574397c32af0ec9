# SPDX-License-Identifier: Apache-2.0
"""A short slice of the fuzz, and proof that it sees what it is there to see.

The long run: python -m tutti_runtime.testing.fuzz --operations 20000000 --seed 1
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tutti_runtime as tr
from tutti_runtime import testing
from tutti_runtime.testing.fuzz import Mismatch, run_episode
from tutti_runtime.testing.subjects import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_shows_no_difference(kind: str, tmp_path: Path) -> None:
    try:
        report = run_episode(kind, 2, 0, 6_000, tmp_path)
    except OSError as error:
        pytest.skip(f"{kind}: {error}")
    assert report.operations >= 6_000
    assert report.accepted > 0


def offsets_swapped(rows: np.ndarray) -> np.ndarray:
    """Two requests of one kind go to each other's place."""
    rows = rows.copy()
    good = np.flatnonzero(
        (rows["length"] == 4096) & (rows["direction"] == tr.WRITE) & (rows["reserved"] == 0)
    )
    same = [i for i in good if rows["target"][i] == rows["target"][good[0]]]
    if len(same) > 1:
        rows["target_offset"][same[:2]] = rows["target_offset"][same[1::-1]]
    return rows


def into_a_neighbour(rows: np.ndarray) -> np.ndarray:
    """A read goes to another page of the memory."""
    rows = rows.copy()
    good = np.flatnonzero((rows["length"] == 4096) & (rows["direction"] == tr.READ))
    rows["memory_offset"][good[:1]] ^= np.uint64(4096)
    return rows


@pytest.mark.parametrize("wrong", [offsets_swapped, into_a_neighbour])
def test_bytes_in_the_wrong_place_are_seen(
    wrong: Callable[[np.ndarray], np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = tr.Runtime.submit
    monkeypatch.setattr(
        tr.Runtime, "submit", lambda self, rows, **options: submit(self, wrong(rows), **options)
    )
    with pytest.raises(Mismatch, match=r"wrong bytes|has changed|nobody wrote|errors of bad"):
        run_episode("memory", 1, 0, 20_000, tmp_path)


def all_is_well(done: tr.Completion) -> tr.Completion:
    return dataclasses.replace(done, status=np.zeros_like(done.status))


def nothing_is_late(done: tr.Completion) -> tr.Completion:
    return dataclasses.replace(done, late=np.zeros_like(done.late), late_handle=None)


def everything_failed(done: tr.Completion) -> tr.Completion:
    return dataclasses.replace(done, status=np.full_like(done.status, 5))


@pytest.mark.parametrize("wrong", [all_is_well, nothing_is_late, everything_failed])
def test_results_that_do_not_hold_are_seen(
    wrong: Callable[[tr.Completion], tr.Completion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = tr.Runtime.wait
    monkeypatch.setattr(
        tr.Runtime, "wait", lambda self, handle, timeout=None: wrong(wait(self, handle, timeout))
    )
    with pytest.raises(Mismatch):
        # Which items are late depends on the machine; one episode may have none.
        for episode in range(1, 9):
            run_episode("memory", 1, episode, 60_000, tmp_path)


def test_an_acceptance_that_is_made_up_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = tr.Runtime.submit

    def wrong(self: tr.Runtime, rows: np.ndarray, **options: object) -> tr.SubmitResult:
        result = submit(self, rows, **options)  # type: ignore[arg-type]
        return dataclasses.replace(result, errors=np.where(result.errors == 22, 9, result.errors))

    monkeypatch.setattr(tr.Runtime, "submit", wrong)
    with pytest.raises(Mismatch, match="errors of bad requests"):
        run_episode("memory", 1, 0, 20_000, tmp_path)


def test_a_handle_that_stays_good_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poll = tr.Runtime.poll

    def wrong(self: tr.Runtime, handle: int) -> bool:
        try:
            return poll(self, handle)
        except tr.InvalidHandleError:
            return True

    monkeypatch.setattr(tr.Runtime, "poll", wrong)
    with pytest.raises(Mismatch, match="a handle that was given back is refused"):
        run_episode("memory", 1, 0, 20_000, tmp_path)


def test_the_command_prints_what_it_did(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tutti_runtime.testing.fuzz", "--operations", "20000"]
    command += ["--kinds", "memory", "--processes", "1", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "no difference from the model" in done.stdout
    assert not list(tmp_path.iterdir())
    command += ["--episode", "3", "--kinds", "memory", "posix"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "--episode needs" in done.stderr


def test_plans_add_up() -> None:
    both = testing.failing(5, item=1) + testing.accepting(3)
    assert both.rules == testing.failing(5, item=1).rules
    assert both.accept == 3
    assert (both + testing.reordering(4)).accept == 3
