# SPDX-License-Identifier: Apache-2.0
"""The connector on a backend that fails at random: name this module in ``kv_connector_module_path``.

For engines whose scheduler and worker share the process of the test, which sets ``CONDITIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tutti_engine import ExecutionSettings, Geometry, Mover, TuttiEngine
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.store_layout import StoreLayout
from tutti_vllm import opening
from tutti_vllm.connector_v1 import TuttiConnectorV1
from tutti_vllm.testing.faults import FaultMix, FaultyBackend

__all__ = ["CONDITIONS", "Conditions", "FaultyTuttiConnector"]


@dataclass
class Conditions:
    """What engines of this process meet. ``mix`` counts at once, the rest for engines made from now on.

    Attributes:
        mix: the chances of faults.
        seed: of the faults.
        execution: bounds and deadlines of the execution side.
    """

    mix: FaultMix = field(default_factory=FaultMix)
    seed: int = 0
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)


CONDITIONS = Conditions()


class _Engine(TuttiEngine):
    """An engine with the settings of the test."""

    def bind(self, mover: Mover, settings: ExecutionSettings | None = None) -> None:
        super().bind(mover, CONDITIONS.execution)


def make_faulty_engine(geometry: Geometry, layout: StoreLayout, rank: int) -> TuttiEngine:
    """Make the engine of one rank, on a store that fails as ``CONDITIONS`` say."""
    backend = FaultyBackend(
        LocalStoreBackend(layout, rank),
        lambda: CONDITIONS.mix,
        seed=CONDITIONS.seed + rank,
        hang_seconds=1.5 * CONDITIONS.execution.io_timeout,
    )
    return _Engine(geometry, backend=backend, rank=rank)


class FaultyTuttiConnector(TuttiConnectorV1):
    """The connector as it is, its storage replaced."""

    _open_worker = staticmethod(partial(opening.open_worker, make_engine=make_faulty_engine))
