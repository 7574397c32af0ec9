# SPDX-License-Identifier: Apache-2.0
"""One engine of each system on one GPU, asked in turns."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from systems import Place, connector, engine_options, engines

__all__ = ["Fleet", "prompts"]


def prompts(lengths: Iterable[int], seed: int) -> list[list[int]]:
    """Return one prompt of random tokens of each length; equal seeds give equal prompts."""
    chance = random.Random(seed)
    return [[chance.randrange(10, 128000) for _ in range(count)] for count in lengths]


@dataclass
class Fleet:
    """Engines are processes of their own; they are started together and asked one at a time.

    Attributes:
        lengths: tokens of the prompts that the engines must be able to take.
        memory: vLLM's ``gpu_memory_utilization`` of one engine.
        kv_bytes: HBM of one engine's KV cache.
        patience: seconds for one answer, and for a start.
        failed: what was the last word of systems that could not be used.
    """

    place: Place
    lengths: list[int]
    memory: float
    kv_bytes: int
    patience: float
    running: dict[str, engines.EngineProcess] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def start(self, systems: Iterable[str]) -> None:
        """Start engines and wait until each has answered."""
        begin = time.monotonic()
        for system in systems:
            options = engine_options(system, max(self.lengths), self.memory, self.kv_bytes)
            self.running[system] = engines.EngineProcess(
                self.place.model(), connector(system, self.place), **options
            )
        for system in list(self.running):
            if self.ask(system, prompts([64], -1), 4) is not None:
                say(f"{system}: ready after {time.monotonic() - begin:.0f} s")

    def stop(self, *systems: str) -> None:
        """End engines, of all systems when none is named."""
        for system in systems or list(self.running):
            if system in self.running:
                self.running.pop(system).close()

    def ask(
        self, system: str, what: list[list[int]], tokens: int, *, at_once: bool = False
    ) -> engines.Answers | None:
        """Return the answers, or None from an engine that has ended; it is not asked again."""
        if system not in self.running:
            return None
        try:
            return self.running[system].ask(what, tokens, at_once=at_once, timeout=self.patience)
        except RuntimeError as error:
            self.running.pop(system).close()
            self.failed[system] = str(error)[-3000:]
            say(f"{system} ended: {error}")
            return None

    def forget(self, *systems: str) -> None:
        """Empty vLLM's own prefix caches."""
        for system in systems:
            if system in self.running:
                self.running[system].forget()

    def settle(self, system: str) -> None:
        """Wait until a system writes no more."""
        if system in self.running and system != "alone":
            engines.wait_for_quiet(self.place.root("tutti" if system.startswith("tutti") else system))


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
