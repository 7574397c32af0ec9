# SPDX-License-Identifier: Apache-2.0
"""One trace, several capacities, several policies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tutti_engine.policies.settings import PolicySettings
from tutti_engine.simulator.clairvoyant import clairvoyant_hits
from tutti_engine.simulator.replay import BYTES_PER_TOKEN, Outcome, Replay, replay
from tutti_engine.simulator.trace import BLOCK_TOKENS, Request, unique_blocks

__all__ = ["CLAIRVOYANT", "Row", "Sweep", "parse_capacity", "sweep"]

CLAIRVOYANT = "clairvoyant"

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is tried.

    Attributes:
        capacities: places of the store.
        policies: who is stored, who stays and who goes.
        block_tokens: tokens of a block of the trace.
        bytes_per_token: KV cache of one token, over all ranks.
        partial_blocks: whether blocks that are not full are stored as well.
        clairvoyant: whether the bound of knowing the future is computed too.
        trace_memory: whether the planner's memory is measured.
    """

    capacities: tuple[int, ...]
    policies: tuple[PolicySettings, ...]
    block_tokens: int = BLOCK_TOKENS
    bytes_per_token: int = BYTES_PER_TOKEN
    partial_blocks: bool = False
    clairvoyant: bool = True
    trace_memory: bool = False

    def steps(self, num_requests: int) -> int:
        """Return how many requests are replayed in all."""
        return len(self.capacities) * (len(self.policies) + self.clairvoyant) * num_requests


@dataclass(frozen=True, slots=True)
class Row:
    """One result.

    Attributes:
        policy: name of the eviction, or ``CLAIRVOYANT``.
        capacity_chunks: places of the store.
        share: the same as a share of the trace's different blocks.
        block_hit_rate: share of prompt blocks that were hits.
        outcome: everything else; None for the bound.
    """

    policy: str
    capacity_chunks: int
    share: float
    block_hit_rate: float
    outcome: Outcome | None


def sweep(
    requests: Sequence[Request], plan: Sweep, progress: Callable[[int], object] = lambda done: None
) -> list[Row]:
    """Run it all; ``progress`` is told of requests as they are done."""
    unique = unique_blocks(requests)
    blocks = sum(len(request.blocks) for request in requests)
    rows = []
    for capacity in plan.capacities:
        for policies in plan.policies:
            how = Replay(
                capacity,
                policies,
                partial_blocks=plan.partial_blocks,
                block_tokens=plan.block_tokens,
                bytes_per_token=plan.bytes_per_token,
                trace_memory=plan.trace_memory,
            )
            outcome = replay(requests, how, progress)
            rows.append(Row(policies.eviction, capacity, capacity / unique, outcome.block_hit_rate, outcome))
        if plan.clairvoyant:
            whole = None if plan.partial_blocks else plan.block_tokens
            hits = clairvoyant_hits(requests, capacity, whole_only=whole)
            rows.append(Row(CLAIRVOYANT, capacity, capacity / unique, hits / max(1, blocks), None))
            progress(len(requests))
    return rows


def parse_capacity(text: str, requests: Sequence[Request], chunk_bytes: int) -> int:
    """Return the places of a capacity given as share, blocks or bytes; at least one.

    Raises ValueError for a text that is none of them.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[KMGTP]?(?:i?B)?)", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError(f"capacity must be like 5%, 9000 (blocks) or 200GB, above 0, not {text!r}")
    number, unit = float(found[1]), found[2].upper()
    if unit == "%":
        return max(1, int(number / 100 * unique_blocks(requests)))
    if not unit.endswith("B"):
        return max(1, int(number * UNITS[unit]))
    factor = UNITS[unit.removesuffix("B").removesuffix("I")]
    if "I" in unit:
        factor = 1 << 10 * (len(str(factor)) // 3)
    return max(1, int(number * factor) // chunk_bytes)
