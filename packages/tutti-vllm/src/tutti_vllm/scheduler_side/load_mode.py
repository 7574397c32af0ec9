# SPDX-License-Identifier: Apache-2.0
"""Whether a hit is loaded, and how: beside the steps, or layer by layer inside of one.

*Asynchronous*: vLLM parks the request and computes others until all of it has arrived. Nobody else waits, but
the request's own computation starts only after its load. *Layer-wise*: the request is computed in the very
next step, and each layer waits for its own part. Load and computation overlap, but where the load is the
longer one, everybody in the step waits for the difference.

So ``auto`` loads layer-wise where that difference is small: below ``STALL_SECONDS`` when other requests are
being computed, about one step of theirs; below ``IDLE_STALL_SECONDS`` when there are none, because a request
that arrives meanwhile waits that long to be looked at. As long as nothing was measured, it is asynchronous.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tutti_engine.counters import Counters
from tutti_engine.planning.break_even import BreakEven

__all__ = ["LOAD_MODES", "Choice", "LoadChooser", "LoadRules", "why_not_layerwise"]

LOAD_MODES = ("auto", "async", "layerwise")

STALL_SECONDS = 0.01
IDLE_STALL_SECONDS = 0.1

FORGET_SECONDS = 120.0
"""A load that nobody reported for so long holds back no others: every load has ended by its deadlines."""


@dataclass(frozen=True, slots=True)
class LoadRules:
    """What the settings and the server allow.

    Attributes:
        mode: one of ``LOAD_MODES``.
        break_even: whether hits that take longer than computing are refused.
        layerwise: whether vLLM's steps can wait for loads at all.
        max_tokens: tokens that may be on their way at a time; one request's load may always start.
    """

    mode: str = "auto"
    break_even: bool = True
    layerwise: bool = True
    max_tokens: int = 1 << 62


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided for one request.

    Attributes:
        tokens: for a hit of so many tokens.
        load: whether to load it.
        layerwise: whether the step waits for it.
        why: one line for people.
    """

    tokens: int
    load: bool
    layerwise: bool
    why: str


@dataclass(slots=True)
class _Load:
    """A load on its way: of how many tokens, since when, and whether its request waits beside the steps."""

    tokens: int
    begun: float
    parked: bool
    # Of the slowest rank so far.
    seconds: float = 0.0
    failed: bool = False


class LoadChooser:
    """Decides on hits, by what loading and computing took so far, and keeps count of loads on their way.

    Its counters: ``layerwise_loads``, ``async_loads`` (ordered), ``load_turn_waits`` (answers that as much as
    allowed was on its way).
    """

    def __init__(
        self, break_even: BreakEven, rules: LoadRules, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._break_even = break_even
        self._rules = rules
        self._clock = clock
        self.counters = Counters()
        self._loading: dict[int, _Load] = {}
        # The load that has been the only one since it began.
        self._single: int | None = None

    def choose(self, tokens: int, rest: int, others: int, *, held: int = 0) -> Choice:
        """Decide on a hit. Counts the answer, so ask once a request and hit.

        Args:
            tokens: tokens that could be loaded.
            rest: tokens that the request's first step would compute after them.
            others: requests that are being computed now.
            held: tokens before them that the server holds.
        """
        layerwise, how = self._how(tokens, rest, others)
        why = "break_even is off"
        if self._rules.break_even:
            context = held + tokens + rest
            decision = self._break_even.should_load(tokens, rest, context=context, beside=not layerwise)
            if not decision.load:
                return Choice(tokens, False, False, decision.why)
            why = decision.why
        return Choice(tokens, True, layerwise, f"{why}; {how}")

    def is_full(self, tokens: int) -> bool:
        """Whether a load has to wait because as much as allowed is on its way."""
        loading = self._tokens_loading()
        full = loading > 0 and loading + tokens > self._rules.max_tokens
        if full:
            self.counters.add("load_turn_waits")
        return full

    def begin(self, plan_id: int, tokens: int, *, parked: bool) -> None:
        """Take note of a load that was ordered, and whether its request waits beside the steps."""
        self.counters.add("async_loads" if parked else "layerwise_loads")
        self._single = None if self._loading or not parked else plan_id
        self._loading[plan_id] = _Load(tokens, self._clock(), parked)

    def note_part(self, plan_id: int, seconds: float, *, failed: bool) -> None:
        """Take note that a rank has reported its part of a load, which took so many seconds."""
        load = self._loading.get(plan_id)
        if load is not None:
            load.seconds = max(load.seconds, seconds)
            load.failed |= failed

    def end(self, plan_id: int) -> None:
        """Take note that every rank has reported a load."""
        load = self._loading.pop(plan_id, None)
        if load is not None and load.seconds > 0.0 and not load.failed and plan_id == self._single:
            # Others, which reads go in turn with, would count as the server's delay.
            self._break_even.note_wait(self._clock() - load.begun - load.seconds)

    @property
    def parked(self) -> bool:
        """Whether loads beside the steps are on their way."""
        self._forget()
        return any(load.parked for load in self._loading.values())

    def _how(self, tokens: int, rest: int, others: int) -> tuple[bool, str]:
        if not self._rules.layerwise:
            return False, "async: the server's steps cannot wait for layers"
        if self._rules.mode != "auto":
            return self._rules.mode == "layerwise", f"load_mode is {self._rules.mode!r}"
        load = self._break_even.load_seconds(self._tokens_loading() + tokens)
        compute = self._break_even.compute_seconds(rest)
        if load is None or compute is None:
            return False, "async: too little was measured to tell whether a step can wait"
        allowed = STALL_SECONDS if others else IDLE_STALL_SECONDS
        stall = max(0.0, load - compute)
        layerwise = stall <= allowed
        return layerwise, (
            f"{'layer-wise' if layerwise else 'async'}: the step would wait {stall * 1e3:.3g} ms longer"
            f" than it computes ({rest} tokens), {allowed * 1e3:.3g} ms are allowed beside {others} requests"
        )

    def _tokens_loading(self) -> int:
        self._forget()
        return sum(load.tokens for load in self._loading.values())

    def _forget(self) -> None:
        if self._loading:
            oldest = self._clock() - FORGET_SECONDS
            for plan_id in [each for each, load in self._loading.items() if load.begun < oldest]:
                del self._loading[plan_id]


def why_not_layerwise(
    mode: str, *, concurrent_steps: int, full_graphs: bool, whole_requests: bool = False, copies: int = 1
) -> str | None:
    """Return why no step of this server can wait for layers, None if some can.

    Args:
        mode: one of ``LOAD_MODES``.
        concurrent_steps: steps that vLLM has under way at a time.
        full_graphs: whether vLLM replays whole models as CUDA graphs, without calls between layers.
        whole_requests: whether vLLM can be told only of whole requests that their loads failed.
        copies: ranks that load what one of them stores.
    """
    if mode == "async":
        return "load_mode is 'async'"
    if concurrent_steps > 1:
        return (
            "vLLM plans a step before the last one has ended (asynchronous scheduling or pipeline stages), "
            "and a load that fails would have spoilt the next step already"
        )
    if full_graphs:
        return "full CUDA graphs call nobody between layers"
    if whole_requests:
        return "with several KV cache groups or windows vLLM takes back a failed load only before its step"
    if copies > 1:
        return (
            f"{copies} ranks hold the same KV and one stores it, which could not know that another's load"
            " failed in this step"
        )
    return None
