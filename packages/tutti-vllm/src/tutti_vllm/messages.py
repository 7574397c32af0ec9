# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side tells the workers in each step, and what they tell it back.

Everything here is pickled between processes and free of vLLM's types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from tutti_engine import LoadPlan, StorePlan
from tutti_engine.block_rows import named_blocks
from tutti_engine.execution.executor import Result
from tutti_engine.store.layout import StoreLayout

__all__ = ["RequestLoad", "StepOrders", "StepReport"]


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """A load of one request, which waits for it; or, layer-wise, whose step does.

    Attributes:
        request_id: vLLM's id of the request.
        lost: without a plan the blocks that the load was promised to fill, of all groups: they are reported
            as failed.
        plan: how; None if it could not be made.
        layerwise: whether the step that carries the order computes with these blocks.
        patience: of a load from the shared store the seconds after which it has failed. A request may wait
            for a load from each of both stores.
    """

    request_id: str
    lost: tuple[int, ...]
    plan: LoadPlan | None
    layerwise: bool = False
    patience: float = 0.0

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Blocks that the load was promised to fill, of all groups."""
        if self.plan is None:
            return self.lost
        return tuple(chain.from_iterable(map(named_blocks, self.plan.columns.groups)))


@dataclass(frozen=True, slots=True)
class StepOrders:
    """Orders of one step.

    Attributes:
        layout: where the store is; comes with the first orders and with all that have something to do.
        shared: with the layout the digest that names the shared store's objects; empty without one.
        loads: loads to start.
        stores: chunks that the step completes.
        unwanted: ids of load plans whose requests are gone: their blocks are wanted back.
        idle: whether the step computes nothing.
        rewritten: blocks that the step or its loads may write to; told while stores are under way. None: any.
    """

    layout: StoreLayout | None = None
    loads: tuple[RequestLoad, ...] = ()
    stores: tuple[StorePlan, ...] = ()
    unwanted: tuple[int, ...] = ()
    rewritten: tuple[int, ...] | None = ()
    shared: str = ""
    idle: bool = False


@dataclass(slots=True)
class StepReport:
    """Plans that ended, by rank, and for a rank that cannot use its KV cache at all the reason."""

    results: dict[int, tuple[Result, ...]] = field(default_factory=dict)
    unusable: dict[int, str] = field(default_factory=dict)

    def merge(self, other: StepReport) -> StepReport:
        """Return what both reports say; ranks never overlap."""
        return StepReport(self.results | other.results, self.unusable | other.unusable)
