# SPDX-License-Identifier: Apache-2.0
"""What the connector costs where nothing is ever found: throughput with it, stores included, and without.

    python packages/tutti-vllm/benchmarks/serving_cpu/no_hits.py --json result.json

Two engines of the same model, one with Tutti and one without, take turns on the same fresh prompts, the first
of a round last in the next. Medians; target: at least 98 % of vLLM alone. What a batch stores is written
while it runs, except its last chunks, for which the next turn waits.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import engines

from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

TARGET = 0.98


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure; return medians in tokens a second."""
    model = TinyModel()
    path = make_tiny_model(folder / "model", model)
    chance = random.Random(arguments.seed)
    options = {"max_model_len": 4096, "num_gpu_blocks_override": 512}

    def batch() -> list[list[int]]:
        lengths = [chance.randrange(arguments.prompt // 2, arguments.prompt) for _ in range(arguments.batch)]
        return [[chance.randrange(3, model.vocabulary) for _ in range(length)] for length in lengths]

    rates: dict[str, list[float]] = {"alone": [], "tutti": []}
    ratios: list[float] = []
    identical = True
    with (
        engines.EngineProcess(path, None, **options) as alone,
        engines.EngineProcess(path, engines.tutti(folder / "cache"), **options) as tutti,
    ):
        # The first round warms both up.
        for number in range(arguments.rounds + 1):
            prompts = batch()
            order = [("alone", alone), ("tutti", tutti)]
            answers = {}
            for name, engine in order if number % 2 else order[::-1]:
                answers[name] = engine.ask(prompts, arguments.answer, at_once=True)
                engines.wait_for_quiet(folder / "cache")
            tokens = sum(map(len, prompts)) + arguments.batch * arguments.answer
            identical &= answers["alone"].tokens == answers["tutti"].tokens
            assert not any(answers["tutti"].hit_tokens), "a prompt was found although it is new"
            if not number:
                continue
            rates["alone"].append(tokens / answers["alone"].seconds)
            rates["tutti"].append(tokens / answers["tutti"].seconds)
            ratios.append(rates["tutti"][-1] / rates["alone"][-1])
            print(
                f"round {number}: alone {rates['alone'][-1]:.0f}, tutti {rates['tutti'][-1]:.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    from tutti_engine.catalogue.catalogue import read_counters

    (store,) = {each.parent for each in (folder / "cache").glob("*/namespace.json")}
    return {
        "tokens_a_second": {name: statistics.median(values) for name, values in rates.items()},
        "rounds": rates,
        "ratio_of_medians": statistics.median(rates["tutti"]) / statistics.median(rates["alone"]),
        "median_of_ratios": statistics.median(ratios),
        "identical_tokens": identical,
        "counters": read_counters(store),
    }


def main() -> int:
    """Measure and print; 1 if a token differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8, help="prompts at a time")
    parser.add_argument("--prompt", type=int, default=1024, help="longest prompt; the shortest is half of it")
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the store is made; default: a temporary directory")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tutti-no-hits-", dir=arguments.folder) as folder:
        result = run(Path(folder), arguments)
    print("| | tokens/s | of vLLM alone |\n| --- | ---: | ---: |")
    for name, rate in result["tokens_a_second"].items():
        print(f"| {name} | {rate:,.0f} | {rate / result['tokens_a_second']['alone']:.1%} |")
    print(f"median of the rounds' ratios: {result['median_of_ratios']:.1%} (target {TARGET:.0%})")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if result["identical_tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
