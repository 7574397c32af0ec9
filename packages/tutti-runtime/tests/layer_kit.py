# SPDX-License-Identifier: Apache-2.0
"""Layers on soft controllers, with memory on the host or on a GPU. Also for the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.nvme_layers import NvmeLayers
from tutti_runtime.testing import SoftNvmeControl

__all__ = ["MIB", "PAGE", "LayerRig"]

MIB = 1 << 20
PAGE = 4096


@dataclass
class LayerRig:
    """``count`` soft controllers of ``space`` bytes with the keys of ``drive``; place 0 is all of each."""

    settings: dict[str, Any] = field(default_factory=dict)
    drive: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    space: int = 16 * MIB

    def __post_init__(self) -> None:
        self.controls = [SoftNvmeControl() for _ in range(self.count)]
        self.kept: list[object] = []  # memory of windows
        specs = [
            {"transport": "soft", "name": f"disk{i}", "control": control, "memory_bytes": self.space}
            | self.drive
            for i, control in enumerate(self.controls)
        ]
        self.layers = NvmeLayers(controllers=specs, **self.settings)
        blocks = self.space // int(self.drive.get("lba_bytes", 512))
        for i in range(self.count):
            assert self.layers.add_place(i, 1, [(0, 0, blocks)]) == 0

    def slices(
        self, window: int, count: int, length: int, order: Callable[[int], int] = lambda i: i
    ) -> NDArray[np.uint64]:
        """Item i on drive i mod n, one behind the other in the window, in ``order`` on the drives."""
        rows = [
            (i % self.count, 0, window, order(i // self.count) * length, i * length, length)
            for i in range(count)
        ]
        return np.array(rows, dtype=np.uint64)

    def run(self, layer: int, timeout: float = 60.0) -> NDArray[np.int32]:
        assert self.layers.wait(self.layers.submit(layer), timeout)
        return self.layers.statuses(layer)

    def report(self, statuses: NDArray[np.int32]) -> str:
        """What teams and drives say of a layer that should have gone well."""
        kinds = dict(zip(*(part.tolist() for part in np.unique(statuses, return_counts=True)), strict=True))
        by_drive = [np.count_nonzero(statuses[i :: self.count]) for i in range(self.count)]
        drives = [control.counters() for control in self.controls]
        return (
            f"statuses {kinds}, failed by drive {by_drive}, teams {self.layers.counters()}, drives {drives}"
        )

    def run_well(self, layer: int, timeout: float = 60.0) -> None:
        """Run a layer of which every slice must succeed."""
        statuses = self.run(layer, timeout)
        assert not statuses.any(), self.report(statuses)

    def close(self, *, violations: bool = False) -> None:
        for control in self.controls:
            control.heal()
        self.layers.stop()
        for control in self.controls:
            assert violations or control.violations() == []
