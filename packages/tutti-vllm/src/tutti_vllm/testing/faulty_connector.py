# SPDX-License-Identifier: Apache-2.0
"""The connector on a backend that fails at random: name this module in ``kv_connector_module_path``.

For engines whose scheduler and worker share the process of the test, which sets ``CONDITIONS``.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from tutti_engine import ExecutionSettings, Geometry, Mover, TuttiEngine
from tutti_engine.backends.local import LocalStoreBackend
from tutti_engine.store.layout import StoreLayout
from tutti_engine.testing.device import DeferringMover
from tutti_vllm.connector_v1 import TuttiConnectorV1
from tutti_vllm.start import opening
from tutti_vllm.testing.faults import FaultMix, FaultyBackend

__all__ = ["CONDITIONS", "Conditions", "FaultyTuttiConnector"]


@dataclass
class Conditions:
    """What engines of this process meet. ``mix`` counts at once, the rest for engines made from now on.

    Attributes:
        mix: the chances of faults.
        seed: of the faults.
        execution: bounds and deadlines of the execution side.
        late_copies: longest time in seconds after which pages of a store are copied, as on a device; 0 copies
            them in their step.
    """

    mix: FaultMix = field(default_factory=FaultMix)
    seed: int = 0
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    late_copies: float = 0.0


CONDITIONS = Conditions()


class _Engine(TuttiEngine):
    """An engine with the settings of the test."""

    def bind(self, mover: Mover, settings: ExecutionSettings | None = None) -> None:
        if CONDITIONS.late_copies:
            chance, longest = random.Random(CONDITIONS.seed), CONDITIONS.late_copies
            mover = DeferringMover(mover, lambda: time.sleep(longest * chance.random() ** 3))
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

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if self._scheduler is not None:
            self._scheduler.names_rewritten = bool(CONDITIONS.late_copies)
