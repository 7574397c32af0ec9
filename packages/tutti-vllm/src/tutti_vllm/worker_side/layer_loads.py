# SPDX-License-Identifier: Apache-2.0
"""Loads that a step waits for layer by layer, on one rank."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from tutti_engine import LoadPlan, TuttiEngine
from tutti_engine.execution.transfer import Transfer

__all__ = ["LayerLoads"]

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""Longest wait for one layer: the whole server stands still meanwhile, and computing is always possible."""


class LayerLoads:
    """The layer-wise loads of the step that runs now.

    vLLM says before each attention layer that it is about to read that layer's pages. Which layers say so is
    learnt from the steps before: one that never did is waited for before the first layer runs.
    """

    def __init__(self, names: Sequence[str], *, patience: float = PATIENCE_SECONDS) -> None:
        """Make it.

        Args:
            names: vLLM's names of the layers that this rank holds, in the engine's order.
            patience: longest time in seconds without a layer; then the step's loads are given up.
        """
        self._layers = {name: layer for layer, name in enumerate(names)}
        self._patience = patience
        self._announced: set[int] = set()
        self._engine: TuttiEngine | None = None
        self._plans: list[LoadPlan] = []
        self._transfers: list[list[Transfer]] = []
        # Whether a layer of the present step has asked for its pages.
        self._asked = False
        self._given_up = False

    def begin_step(self) -> None:
        """Take note that the layers start anew."""
        self._asked = False

    def start(self, engine: TuttiEngine, plans: Sequence[LoadPlan]) -> None:
        """Start a step's loads, all plans' first layers first. What it raises leaves no load behind."""
        self._engine, self._plans, self._given_up = engine, list(plans), False
        self._transfers = []
        try:
            for layer in engine.geometry.held_layers:
                self._transfers.append([engine.load_layer(plan, layer) for plan in plans])
        except Exception:
            self._give_up()
            self._plans = []
            raise
        for layer in range(len(self._transfers)):
            if layer not in self._announced:
                self._await(layer)

    def wait(self, name: str) -> None:
        """Return once a layer's pages may be read; those of a load that failed hold rubbish.

        A layer of another name may use any layer's pages, so all of them are waited for.
        """
        self._asked = True
        layer = self._layers.get(name)
        if layer is not None:
            self._announced.add(layer)
        if not self._plans:
            return
        for each in range(len(self._transfers)) if layer is None else (layer,):
            self._await(each)

    def settle(self) -> tuple[Collection[int], bool]:
        """Wait for what is left of the step's loads.

        Returns:
            The ids of plans whose pages must not be trusted although no result says so: they were given up,
            or no layer has waited for them. And whether the step has computed with pages that were not right.
        """
        if not self._plans:
            return (), False
        for layer in range(len(self._transfers)):
            self._await(layer)
        plans, self._plans = self._plans, []
        transfers, self._transfers = self._transfers, []
        if self._given_up or not self._asked:
            if not self._given_up:
                logger.warning(
                    "Tutti: the model ran without asking for its layers (as in a full CUDA graph); what was "
                    "loaded for it is computed again. Set load_mode to 'async'."
                )
            return [plan.plan_id for plan in plans], True
        return (), not all(transfer.ok for layer in transfers for transfer in layer)

    def _await(self, layer: int) -> None:
        if self._given_up:
            return
        deadline = time.monotonic() + self._patience
        if all(transfer.wait(deadline) for transfer in self._transfers[layer]):
            return
        logger.warning(
            "Tutti: layer %d did not arrive within %.0f s; the tokens are computed again.",
            layer,
            self._patience,
        )
        self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        assert self._engine is not None
        for plan in self._plans:
            self._engine.give_up_load(plan)
