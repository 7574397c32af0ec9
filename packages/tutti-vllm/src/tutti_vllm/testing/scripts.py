# SPDX-License-Identifier: Apache-2.0
"""Schedules of a campaign as text that can be run again, and the smallest one of them that still fails."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from tutti_vllm.testing.campaign_models import VOCABULARY, model_of
from tutti_vllm.testing.faults import FAULT_MIXES
from tutti_vllm.testing.schedules import Action, Schedule, make_prompts, make_stages

__all__ = ["Part", "Script", "asked_by", "from_text", "script_of", "shrink", "smaller", "to_text"]

T = TypeVar("T")

FIELDS = {"ask": 2, "abort": 1, "step": 1, "forget": 2, "settle": 0}
"""Numbers that follow each kind of action."""


@dataclass(frozen=True, slots=True)
class Part:
    """A schedule of a script.

    Attributes:
        engine: number of its engine in the campaign; where the next part's is another one, that one starts
            on what this one has stored.
        schedule: what happens.
    """

    engine: int
    schedule: Schedule


Script = tuple[Part, ...]


def script_of(seed: int, schedule: int) -> Script:
    """Return a campaign's schedules up to that one, which is its last."""
    chance = random.Random(seed)
    prompts = make_prompts(chance, VOCABULARY, model_of(seed).geometry.chunk_tokens)
    parts = (Part(stage.number, each) for stage in make_stages(chance, prompts) for each in stage.schedules)
    return tuple(islice(parts, schedule + 1))


def asked_by(script: Script) -> set[int]:
    """Return the indices of the prompts that a script asks."""
    return {action.first for part in script for action in part.schedule.actions if action.kind == "ask"}


def to_text(script: Script) -> str:
    """Return a script in one line: for each part ``ENGINE FAULTS: ACTION, ACTION``, parted by ``|``."""
    return " | ".join(
        f"{part.engine} {part.schedule.faults}: {', '.join(map(_say, part.schedule.actions))}"
        for part in script
    )


def _say(action: Action) -> str:
    return " ".join([action.kind, *map(str, (action.first, action.second)[: FIELDS[action.kind]])])


def from_text(text: str) -> Script:
    """Return the script that ``to_text`` has told. Raises ValueError that names what is none."""
    return tuple(_read(part) for part in text.split("|"))


def _read(text: str) -> Part:
    head, colon, rest = text.partition(":")
    engine, _, faults = head.strip().partition(" ")
    if not colon or not engine.isdecimal() or faults.strip() not in FAULT_MIXES:
        raise ValueError(
            f"{text.strip()!r} is not ENGINE FAULTS: ACTION, ... with faults of {[*FAULT_MIXES]}"
        )
    actions = tuple(_read_action(each.split()) for each in rest.split(",") if each.strip())
    return Part(int(engine), Schedule(faults.strip(), actions))


def _read_action(words: list[str]) -> Action:
    kind: Any = words[0]
    if FIELDS.get(kind) != len(words) - 1 or not all(word.isdecimal() for word in words[1:]):
        raise ValueError(f"{' '.join(words)!r} is no action; they are {FIELDS}, by their numbers")
    return Action(kind, *map(int, words[1:]))


def smaller(script: Script) -> Iterator[Script]:
    """Yield scripts that are a little simpler, the boldest cuts first."""
    yield from (cut for cut in _cuts(script) if cut)
    for at, part in enumerate(script):
        schedule = part.schedule
        simpler = [replace(schedule, actions=cut) for cut in _cuts(schedule.actions)]
        if schedule.faults != "none":
            simpler.append(replace(schedule, faults="none"))
        for number, action in enumerate(schedule.actions):
            before, behind = schedule.actions[:number], schedule.actions[number + 1 :]
            simpler += [replace(schedule, actions=(*before, each, *behind)) for each in _less(action)]
        for each in simpler:
            yield (*script[:at], replace(part, schedule=each), *script[at + 1 :])


def _cuts(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yield a sequence without some of it: without half, a quarter, … one; what comes first goes first."""
    size = len(items) // 2 or len(items)
    while size:
        for start in range(0, len(items), size):
            yield (*items[:start], *items[start + size :])
        size //= 2


def _less(action: Action) -> Iterator[Action]:
    if action.kind == "ask":
        for tokens in dict.fromkeys((1, action.second // 2)):
            if 0 < tokens < action.second:
                yield replace(action, second=tokens)
    elif action.kind == "step" and action.first > 1:
        yield replace(action, first=1)
    elif action.kind == "forget":
        if action.second:
            yield replace(action, second=0)
        if action.first:
            yield replace(action, first=0)


def shrink(
    script: Script,
    fails: Callable[[Script], bool],
    *,
    seconds: float,
    told: Callable[[Script], None] = lambda script: None,
) -> Script:
    """Return the smallest script that still fails, as far as it is found in time.

    Args:
        script: one that fails.
        fails: runs a script.
        seconds: after so many no further one is tried.
        told: called with each smaller one that fails.
    """
    end = time.monotonic() + seconds
    tried = {script}
    found = True
    while found:
        found = False
        for candidate in smaller(script):
            if candidate in tried:
                continue
            if time.monotonic() >= end:
                return script
            tried.add(candidate)
            if fails(candidate):
                script, found = candidate, True
                told(script)
                break
    return script
