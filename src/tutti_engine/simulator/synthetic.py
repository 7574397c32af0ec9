# SPDX-License-Identifier: Apache-2.0
"""Traces made up from a seed: kinds of load that differ in what is used again, and when."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from tutti_engine.simulator.trace import BLOCK_TOKENS, Request

__all__ = ["KINDS", "make_trace"]


class Maker:
    """Hands out block ids and random numbers of one trace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._ids = itertools.count()

    def blocks(self, count: int) -> list[int]:
        """Return ids that nobody else has."""
        return [next(self._ids) for _ in range(count)]

    def size(self, median: float, spread: float = 1.0) -> int:
        """Return a number of tokens around a median, seldom far above it."""
        return max(1, round(self.random.lognormvariate(0, spread) * median))

    def pause(self, median: float, spread: float = 0.9) -> float:
        """Return the seconds that somebody takes to go on."""
        return self.random.lognormvariate(0, spread) * median

    def request(self, seconds: float, whole: list[int], tail_tokens: int, output_tokens: int) -> Request:
        """Return a request of whole blocks and a last one that is not full."""
        tail = min(BLOCK_TOKENS - 1, tail_tokens)
        blocks = [*whole, *(self.blocks(1) if tail else [])]
        return Request(seconds, len(whole) * BLOCK_TOKENS + tail, output_tokens, tuple(blocks))


def talk(
    maker: Maker,
    start: float,
    common: list[int],
    *,
    question: float,
    answer: float,
    think: float,
    more: float,
) -> Iterator[Request]:
    """Yield the turns of a conversation; each has all before it as its prefix."""
    whole, spill, seconds = list(common), 0, start
    while True:
        tokens = spill + maker.size(question)
        output = maker.size(answer)
        whole += maker.blocks(tokens // BLOCK_TOKENS)
        yield maker.request(seconds, whole, tokens % BLOCK_TOKENS, output)
        if maker.random.random() >= more:
            return
        spill = tokens % BLOCK_TOKENS + output
        seconds += output * 0.02 + maker.pause(think)


def chat(maker: Maker, count: int) -> Iterator[Iterator[Request]]:
    """Multi-turn chat behind one system prompt; people think for a minute or two."""
    system = maker.blocks(2)
    for seconds in arrivals(maker, count // 3, 1.0):
        yield talk(maker, seconds, system, question=900, answer=400, think=70, more=0.68)


def agents(maker: Maker, count: int) -> Iterator[Iterator[Request]]:
    """Agents that call tools in quick succession, each behind one of a few long system prompts."""
    systems = [maker.blocks(12) for _ in range(8)]
    for seconds in arrivals(maker, count // 15, 6.0):
        system = maker.random.choices(systems, [1 / (n + 1) for n in range(len(systems))])[0]
        yield talk(maker, seconds, system, question=1200, answer=150, think=5, more=0.935)


def document_of(maker: Maker, tokens: float) -> list[int]:
    """Return the blocks of a new document, of about so many tokens."""
    return maker.blocks(max(1, maker.size(tokens, 0.7) // BLOCK_TOKENS))


def documents(maker: Maker, count: int) -> Iterator[Iterator[Request]]:
    """Questions about documents, some of which are far more popular than others (Zipf)."""
    library = [
        maker.blocks(max(1, maker.size(10_000, 0.7) // BLOCK_TOKENS)) for _ in range(max(1, count // 8))
    ]
    weights = list(itertools.accumulate((n + 1) ** -0.9 for n in range(len(library))))
    for seconds in arrivals(maker, count, 0.5):
        document = maker.random.choices(library, cum_weights=weights)[0]
        yield talk(maker, seconds, document, question=700, answer=200, think=40, more=0.1)


def drift(maker: Maker, count: int) -> Iterator[Iterator[Request]]:
    """The same, with a popularity that moves on: today's news is nobody's question tomorrow."""
    library = [
        maker.blocks(max(1, maker.size(8_000, 0.7) // BLOCK_TOKENS)) for _ in range(max(1, count // 3))
    ]
    for number, seconds in enumerate(arrivals(maker, count, 0.5)):
        newest = number * len(library) // max(1, count)
        back = int(maker.random.paretovariate(0.7)) - 1
        yield talk(
            maker, seconds, library[max(0, newest - back)], question=500, answer=200, think=40, more=0.1
        )


def scans(maker: Maker, count: int) -> Iterator[Iterator[Request]]:
    """Chat, beside a batch job that sends long prompts which never come again."""
    yield from chat(maker, count * 3 // 4)
    for seconds in arrivals(maker, count // 4, 1.0):
        yield talk(maker, seconds, [], question=12_000, answer=50, think=1, more=0.0)


def random_once(maker: Maker, count: int) -> Iterator[Iterator[Request]]:
    """Prompts that have nothing in common: there is nothing to win."""
    for seconds in arrivals(maker, count, 0.3):
        yield talk(maker, seconds, [], question=5000, answer=100, think=1, more=0.0)


KINDS: Mapping[str, Callable[[Maker, int], Iterator[Iterator[Request]]]] = {
    "chat": chat,
    "agents": agents,
    "documents": documents,
    "drift": drift,
    "scans": scans,
    "once": random_once,
}


def arrivals(maker: Maker, count: int, gap: float) -> Iterator[float]:
    """Yield times of a Poisson process."""
    seconds = 0.0
    for _ in range(count):
        seconds += maker.random.expovariate(1.0 / gap)
        yield seconds


def make_trace(kind: str, count: int, seed: int = 1) -> list[Request]:
    """Return about ``count`` requests of a kind, in order of time; the same ones for the same seed.

    Raises ValueError for a kind that is not in ``KINDS``.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    maker = Maker(seed)
    number = itertools.count()
    queue: list[tuple[float, int, Request, Iterator[Request]]] = []

    def push(turns: Iterator[Request]) -> None:
        following = next(turns, None)
        if following is not None:
            heapq.heappush(queue, (following.seconds, next(number), following, turns))

    requests = []
    for turns in KINDS[kind](maker, count):
        push(turns)
    while queue:
        _, _, request, turns = heapq.heappop(queue)
        requests.append(request)
        push(turns)
    return requests
