# SPDX-License-Identifier: Apache-2.0
"""What the checks share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.host_memory import HostMemory
from tutti_runtime.requests import READ, REQUEST_DTYPE, WRITE, Completion
from tutti_runtime.testing.subjects import MadeTarget, Subject
from tutti_runtime.windows import submit_all

__all__ = ["PAGE", "PATIENCE", "Bench", "ContractError", "bench", "raises", "require", "until"]

PAGE = 4096
PATIENCE = 30.0


class ContractError(AssertionError):
    """A runtime does not keep the contract."""


def require(condition: object, rule: str, *facts: object) -> None:
    """Raise :class:`ContractError` unless ``condition`` is true."""
    if not condition:
        raise ContractError(": ".join([rule, *(repr(fact) for fact in facts)]))


@contextlib.contextmanager
def raises(kind: type[BaseException], rule: str) -> Iterator[None]:
    """Raise :class:`ContractError` unless the block raises ``kind``."""
    try:
        yield
    except kind:
        return
    raise ContractError(f"{rule}: no {kind.__name__} was raised")


def until(condition: Callable[[], bool], rule: str) -> None:
    """Wait for something that must come true by itself."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        require(time.monotonic() < give_up, f"{rule} within {PATIENCE:.0f} s")
        time.sleep(0.0005)


@dataclass
class Bench:
    """A target and memory of as many pages, with requests for each page."""

    subject: Subject
    made: MadeTarget
    target: int
    host: HostMemory
    memory: int
    pages: int

    def rows(self, direction: int, pages: NDArray[np.intp] | None = None) -> NDArray[np.void]:
        """One request a page; page i of the memory goes with page i of the target."""
        chosen = np.arange(self.pages) if pages is None else pages
        rows = np.zeros(len(chosen), REQUEST_DTYPE)
        rows["direction"], rows["memory"], rows["target"] = direction, self.memory, self.target
        rows["length"] = PAGE
        rows["memory_offset"] = rows["target_offset"] = chosen * PAGE
        return rows

    def fill(self, seed: int) -> NDArray[np.uint8]:
        """Random bytes into the memory; returns a copy."""
        random = np.random.default_rng(seed)
        self.host.bytes[:] = random.integers(0, 256, self.host.size, dtype=np.uint8)
        filled: NDArray[np.uint8] = self.host.bytes.copy()
        return filled

    def submit(self, rows: NDArray[np.void]) -> int:
        """Submit a batch of which something must be accepted."""
        handle = self.subject.runtime.submit(rows).handle
        if handle is None:
            raise ContractError("an idle runtime accepts good requests")
        return handle

    def wait(self, handle: int) -> Completion:
        """The result, however late the device is."""
        return self.subject.runtime.wait(handle, PATIENCE)

    def run(self, rows: NDArray[np.void], window: int = 64) -> None:
        """Run requests that must all succeed, in as many batches as it takes."""
        seen = np.zeros(len(rows), np.intp)
        for indices, done in submit_all(self.subject.runtime, rows, window=window):
            require(not done.status.any(), "good requests succeed", done.status)
            require((done.bytes == rows["length"][indices]).all(), "success moves all bytes", done.bytes)
            seen[indices] += 1
        require((seen == 1).all(), "each request is run once", seen)

    def read_back(self) -> NDArray[np.uint8]:
        """The target's bytes, read over zeroed memory."""
        self.host.bytes[:] = 0
        self.run(self.rows(READ))
        return self.host.bytes

    def write_all(self, seed: int) -> NDArray[np.uint8]:
        """Fill the target with random bytes and return them."""
        expected = self.fill(seed)
        self.run(self.rows(WRITE))
        return expected


def bench(subject: Subject, pages: int = 32) -> Bench:
    """Set a subject up for a check."""
    made = subject.target(pages * PAGE)
    host, memory = subject.memory(pages * PAGE)
    return Bench(subject, made, subject.runtime.open(made.uri), host, memory, pages)
