# SPDX-License-Identifier: Apache-2.0
"""The other end of ``tools.engine_process``: an engine that answers the prompts on its standard input."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tools.engine_process import ANSWER_MARK, Answer, EngineSpec, store_directory

SETTLE_SECONDS = 5.0
ENDINGS = ("load_chunks", "load_failed_chunks", "store_chunks", "store_failed_chunks", "store_dropped_chunks")


def settle(llm: Any) -> None:
    """Step an idle engine of this process while something is left, as one in a process of its own does."""
    core: Any = getattr(llm.llm_engine.engine_core, "engine_core", None)
    while hasattr(core, "step_fn") and core.scheduler.has_requests():
        core.step_fn()


def read_totals(spec: EngineSpec) -> dict[str, int]:
    """Return the store's lifetime counters."""
    from tutti_engine.catalogue.catalogue import read_counters

    store = None if spec.root is None else store_directory(spec.root)
    return {} if store is None else read_counters(store)


def settled_totals(spec: EngineSpec, prompt: Sequence[int], before: dict[str, int]) -> dict[str, int]:
    """Return the counters once every whole chunk of a new prompt is loaded or stored, or after a while."""
    store = None if spec.root is None else store_directory(spec.root)
    if store is None:
        return {}
    facts = json.loads((store / "namespace.json").read_text(encoding="utf-8"))["facts"]
    chunks = (len(prompt) - 1) // (facts["blocks_per_chunk"] * facts["block_tokens"])
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        after = read_totals(spec)
        ended = sum(after.get(name, 0) - before.get(name, 0) for name in ENDINGS)
        if ended >= chunks or time.monotonic() > deadline:
            return after
        time.sleep(0.02)


def main() -> None:
    """Read a spec and prompts, one JSON line each; print one line an answer."""
    from vllm import LLM, SamplingParams

    spec = EngineSpec(**json.loads(sys.stdin.readline()))
    llm = LLM(**spec.arguments())
    before = read_totals(spec)
    for line in sys.stdin:
        request = json.loads(line)
        sampling = SamplingParams(
            temperature=0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False
        )
        (output,) = llm.generate({"prompt_token_ids": request["prompt"]}, sampling, use_tqdm=False)
        settle(llm)
        after = settled_totals(spec, request["prompt"], before)
        answer = Answer(
            tokens=list(output.outputs[0].token_ids),
            hit_tokens=output.num_cached_tokens or 0,
            seconds=output.metrics.first_token_latency,
            counters={name: after[name] - before.get(name, 0) for name in after},
        )
        print(ANSWER_MARK + json.dumps(asdict(answer)), flush=True)
        before = after


if __name__ == "__main__":
    main()
