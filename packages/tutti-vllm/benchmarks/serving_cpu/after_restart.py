# SPDX-License-Identifier: Apache-2.0
"""Prompts that are stored to nine tenths, after a restart: Tutti, vLLM's own file-system tier, recomputing.

    python packages/tutti-vllm/benchmarks/serving_cpu/after_restart.py --folder /mnt/nvme0 --json result.json

The peer is vLLM's OffloadingConnector with its own scheduler, host tier and file-system tier; only its copies
between pages and host memory are this folder's ``cpu_tiering_spec``, as vLLM has none for its CPU engine.
Both write below the same directory (O_DIRECT), both with the same chunk.

Each system first stores every prompt's first part; then, in each round, each one in turn is started anew and
gets the same prompts: some one after the other (time to first token), the others at once (seconds for all).
The last part of a prompt is new in every round. Medians over all rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import engines

from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

BLOCKS_PER_CHUNK = 4
BLOCK_TOKENS = 32
SYSTEMS = ("recomputing", "vLLM's fs tier", "Tutti")


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure; return for each system all figures of all rounds."""
    model = TinyModel()
    path = make_tiny_model(folder / "model", model)
    chance = random.Random(arguments.seed)
    chunk = BLOCKS_PER_CHUNK * BLOCK_TOKENS
    stored = int(arguments.prompt * arguments.hit) // chunk * chunk

    def fresh(count: int) -> list[int]:
        return [chance.randrange(3, model.vocabulary) for _ in range(count)]

    heads = [fresh(stored) for _ in range(2 * arguments.prompts)]
    roots = {name: folder / f"store-{number}" for number, name in enumerate(SYSTEMS)}
    connectors: dict[str, dict[str, Any] | None] = {
        "recomputing": None,
        "Tutti": engines.tutti(roots["Tutti"], blocks_per_chunk=BLOCKS_PER_CHUNK),
        "vLLM's fs tier": engines.offloading(
            roots["vLLM's fs tier"],
            host_bytes=arguments.host_mib << 20,
            blocks_per_chunk=BLOCKS_PER_CHUNK,
        ),
    }
    blocks = (arguments.prompt // BLOCK_TOKENS + 2) * (arguments.prompts + 1)
    options = {"max_model_len": arguments.prompt + 64, "num_gpu_blocks_override": blocks}

    def started(name: str) -> engines.EngineProcess:
        engine = engines.EngineProcess(path, connectors[name], **options)
        engine.ask([fresh(200), fresh(300)], 4, at_once=True)
        return engine

    for name in SYSTEMS[1:]:
        roots[name].mkdir()
        print(f"{name}: storing {len(heads)} prompts", file=sys.stderr, flush=True)
        with started(name) as engine:
            for head in heads:
                engine.ask([head], 1, at_once=False)
                engines.wait_for_quiet(roots[name])
    figures: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in SYSTEMS}
    tokens: list[list[list[int]]] = []
    for number in range(arguments.rounds):
        prompts = [head + fresh(arguments.prompt - stored) for head in heads]
        for name in SYSTEMS[number % 3 :] + SYSTEMS[: number % 3]:
            with started(name) as engine:
                one = engine.ask(prompts[: arguments.prompts], 4, at_once=False)
                many = engine.ask(prompts[arguments.prompts :], 4, at_once=True)
            figures[name]["first_token_seconds"] += one.first_token_seconds
            figures[name]["all_seconds"].append(many.seconds)
            figures[name]["hit_tokens"] += [*one.hit_tokens, *many.hit_tokens]
            tokens.append(one.tokens + many.tokens)
            first = statistics.median(one.first_token_seconds)
            print(
                f"round {number + 1}, {name}: first token {first:.3f} s, all at once {many.seconds:.3f} s",
                file=sys.stderr,
                flush=True,
            )
        identical = all(each == tokens[-1] for each in tokens[-3:])
        if not identical:
            print("the systems' answers differ", file=sys.stderr, flush=True)
    return {
        "prompt_tokens": arguments.prompt,
        "stored_tokens": stored,
        "systems": figures,
        "identical_tokens": all(
            tokens[n] == tokens[n + 1] == tokens[n + 2] for n in range(0, len(tokens), 3)
        ),
    }


def main() -> int:
    """Measure and print; 1 if a token differs or one of the stores gave no hit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=6, help="one after the other, and as many at once")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--hit", type=float, default=0.9, help="part of a prompt that is stored")
    parser.add_argument("--host-mib", type=int, default=256, help="the peer's host tier")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where stores are made; default: a temporary directory")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tutti-restart-", dir=arguments.folder) as folder:
        result = run(Path(folder), arguments)
    systems = result["systems"]
    print(
        f"| after a restart, {result['prompt_tokens']} tokens, {result['stored_tokens']} stored | hit tokens"
        f" | first token | {arguments.prompts} at once |\n| --- | ---: | ---: | ---: |"
    )
    for name in SYSTEMS:
        each = systems[name]
        print(
            f"| {name} | {statistics.median(each['hit_tokens']):,.0f} "
            f"| {statistics.median(each['first_token_seconds']) * 1e3:,.0f} ms "
            f"| {statistics.median(each['all_seconds']) * 1e3:,.0f} ms |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    hits = all(min(systems[name]["hit_tokens"]) > 0 for name in SYSTEMS[1:])
    return 0 if result["identical_tokens"] and hits else 1


if __name__ == "__main__":
    sys.exit(main())
