# SPDX-License-Identifier: Apache-2.0
"""What loads and stores cost a step of vLLM's CPU engine, by the ways in which they can be done.

    python benchmarks/step_time.py [--json FILE] [--root FOLDER]

One engine runs all of it, so that the ways meet the same machine; they take turns, and medians are printed.

Hits: time to first token of a stored prefix and a fresh tail, computed anew, loaded beside the steps
(``async``) and waited for in the step (``layerwise``). Storing: how long a step that completes chunks waits
for their copy, as a share of that step. A copy made later, or layer by layer, could gain no more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from tutti_vllm.scheduler_side.load_mode import LoadChooser, LoadRules
from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

MODEL = TinyModel()
WAYS = ("computed", "async", "layerwise")


class Bench:
    """An engine, and the connector inside of it."""

    def __init__(self, folder: Path, root: Path, longest: int) -> None:
        from vllm import LLM
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.llm = LLM(
            model=str(folder),
            dtype="float32",
            block_size=32,
            max_model_len=longest + 64,
            num_gpu_blocks_override=2 * longest // 32 + 64,
            max_num_batched_tokens=2048,
            enforce_eager=True,
            skip_tokenizer_init=True,
            kv_transfer_config={
                "kv_connector": "TuttiConnectorV1",
                "kv_connector_module_path": "tutti_vllm.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "capacity_bytes": 8 << 30,
                    "root": str(root),
                    "strict": True,
                    "break_even": False,
                },
            },
        )
        self.core: Any = self.llm.llm_engine.engine_core.engine_core
        self.side: Any = self.core.scheduler.connector._scheduler
        self.worker: Any = get_kv_transfer_group()
        self._source = random.Random(11)

    def tokens(self, count: int) -> list[int]:
        """Return tokens that no prompt had before."""
        return [self._source.randrange(3, MODEL.vocabulary) for _ in range(count)]

    def answer(self, prompt: list[int], way: str = "computed") -> float:
        """Return the seconds to the first token; nothing of the prompt is in memory before."""
        from vllm import SamplingParams

        assert self.llm.reset_prefix_cache()
        computed = way == "computed"
        mode = "async" if computed else way
        self.side._chooser = LoadChooser(self.side.engine.break_even, LoadRules(mode=mode, break_even=False))
        sampling = SamplingParams(
            temperature=0, max_tokens=1, detokenize=False, skip_reading_prefix_cache=computed
        )
        start = time.perf_counter()
        self.llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        ordered = {} if computed else self.side._chooser.counters.snapshot()
        assert computed or ordered == {f"{way}_loads": 1}, ordered
        while self.core.scheduler.has_requests():
            self.core.step_fn()
        return seconds


def measure_hits(bench: Bench, prefix: int, tail: int, runs: int) -> dict[str, float]:
    """Return the median time to first token of each way."""
    stem = bench.tokens(prefix)
    bench.answer(stem)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for run in range(runs + 1):
        for way in WAYS:
            seconds = bench.answer([*stem, *bench.tokens(tail)], way)
            if run:  # the first round warms up
                found[way].append(seconds)
    return {way: statistics.median(times) for way, times in found.items()}


def measure_stores(bench: Bench, length: int, runs: int) -> dict[str, float]:
    """Return the median seconds of steps that complete chunks, and of their copies."""
    steps: list[float] = []
    copies: list[float] = []
    finish = bench.worker.wait_for_save
    step = bench.core.model_executor.execute_model

    def timed_copy() -> None:
        start = time.perf_counter()
        finish()
        copies[-1] += time.perf_counter() - start

    def timed_step(output: Any, **how: Any) -> Any:
        copies.append(0.0)
        start = time.perf_counter()
        result = step(output, **how)
        steps.append(time.perf_counter() - start)
        if not output.kv_connector_metadata.orders.stores:
            del copies[-1], steps[-1]
        return result

    bench.worker.wait_for_save, bench.core.model_executor.execute_model = timed_copy, timed_step
    for _ in range(runs):
        bench.answer(bench.tokens(length))
    del bench.worker.wait_for_save, bench.core.model_executor.execute_model
    return {"step": statistics.median(steps), "copy": statistics.median(copies), "steps": float(len(steps))}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--prefixes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--tails", type=int, nargs="*", default=[32, 512])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--root", type=Path, help="folder of the store; a temporary one by default")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    longest = max(options.prefixes) + max(options.tails)
    with tempfile.TemporaryDirectory(dir=options.root) as folder:
        model = make_tiny_model(Path(folder) / "model", MODEL)
        print("starting the engine", file=sys.stderr)
        bench = Bench(model, Path(folder) / "store", longest)
        stores = measure_stores(bench, max(options.prefixes), options.runs)
        hits = {}
        print("| prefix | tail | " + " | ".join(WAYS) + " |")
        print("| ---: | ---: | ---: | ---: | ---: |")
        for prefix in options.prefixes:
            for tail in options.tails:
                print(f"{prefix} and {tail} tokens", file=sys.stderr)
                found = hits[f"{prefix}+{tail}"] = measure_hits(bench, prefix, tail, options.runs)
                times = " | ".join(f"{found[way] * 1e3:,.1f} ms" for way in WAYS)
                print(f"| {prefix:,} | {tail:,} | {times} |")
        share = stores["copy"] / stores["step"]
        print(
            f"storing: {stores['copy'] * 1e3:.2f} ms of a step of {stores['step'] * 1e3:.1f} ms "
            f"are the copy, {100 * share:.2f} % (median of {stores['steps']:.0f} steps)"
        )
        bench.core.shutdown()
    if options.json:
        options.json.write_text(json.dumps({"hits": hits, "stores": stores}, indent=2) + "\n")


if __name__ == "__main__":
    main()
