# SPDX-License-Identifier: Apache-2.0
"""The engine as an inference server sees it: a planning side, an execution side, or both."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tutti_engine.backend import StorageBackend
from tutti_engine.catalogue.catalogue import Record
from tutti_engine.chunk_transfer import BlockIds
from tutti_engine.execution.executor import Executor, Result
from tutti_engine.execution.settings import ExecutionSettings
from tutti_engine.execution.transfer import Transfer
from tutti_engine.geometry import Geometry
from tutti_engine.mover import Mover
from tutti_engine.plan import ChunkId, ChunkKey, LoadPlan, LoadResult, StorePlan, StoreResult, StoreSettled
from tutti_engine.planning.break_even import BreakEven, Decision
from tutti_engine.planning.places import Places
from tutti_engine.planning.planner import Planner, PlannerJournal
from tutti_engine.policies.eviction import Use
from tutti_engine.policies.settings import PolicySettings

__all__ = ["TuttiEngine"]


class TuttiEngine:
    """One namespace's cache.

    A server whose scheduler and workers are separate processes makes one engine for planning in the scheduler
    (``chunk_ids``, ``journal``) and one for execution in each worker (``backend``, then ``bind``), and
    carries plans and results between them. A server in one process gives all of it to a single engine and
    calls ``settle``.
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        chunk_ids: Sequence[ChunkId] | None = None,
        records: Iterable[Record] = (),
        journal: PlannerJournal | None = None,
        places: Places | None = None,
        read_only: bool = False,
        break_even: BreakEven | None = None,
        ranks: int = 1,
        load_ranks: int | None = None,
        policies: PolicySettings | None = None,
        backend: StorageBackend | None = None,
        rank: int = 0,
    ) -> None:
        """Make an engine.

        Args:
            geometry: shape of a chunk on each rank.
            chunk_ids: planning side only: the places, as the backend names them.
            records: planning side only: what was resident when the store was opened.
            journal: planning side only: where to write down what is resident; None keeps it in memory.
            places: planning side only: who decides which free places may be used; None allows all.
            read_only: planning side only: never plan a store.
            break_even: planning side only: decides whether loads are worth their time; None makes a new one.
            ranks: planning side only: how many ranks store and report on each store.
            load_ranks: planning side only: how many ranks report on each load; by default as many.
            policies: planning side only: who is stored, who stays and who goes.
            backend: execution side only: where segments live.
            rank: execution side only: this rank's number.
        """
        self.geometry = geometry
        self._planner = (
            None
            if chunk_ids is None
            else Planner(
                geometry,
                chunk_ids,
                ranks=ranks,
                load_ranks=load_ranks,
                records=records,
                journal=journal,
                places=places,
                read_only=read_only,
                policies=policies,
            )
        )
        self.break_even = BreakEven() if break_even is None else break_even
        if self._planner is not None:
            self._planner.on_loaded = self._note_load
        self._backend = backend
        self._rank = rank
        self._executor: Executor | None = None

    @property
    def planner(self) -> Planner:
        """The planning side. Raises RuntimeError on an engine without one."""
        if self._planner is None:
            raise RuntimeError("this engine only executes: give it chunk_ids to plan as well")
        return self._planner

    @property
    def executor(self) -> Executor:
        """The execution side. Raises RuntimeError before ``bind``."""
        if self._executor is None:
            raise RuntimeError("this engine is not bound to a KV cache: call bind first")
        return self._executor

    # Planning side.

    def lookup_prefix(self, keys: Sequence[ChunkKey]) -> int:
        """Return how many leading tokens could be loaded, a whole number of chunks. Changes nothing."""
        return self.planner.lookup_prefix(keys) * self.geometry.chunk_tokens

    def should_load(self, tokens: int) -> Decision:
        """Return whether loading so many tokens is faster than computing them, and why.

        Loads are measured as they complete. What computing takes only the server knows: tell it with
        ``note_compute``; until then every load is welcome.
        """
        return self.break_even.should_load(tokens)

    def note_compute(self, tokens: int, seconds: float) -> None:
        """Take the time that a request waited for the prefill of so many tokens."""
        self.break_even.note_compute(tokens, seconds)

    def note_prompt(self, keys: Sequence[ChunkKey], tenant: str | None = None) -> Use:
        """Take note of a new prompt, for the policies; see ``Planner.note_prompt``."""
        return self.planner.note_prompt(keys, tenant)

    def plan_load(self, wanted: Sequence[tuple[ChunkKey, BlockIds]], use: Use | None = None) -> LoadPlan:
        """Pin the chunks and plan their load; see ``Planner.plan_load``."""
        return self.planner.plan_load(wanted, use)

    def plan_store(
        self,
        candidates: Sequence[tuple[ChunkKey, BlockIds]],
        prefixes: Sequence[Sequence[ChunkKey]] = (),
        uses: Sequence[Use] = (),
    ) -> StorePlan | None:
        """Plan to store the chunks that are not known yet; see ``Planner.plan_store``."""
        return self.planner.plan_store(candidates, prefixes, uses)

    def complete_load(self, result: LoadResult, rank: int | None = None) -> bool:
        """Take one rank's report of a load; the last one's is also a measurement of what loading costs.

        ``rank`` as ``Planner.complete_load`` has it.
        """
        return self.planner.complete_load(result, rank)

    def _note_load(self, chunks: int, seconds: float) -> None:
        self.break_even.note_load(chunks * self.geometry.chunk_tokens, seconds)

    def complete_store(self, rank: int, result: StoreResult) -> bool:
        """Take one rank's report of a store."""
        return self.planner.complete_store(rank, result)

    def note_settled(self, rank: int, settled: StoreSettled) -> None:
        """Take one rank's word that late writes have ended."""
        self.planner.note_settled(rank, settled)

    def take(self, rank: int, result: Result) -> None:
        """Take whatever a rank's ``take_results`` returned."""
        if isinstance(result, LoadResult):
            self.complete_load(result, rank)
        elif isinstance(result, StoreResult):
            self.complete_store(rank, result)
        else:
            self.note_settled(rank, result)

    def reset(self, timeout: float = 5.0) -> bool:
        """Forget every chunk; see ``Planner.reset``."""
        return self.planner.reset(timeout)

    # Execution side.

    def bind(self, mover: Mover, settings: ExecutionSettings | None = None) -> None:
        """Connect the backend with the server's pages and start the transfer threads.

        Args:
            mover: how pages are reached.
            settings: bounds, deadlines and verification.
        """
        if self._backend is None:
            raise RuntimeError("this engine only plans: give it a backend to bind it")
        if self._executor is not None:
            raise RuntimeError("this engine is bound already")
        self._executor = Executor(self.geometry, self._backend, mover, settings, rank=self._rank)

    def reuse_blocks(self, blocks: Iterable[int]) -> None:
        """Give blocks back that the server is about to write to; see ``Executor.reuse_blocks``."""
        if self._executor is not None:
            self._executor.reuse_blocks(blocks)

    def leave_pages(self) -> None:
        """Give up stores whose pages have not been copied; nothing reads pages for one once this returns."""
        if self._executor is not None:
            self._executor.leave_pages()

    def load(self, plan: LoadPlan) -> Transfer:
        """Start to load every layer of a plan."""
        return self.executor.load(plan)

    def load_layer(self, plan: LoadPlan, layer: int) -> Transfer:
        """Start to load one layer; the plan ends once every layer was asked for."""
        return self.executor.load(plan, (layer,))

    def load_layers(self, plan: LoadPlan) -> tuple[Transfer, ...]:
        """Start to load a plan layer by layer, in order; one transfer a layer, to wait for it.

        A bounded number of layers is read ahead of the one that is being copied.
        """
        return tuple(self.executor.load(plan, (layer,)) for layer in self.geometry.held_layers)

    def give_up_load(self, plan: LoadPlan) -> None:
        """End a load early, for a server that cannot wait any longer or wants its pages back.

        Once this returns nothing writes to them any more. The plan's result comes when its reads have ended.
        """
        self.executor.give_up(plan)

    def store(self, plan: StorePlan) -> None:
        """Copy a plan's pages now and write them in the background."""
        self.executor.store(plan)

    def store_layer(self, plan: StorePlan, layer: int) -> None:
        """Copy one layer's pages now; the plan ends once every layer was handed over."""
        self.executor.store(plan, (layer,))

    def take_results(self) -> list[Result]:
        """Return the plans that ended on this rank since the last call, and late writes that did."""
        return self.executor.take_results()

    def wait_for_results(self, deadline: float) -> bool:
        """Wait until ``take_results`` has something or ``time.monotonic()`` reaches ``deadline``.

        Return whether it has. A server that has nothing to compute waits here, instead of asking again and
        again: what asks is Python, and keeps those who load from running.
        """
        return self._executor is not None and self._executor.wait_for_results(deadline)

    def settle(self) -> list[Result]:
        """Report this rank's finished plans to this engine's own planning side, and return them."""
        results = self.take_results()
        for result in results:
            self.take(self._rank, result)
        return results

    def wait_idle(self, deadline: float) -> bool:
        """Wait until every plan given to this rank has ended."""
        return self._executor is None or self._executor.wait_idle(deadline)

    def shutdown(self, timeout: float = 5.0) -> bool:
        """Finish what is under way for up to ``timeout`` seconds; return False if something was left."""
        if self._executor is not None:
            return self._executor.shutdown(time.monotonic() + timeout)
        if self._backend is not None:
            self._backend.shutdown()
        return True
