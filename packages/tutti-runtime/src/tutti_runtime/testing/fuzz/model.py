# SPDX-License-Identifier: Apache-2.0
"""What targets and memory must hold, page by page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutti_runtime.host_memory import HostMemory
from tutti_runtime.testing.subjects import MadeTarget

__all__ = ["PAGE", "MemoryModel", "Mismatch", "Pages", "TargetModel", "expect", "free_runs"]

PAGE = 4096
_WORDS = PAGE // 8

Pages = NDArray[np.intp]
Words = NDArray[np.uint64]


class Mismatch(AssertionError):
    """The runtime did something that the model does not allow."""


def expect(condition: object, what: str, *facts: object) -> None:
    """Raise :class:`Mismatch` unless ``condition`` is true."""
    if not condition:
        raise Mismatch(": ".join([what, *(f"{fact}" for fact in facts)]))


def as_pages(data: NDArray[np.uint8]) -> Words:
    """The same bytes as rows of a page."""
    return data.view(np.uint64).reshape(-1, _WORDS)


@dataclass
class MemoryModel:
    """Registered memory: what is there (``live``), what must be there, and which pages no batch uses."""

    host: HostMemory
    handle: int
    live: Words = field(init=False)
    data: Words = field(init=False)
    free: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.live = as_pages(self.host.bytes)
        self.data = self.live.copy()
        self.free = np.ones(len(self.live), np.bool_)

    def fill(self, pages: Pages, noise: Words, stamp: int) -> None:
        """Write new contents, of which no two pages are equal, as the owner of the memory may."""
        stamps = (np.arange(len(pages), dtype=np.uint64) + np.uint64(stamp)) * np.uint64(0x9E3779B97F4A7C15)
        self.data[pages] = noise[pages % len(noise)] ^ stamps[:, None]
        self.live[pages] = self.data[pages]

    def check(self) -> None:
        """Nobody wrote into pages that no batch uses."""
        wrong = (self.live != self.data).any(axis=1) & self.free
        expect(not wrong.any(), "memory that no request named has changed, pages", np.flatnonzero(wrong))


@dataclass
class TargetModel:
    """A target: what it must hold, and where a failed write left two or more possibilities.

    ``other[page]`` lists contents that are possible beside ``data[page]``.
    """

    made: MadeTarget
    handle: int | None
    writable: bool
    data: Words = field(init=False)
    free: NDArray[np.bool_] = field(init=False)
    unsure: NDArray[np.bool_] = field(init=False)
    other: dict[int, list[Words]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data = np.zeros((self.made.size // PAGE, _WORDS), np.uint64)
        self.free = np.ones(len(self.data), np.bool_)
        self.unsure = np.zeros(len(self.data), np.bool_)

    def put(self, pages: Pages, contents: Words) -> None:
        """Note a write that succeeded."""
        self.data[pages] = contents
        self._settle(pages)

    def maybe_put(self, page: int, contents: Words) -> None:
        """Note a write that may have happened."""
        self.other.setdefault(page, []).append(contents.copy())
        self.unsure[page] = True

    def may_hold(self, page: int) -> list[Words]:
        """All contents that the page can have."""
        return [self.data[page], *self.other.get(page, [])]

    def see(self, pages: Pages, contents: Words, where: str) -> None:
        """Compare what a read brought with what must be there; it settles what was unsure."""
        unsure = self.unsure[pages]
        if not unsure.any():
            same = (contents == self.data[pages]).all(axis=1)
            expect(same.all(), f"{where} of {self.made.uri} brought wrong bytes, pages", pages[~same])
            return
        self.see(pages[~unsure], contents[~unsure], where)
        for page, found in zip(pages[unsure], contents[unsure], strict=True):
            one_of(found, self.may_hold(int(page)), f"{where} of {self.made.uri}", int(page))
            self.data[page] = found
        self._settle(pages)

    def _settle(self, pages: Pages) -> None:
        for page in pages[self.unsure[pages]]:
            del self.other[int(page)]
        self.unsure[pages] = False


def one_of(found: Words, allowed: Iterable[Words], where: str, page: int) -> None:
    """Raise :class:`Mismatch` unless ``found`` is one of ``allowed``."""
    expect(
        any(np.array_equal(found, each) for each in allowed), f"{where}: page {page} holds what nobody wrote"
    )


def free_runs(free: NDArray[np.bool_], length: int, phase: int) -> Pages:
    """First pages of runs of ``length`` free pages that begin at ``phase`` modulo ``length``."""
    count = (len(free) - phase) // length
    whole = free[phase : phase + count * length].reshape(count, length).all(axis=1)
    return phase + length * np.flatnonzero(whole)


def rows_of(starts: Pages, length: int) -> Any:
    """The pages of each run, one row a run."""
    return starts[:, None] + np.arange(length)
