# SPDX-License-Identifier: Apache-2.0
"""What a chunk has to pass before it is stored: the policies, the day's writes, its tenant's share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from tutti_engine.counters import Counters
from tutti_engine.plan import ChunkKey
from tutti_engine.planning.chunk_index import ChunkIndex
from tutti_engine.policies.eviction import NO_USE, Use
from tutti_engine.policies.settings import PolicySettings
from tutti_engine.policies.write_budget import WriteBudget

__all__ = ["Candidate", "StoreGate", "place_in_prompts"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that could be stored.

    Attributes:
        key: its key.
        parent: the chunk that it goes on from; None if it is a first one, or nobody says.
        use: its prompt.
    """

    key: ChunkKey
    parent: ChunkKey | None = None
    use: Use = NO_USE


def place_in_prompts(
    keys: Iterable[ChunkKey], prefixes: Sequence[Sequence[ChunkKey]], uses: Sequence[Use]
) -> dict[ChunkKey, Candidate]:
    """Return each key with its parent and use, found in the prompt's prefix that it belongs to."""
    found = {key: Candidate(key) for key in keys}
    for prefix, use in zip(prefixes, uses):
        # New chunks lie at the end of a prefix, which may be long.
        missing = len(found)
        for position in range(len(prefix) - 1, -1, -1):
            key = prefix[position]
            if key in found:
                found[key] = Candidate(key, prefix[position - 1] if position else None, use)
                missing -= 1
                if not missing:
                    break
            elif position and position < len(prefix) - len(found):
                break
    return found


class StoreGate:
    """Lets chunks through, or not, and counts those that it does not.

    Its counters are ``refused_chunks`` (the policies), ``over_budget_chunks`` (the day's writes),
    ``over_quota_chunks`` (the tenant's share).

    Args:
        index: where they would go.
        settings: who decides.
        counters: where refusals are counted.
        write_bytes: bytes that storing one chunk writes, over all ranks.
        budget: bytes that may be written.
    """

    def __init__(
        self,
        index: ChunkIndex,
        settings: PolicySettings,
        counters: Counters,
        *,
        write_bytes: int,
        budget: WriteBudget,
    ) -> None:
        self._index = index
        self._admission = settings.make_admission(index.capacity)
        self._counters = counters
        self._write_bytes = write_bytes
        self._budget = budget
        self._spent = False

    def begin(self, keys: Sequence[ChunkKey]) -> None:
        """Take note of a prompt's chunks."""
        self._admission.begin(keys)

    def choose(self, candidates: Iterable[Candidate], *, full: bool) -> list[Candidate]:
        """Return those that are to be stored.

        A chunk is not stored without the one that it goes on from.

        Args:
            candidates: in the order of their prompts.
            full: whether others have to go for them.
        """
        index = self._index
        # Asked once for the whole plan: those that go are of a kind.
        victim = cache(index.next_victim) if full else _nobody
        worth: dict[int, bool] = {}
        refused: set[ChunkKey] = set()
        chosen: list[Candidate] = []
        names: set[ChunkKey] = set()
        for each in candidates:
            mark = each.use.mark
            if full and each.use is not NO_USE and mark not in worth:
                worth[mark] = index.admits(each.use)
            there = each.parent is None or each.parent in names or each.parent in index
            if there and worth.get(mark, True) and self._admission.admits(each.key, victim):
                chosen.append(each)
                names.add(each.key)
            else:
                refused.add(each.key)
        self._count("refused_chunks", len(refused))
        return self._within_budget(self._within_quotas(chosen))

    def budget_left(self) -> float | None:
        """Return the bytes that may be written at once now, None if there is no limit."""
        return self._budget.left()

    def put_back(self, num_chunks: int) -> None:
        """Give back the budget of chunks that were not stored after all."""
        self._budget.put_back(num_chunks * self._write_bytes)

    def _within_quotas(self, chosen: list[Candidate]) -> list[Candidate]:
        wanted: dict[int, int] = {}
        for each in chosen:
            if each.use.tenant:
                wanted[each.use.tenant] = wanted.get(each.use.tenant, 0) + 1
        allowed = {}
        for tenant, number in wanted.items():
            gone, allowed[tenant] = self._index.evict_excess(tenant, number)
            self._count("evicted_chunks", gone)
        within = []
        for each in chosen:
            tenant = each.use.tenant
            if tenant:
                if not allowed[tenant]:
                    continue
                allowed[tenant] -= 1
            within.append(each)
        self._count("over_quota_chunks", len(chosen) - len(within))
        return within

    def _within_budget(self, chosen: list[Candidate]) -> list[Candidate]:
        for position in range(len(chosen)):
            if not self._budget.take(self._write_bytes):
                self._count("over_budget_chunks", len(chosen) - position)
                if not self._spent:
                    logger.info("Tutti: the write budget is spent; chunks are stored again as it fills.")
                self._spent = True
                return chosen[:position]
        self._spent = False
        return chosen

    def _count(self, name: str, amount: int) -> None:
        if amount:
            self._counters.add(name, amount)


def _nobody() -> ChunkKey | None:
    return None
