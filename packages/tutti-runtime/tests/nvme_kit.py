# SPDX-License-Identifier: Apache-2.0
"""A runtime on soft controllers, with memory, targets and what the controllers say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from runtime_kit import Buffer, batch, request

import tutti_runtime as tr
from tutti_runtime.testing import SoftNvmeControl

__all__ = ["MIB", "PAGE", "SPACE", "SoftRig"]

MIB = 1 << 20
PAGE = 4096
SPACE = 16 * MIB


@dataclass
class SoftRig:
    """``count`` controllers ``disk0`` ... of 16 MiB each, all with the keys of ``drive``.

    ``execution``: of what :meth:`move` and :meth:`submit` submit; a device is played by threads.
    """

    drive: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    execution: str = "host"

    def __post_init__(self) -> None:
        self.controls = [SoftNvmeControl() for _ in range(self.count)]
        specs = [
            {
                "transport": "soft",
                "name": f"disk{i}",
                "control": control,
                **({"memory_bytes": SPACE} | self.drive),
            }
            for i, control in enumerate(self.controls)
        ]
        player = {"device_executor": "cpu"} if self.execution == "device" else {}
        self.runtime = tr.make_nvme_runtime(controllers=specs, **(player | self.settings))
        self._kept: list[Buffer] = []

    @property
    def control(self) -> SoftNvmeControl:
        return self.controls[0]

    def memory(self, size: int = MIB, seed: int | None = None) -> tuple[Buffer, int]:
        buffer = Buffer(size)
        self._kept.append(buffer)
        if seed is not None:
            buffer.fill_random(seed)
        return buffer, self.runtime.register_memory(buffer.address, size)

    def submit(self, rows: np.ndarray, timeout: float = 20) -> int:
        """Start a batch that is accepted as a whole."""
        result = self.runtime.submit(rows, timeout=timeout, execution=self.execution)
        assert result.handle is not None and result.accepted.all()
        return result.handle

    def run(self, rows: np.ndarray) -> tr.Completion:
        return self.runtime.wait(self.submit(rows), 60)

    def move(
        self,
        direction: int,
        memory: int,
        target: int,
        *,
        count: int = 1,
        length: int = PAGE,
        offset: int = 0,
        timeout: float = 20,
    ) -> tr.Completion:
        """Items of ``length`` bytes, one behind the other in memory from ``offset`` and in target; waits."""
        rows = [
            request(direction, memory, offset + i * length, target, i * length, length) for i in range(count)
        ]
        return self.runtime.wait(self.submit(batch(*rows), timeout), 60)

    def close(self, *, violations: bool = False) -> None:
        """End it; ``violations``: the test broke rules on purpose."""
        for control in self.controls:
            control.heal()
        assert self.runtime.shutdown(60)
        for control in self.controls:
            assert violations or control.violations() == []


def image_of(path: Path, size: int = SPACE) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def zeros(size: int) -> np.ndarray:
    return np.zeros(size, dtype=np.uint8)
