# SPDX-License-Identifier: Apache-2.0
"""The index with a million chunks: lookups, inserts, evictions, memory a chunk.

    python benchmarks/index.py [--json FILE]

Prints medians and the design's limits: lookup of 128K tokens 1 ms, of 1M tokens 10 ms, 200,000 inserts and
evictions a second, 200 bytes a chunk beyond the key. Times are of computing in this thread alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from tutti_engine.plan import ChunkKey
from tutti_engine.planning.chunk_index import ChunkIndex
from tutti_engine.policies.settings import EVICTIONS

CHUNK_TOKENS = 256
PROMPT_CHUNKS = 64
CHECKSUMS = (b"8 bytes.",)


def key(number: int) -> ChunkKey:
    """Return the key of a chunk: as long as a digest, as different as one at both ends."""
    return ChunkKey((number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little") + number.to_bytes(8, "big"))


def prompt(number: int, chunks: int = PROMPT_CHUNKS) -> list[ChunkKey]:
    """Return the keys of one prompt."""
    return [key(number * chunks + chunk) for chunk in range(chunks)]


def store(index: ChunkIndex, keys: list[ChunkKey]) -> None:
    """Insert a prompt as the planner does."""
    use = index.begin(keys)
    parent = None
    for each in keys:
        entry = index.reserve(each, parent, use)
        assert entry is not None
        index.commit(entry, CHECKSUMS)
        parent = each


def filled(policy: str, chunks: int) -> ChunkIndex:
    """Return an index that is full."""
    index = ChunkIndex(range(chunks), policy=EVICTIONS[policy]())
    for number in range(chunks // PROMPT_CHUNKS):
        store(index, prompt(number))
    return index


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of computing that a call takes; others on the machine do not count."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measure_lookup(index: ChunkIndex, tokens: int, runs: int) -> float:
    """Return the median seconds of looking up a prompt of so many tokens, all of it stored."""
    chunks = tokens // CHUNK_TOKENS
    found = []
    for run in range(runs):
        keys = [key(number % len(index)) for number in range(run * chunks, (run + 1) * chunks)]
        found.append(timed(lambda keys=keys: index.lookup_prefix(keys)))
        assert index.lookup_prefix(keys) == chunks
    return statistics.median(found)


def measure_churn(index: ChunkIndex, first: int, rounds: int, prompts: int) -> tuple[float, float]:
    """Return the median rates of evictions and inserts in a full index, in chunks a second."""
    count = prompts * PROMPT_CHUNKS
    evictions, inserts = [], []
    for round_ in range(rounds):
        keys = [prompt(first + round_ * prompts + number) for number in range(prompts)]
        evictions.append(count / timed(lambda: index.evict(count)))
        index.give_back([entry.chunk_id for entry in index.take_leaving()])
        inserts.append(count / timed(lambda keys=keys: [store(index, each) for each in keys]))
    return statistics.median(evictions), statistics.median(inserts)


def measure_memory(policy: str, chunks: int) -> float:
    """Return the bytes of a full index for each chunk, the keys and checksums themselves left out."""
    keys = [prompt(number) for number in range(chunks // PROMPT_CHUNKS)]
    gc.collect()
    tracemalloc.start()
    index = ChunkIndex(range(chunks), policy=EVICTIONS[policy]())
    for each in keys:
        store(index, each)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(index) == chunks
    # A key is 16 bytes in an object of 49; what holds it beyond the 16 counts.
    beyond_key = sys.getsizeof(keys[0][0]) - len(keys[0][0])
    checksums = len(b"".join(CHECKSUMS))
    return size / chunks - checksums + beyond_key


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--chunks", type=int, default=1_000_000, help="chunks of the full index")
    parser.add_argument("--policy", choices=[*EVICTIONS], nargs="*", default=[*EVICTIONS])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chunks = options.chunks // PROMPT_CHUNKS * PROMPT_CHUNKS
    results = {}
    for policy in options.policy:
        print(f"{policy}: filling {chunks} chunks", file=sys.stderr)
        index = filled(policy, chunks)
        lookups = {tokens: measure_lookup(index, tokens, 50) for tokens in (131_072, 1_048_576)}
        evict, insert = measure_churn(index, chunks // PROMPT_CHUNKS, options.rounds, 200)
        del index
        print(f"{policy}: memory", file=sys.stderr)
        results[policy] = {
            "lookup_128k_ms": 1e3 * lookups[131_072],
            "lookup_1m_ms": 1e3 * lookups[1_048_576],
            "inserts_per_second": insert,
            "evictions_per_second": evict,
            "bytes_per_chunk_beyond_key": measure_memory(policy, chunks),
        }
        print(f"{policy}: " + ", ".join(f"{name} {value:,.3f}" for name, value in results[policy].items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"limits: 1 ms, 10 ms, 200,000, 200,000, 200 bytes; {peak >> 10} MiB at most in this process")
    if options.json:
        options.json.write_text(json.dumps({"chunks": chunks, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
