# SPDX-License-Identifier: Apache-2.0
"""Random schedules: which engine, which prompts, who asks, aborts, resets and waits when. No vLLM here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tutti_vllm.settings.settings import Settings
from tutti_vllm.testing.campaign_models import BLOCK_TOKENS
from tutti_vllm.testing.faults import FAULT_MIXES

__all__ = [
    "Action",
    "EngineChoice",
    "Prompt",
    "Schedule",
    "Stage",
    "make_choice",
    "make_prompts",
    "make_schedule",
    "make_stages",
]

SCHEDULES_AN_ENGINE = 25

MAX_TOKENS = 512
MAX_ANSWER = 24


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the pool: the answer to an earlier one and what follows, or tokens alone.

    Attributes:
        tokens: tokens of its own.
        turn_of: index of the prompt that it continues, after that one's answer; None for a first turn.
    """

    tokens: tuple[int, ...]
    turn_of: int | None = None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """How one engine is started.

    Attributes:
        options: arguments of ``vllm.LLM``.
        capacity_chunks: chunks that fit the store.
        settings: further settings of the connector.
        load_slots: staging slots for loads; 0 for the default.
        store_slots: staging slots for stores; 0 for the default.
        late_copies: longest time in seconds until pages of a store are copied, as on a device; 0 for at once.
        policy: what vLLM does with a request whose load fails.
        overlapped: whether a step is planned before the one before it has ended.
    """

    options: dict[str, Any]
    capacity_chunks: int
    settings: dict[str, Any]
    load_slots: int = 0
    store_slots: int = 0
    late_copies: float = 0.0
    policy: Literal["recompute", "fail"] = "recompute"
    overlapped: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that happens.

    ``ask`` prompt ``first`` for ``second`` tokens; ``abort`` the live request number ``first``; ``step`` the
    engine ``first`` times; ``forget`` the prefix cache, with ``first`` the connector's too, with ``second``
    while requests run; ``settle`` until nothing is left to do.
    """

    kind: Literal["ask", "abort", "step", "forget", "settle"]
    first: int = 0
    second: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens on an engine between two moments at which it is idle.

    Attributes:
        faults: name of the mix of faults.
        actions: in order.
    """

    faults: str
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One engine's part of a campaign.

    Attributes:
        number: of the engine in its campaign; each starts on what the one before it stored.
        choice: how it is started.
        seed: of the faults that it meets.
        schedules: what it is put through.
    """

    number: int
    choice: EngineChoice
    seed: int
    schedules: tuple[Schedule, ...]


def make_stages(chance: random.Random, prompts: Sequence[object]) -> Iterator[Stage]:
    """Yield a campaign's engines without end; ``chance`` has just made the prompts."""
    number = 0
    while True:
        choice = make_choice(chance)
        seed = chance.randrange(1 << 30)
        schedules = tuple(make_schedule(chance, prompts) for _ in range(SCHEDULES_AN_ENGINE))
        yield Stage(number, choice, seed, schedules)
        number += 1


def make_prompts(chance: random.Random, vocabulary: int, chunk_tokens: int) -> list[Prompt]:
    """Return prompts that share prefixes, inside chunks and at their ends, and second turns of some."""

    def fresh(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(3, vocabulary) for _ in range(count))

    prompts: list[Prompt] = []
    for _ in range(3):
        root = fresh(chance.choice([chunk_tokens, chunk_tokens + BLOCK_TOKENS, chance.randrange(20, 200)]))
        for _ in range(3):
            middle = root + fresh(chance.randrange(5, 130))
            prompts += [Prompt(middle), Prompt(middle + fresh(chance.randrange(1, 110)))]
    prompts += [Prompt(fresh(chunk_tokens * n + extra)) for n in (1, 2, 3) for extra in (0, 1)]
    for _ in range(6):
        before = chance.randrange(len(prompts))
        if prompts[before].turn_of is None:
            prompts.append(Prompt(fresh(chance.randrange(1, 60)), before))
    return prompts


def make_choice(chance: random.Random) -> EngineChoice:
    """Return an engine; its memory holds between one and a few of the longest requests."""
    known = {each.name for each in fields(Settings)}
    settings: dict[str, Any] = {}
    # Each at its place in the row of random numbers, whether this release knows it or not.
    load_mode = chance.choice(["auto", "async", "layerwise"])
    store_mode = chance.choice(["after_step", "layerwise"])
    if "load_mode" in known:
        settings["load_mode"] = load_mode
    if "store_mode" in known:
        settings["store_mode"] = store_mode
    if "break_even" in known:
        # A refused load proves nothing.
        settings["break_even"] = False
    choice = EngineChoice(
        options={
            "num_gpu_blocks_override": chance.choice([18, 24, 34, 50]),
            "enable_prefix_caching": chance.random() < 0.75,
            "max_num_batched_tokens": chance.choice([64, 128, 256, 2048]),
            "max_num_seqs": chance.choice([3, 8]),
        },
        capacity_chunks=chance.choice([4, 12, 40, 120]),
        settings=settings,
        load_slots=chance.choice([0, 8, 16]),
        store_slots=chance.choice([0, 8, 32]),
        late_copies=chance.choice([0.0, 0.0, 0.02, 0.2]),
    )
    # What can be chosen since later has a row of its own: a seed still means the schedules that it meant.
    more = random.Random(repr(choice))
    policy: Literal["recompute", "fail"] = "fail" if more.random() < 0.25 else "recompute"
    return replace(choice, policy=policy, overlapped=more.random() < 0.4)


def make_schedule(chance: random.Random, prompts: Sequence[object]) -> Schedule:
    """Return a short schedule; most ask again for what was asked before."""
    faults = chance.choice(["none", "none", *FAULT_MIXES])
    # A few prompts a schedule, so that requests meet each other's prefixes.
    pool = [chance.randrange(len(prompts)) for _ in range(chance.randrange(1, 5))]
    actions: list[Action] = []
    if chance.random() < 0.6:
        # What the last schedule left in vLLM's own cache would hide what is on disk.
        actions.append(Action("forget"))
    for _ in range(chance.randrange(3, 16)):
        dice = chance.random()
        if dice < 0.5:
            longest = MAX_ANSWER if chance.random() < 0.2 else 6
            actions.append(Action("ask", chance.choice(pool), chance.randrange(1, longest)))
        elif dice < 0.6:
            actions.append(Action("abort", chance.randrange(8)))
        elif dice < 0.84:
            actions.append(Action("step", chance.randrange(1, 7)))
        elif dice < 0.96:
            actions.append(Action("forget", int(chance.random() < 0.15), int(chance.random() < 0.3)))
        else:
            actions.append(Action("settle"))
    return Schedule(faults, tuple(actions))
