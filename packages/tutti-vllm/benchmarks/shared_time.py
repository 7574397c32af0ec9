# SPDX-License-Identifier: Apache-2.0
"""What a shared store costs vLLM's scheduler for one request, beyond what the connector costs anyway.

    python benchmarks/shared_time.py [--rounds N] [--json FILE]

Three scheduler sides take turns with the same requests, one with a shared store and two without:

``miss``, ``local``  a prompt that is nowhere, and one on the own drive
``shared``           one that the shared store alone has; the sides without one compute it in one step, which
                     stores as much, so the plan of its load is in it
``again``            of the latter only the answer to a further question of vLLM's
``table``            the part of such a hit that turns vLLM's block table into a plan, which a load from the
                     own drive has as well
``plain local``      all of a hit on the own drive without a shared store
``in miss``, ...     of these kinds what is spent within the calls of the shared store's side alone
``nothing``          what the two sides without one differ by in a miss, and half the range between its
                     quartiles, ``noise``: what is smaller is not seen

A request's life is counted from its arrival to the orders of its last step (a step has 8,192 tokens at most),
and the report of a load from the shared store. Times are of computing in the scheduler's thread alone,
medians of the differences; the limit is 100 us a request, beside the ``table`` in a hit there. Chunks have 64
tokens, the shortest that the automatic choice makes of a common model.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tutti_engine import Geometry, LoadResult, StoreResult, TuttiEngine
from tutti_engine.shared.tier import SharedTier, SharedTierSettings, is_shared_plan
from tutti_engine.testing.shared_stores import MemoryPool, MemorySharedStore
from tutti_vllm.messages import StepOrders, StepReport
from tutti_vllm.scheduler_side.block_tables import LoadTable
from tutti_vllm.scheduler_side.scheduler import SchedulerSide
from tutti_vllm.scheduler_side.shared_side import SharedRules, SharedSide

BLOCK_TOKENS = 16
GEOMETRY = Geometry(num_layers=32, block_tokens=BLOCK_TOKENS, blocks_per_chunk=4, page_bytes=65536)
SIZES = (2048, 8192, 32768, 131072)
LIMIT_US = 100.0
STEP_TOKENS = 8192
PROMPTS = ("miss", "local", "shared")
KINDS = (*PROMPTS, "again", "table", "plain local", "nothing", *(f"in {kind}" for kind in PROMPTS))
CALLS = ("beyond", "plan_load", "patience", "wants", "note_candidates", "plan_stores", "take", "forget")
SUM = bytes(8 * GEOMETRY.num_layers)


class Request(SimpleNamespace):
    """What the connector reads of a request of vLLM's."""

    def __init__(self, name: str, seed: str, tokens: int) -> None:
        hashes = [
            hashlib.sha256(b"%s %d" % (seed.encode(), n)).digest() for n in range(tokens // BLOCK_TOKENS)
        ]
        super().__init__(
            request_id=name,
            num_tokens=tokens,
            num_computed_tokens=0,
            cache_salt=None,
            block_hashes=hashes,
        )


class Inside:
    """Counts the time that is spent within some methods, the outermost of them."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._is_inside = False

    def watch(self, owner: Any, names: tuple[str, ...]) -> None:
        """Count these methods of an object."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(*args, **kwargs)
            self._is_inside, began = True, time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent += time.thread_time() - began
                self._is_inside = False

        return timed


class Side:
    """A scheduler's side, with a shared store or without."""

    def __init__(self, pool: MemoryPool | None) -> None:
        engine = TuttiEngine(GEOMETRY, chunk_ids=range(1 << 19))
        self.side = SchedulerSide(engine, None, hash_tokens=BLOCK_TOKENS)
        self.tier: SharedTier | None = None
        self.inside = Inside()
        if pool is not None:
            # Nothing is written: of a write only the decision is measured.
            settings = SharedTierSettings(write="second_sight")
            self.tier = SharedTier(GEOMETRY, MemorySharedStore(pool), "ab" * 16, settings=settings)
            rules = SharedRules(lookup_seconds=60.0, lookup_asks=1 << 40, break_even=False)
            shared = SharedSide(self.tier, rules)
            self.inside.watch(shared, CALLS)
            self.inside.watch(self.tier, ("look", "note_prompt"))
            self.side.use_shared(shared)

    def learn(self, request: Request) -> None:
        """Have the thread bring its verdicts; they are of no request's time."""
        if self.tier is not None:
            keys = request.block_hashes[3::4]
            deadline = time.monotonic() + 60
            while not self.tier.look(keys).decided and time.monotonic() < deadline:
                time.sleep(0.001)

    def live(self, request: Request, step_tokens: int = STEP_TOKENS) -> tuple[float, float]:
        """Take a request from its arrival to its orders; return seconds, and those of a further question."""
        table = ([*range(1, request.num_tokens // BLOCK_TOKENS + 2)],)
        side, clock = self.side, time.thread_time
        self.inside.spent = 0.0
        began = clock()
        side.add_request(request)
        tokens, _ = side.promise(request, 0)
        assert tokens is not None
        asked, inside = clock(), self.inside.spent
        side.promise(request, 0)
        again, self.inside.spent = clock() - asked, inside
        if tokens:
            side.plan_load(request, table, tokens)
        spent = clock() - began - again
        for computed in range(tokens, request.num_tokens, step_tokens):
            request.num_computed_tokens = computed
            step = {request.request_id: min(step_tokens, request.num_tokens - computed)}
            began = clock()
            orders = side.build_orders(step, {}, lambda _: table)
            spent += clock() - began
            spent += self._report(orders)
        side.remove_request(request.request_id)
        request.num_computed_tokens = 0
        return spent, again

    def table(self, request: Request) -> float:
        """Return the seconds that a load of a whole prompt takes to turn its block table into columns."""
        blocks = ([*range(1, request.num_tokens // BLOCK_TOKENS + 2)],)
        began = time.thread_time()
        LoadTable(GEOMETRY, blocks, 0, request.num_tokens - GEOMETRY.chunk_tokens).rows()
        return time.thread_time() - began

    def _report(self, orders: StepOrders) -> float:
        """Report what was ordered; return the seconds of what came from the shared store."""
        ended = [LoadResult(each.plan.plan_id) for each in orders.loads if each.plan is not None]
        began = time.thread_time()
        self.side.take_report(StepReport({0: tuple(each for each in ended if is_shared_plan(each.plan_id))}))
        spent = time.thread_time() - began
        results: list[Any] = [each for each in ended if not is_shared_plan(each.plan_id)]
        for plan in orders.stores:
            done = None if is_shared_plan(plan.plan_id) else (SUM,) * len(plan.transfers)
            sums = (None,) * len(plan.transfers) if done is None else done
            results.append(StoreResult(plan.plan_id, sums, errno=0 if done else 11))
        self.side.take_report(StepReport({0: tuple(results)}))
        return spent

    def close(self) -> None:
        """End its threads."""
        if self.tier is not None:
            self.tier.close()


def fill_pool(pool: MemoryPool, tier: SharedTier, request: Request) -> None:
    """Have the pool hold a prompt's chunks; only their names are looked at here."""
    names = tier.lookup._names
    for key in request.block_hashes[3::4]:
        pool.objects[names.name(0, 0, key)] = b""


def measure(size: int, rounds: int, told: Callable[[str], None]) -> dict[str, float]:
    """Return for each kind of prompt what the shared store costs, in microseconds, medians."""
    pool = MemoryPool()
    plain, other, shared = Side(None), Side(None), Side(pool)
    assert shared.tier is not None
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    # A collection of thousands of stores' objects would be counted for whoever is there.
    gc.disable()
    try:
        for number in range(rounds):
            told(f"{size} tokens, round {number + 1} of {rounds}")
            for kind in PROMPTS:
                turn = number % 3
                sides = (*(plain, other, shared)[turn:], *(plain, other, shared)[:turn])
                # For each side objects of its own: who comes first finds nothing of them in the caches.
                first, *requests = (Request(f"{kind}{n}", f"{size} {number} {kind}", size) for n in range(4))
                if kind == "shared":
                    fill_pool(pool, shared.tier, first)
                shared.learn(first)
                times = {}
                for side, request in zip(sides, requests):
                    if kind == "local":
                        side.live(first)
                    times[side] = side.live(request, size if kind == "shared" else STEP_TOKENS)
                difference = (times[shared][0] - times[plain][0], times[shared][1] - times[plain][1])
                found[kind].append(1e6 * difference[0])
                found[f"in {kind}"].append(1e6 * shared.inside.spent)
                if kind == "miss":
                    found["nothing"].append(1e6 * (times[other][0] - times[plain][0]))
                if kind == "local":
                    found["plain local"].append(1e6 * times[plain][0])
                if kind == "shared":
                    found["again"].append(1e6 * difference[1])
                    found["table"].append(1e6 * plain.table(first))
            pool.objects.clear()
            gc.collect()
    finally:
        gc.enable()
        for side in (plain, other, shared):
            side.close()
    middle = {kind: statistics.median(values) for kind, values in found.items()}
    first, _, third = statistics.quantiles(found["nothing"])
    return middle | {"noise": (third - first) / 2}


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="tokens of a prompt")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    for size in arguments.sizes:
        found = measure(size, arguments.rounds, lambda text: print(text, file=sys.stderr, flush=True))
        results[str(size)] = found
        line = ", ".join(f"{kind} {value:.0f} us ({value / LIMIT_US:.2f})" for kind, value in found.items())
        print(f"{size} tokens, {size // 64} chunks: {line} (of {LIMIT_US:.0f} us)")
    if arguments.json:
        report = {"limit_us": LIMIT_US, "rounds": arguments.rounds, "microseconds": results}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
