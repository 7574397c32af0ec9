# SPDX-License-Identifier: Apache-2.0
"""What a connector's callbacks cost in a real engine's steps that only decode, beside one that does nothing.

    python benchmarks/engine_step.py [--json FILE]

vLLM's CPU engine with a small model answers short prompts, with no connector, with one that does nothing and
with Tutti; each runs in a process of its own, in turns. Nothing completes a chunk. The same calls in a loop
(``scheduler_time.py``) cost a quarter: in an engine the model's own data has driven theirs from the
processor's caches. Medians in microseconds a step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CALLBACKS = (
    "build_connector_meta",
    "update_connector_output",
    "get_kv_connector_stats",
    "take_events",
    "handle_preemptions",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "build_connector_worker_meta",
    "clear_connector_metadata",
)
KINDS = ("alone", "nothing", "tutti")


def timed(into: list[float], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback that notes how long each call takes."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        answer = call(*args, **kwargs)
        into.append(time.perf_counter() - begin)
        return answer

    return wrapped


def connector(kind: str, root: Path) -> dict[str, Any] | None:
    """Return a kind's ``kv_transfer_config``."""
    import engines

    if kind == "alone":
        return None
    if kind == "nothing":
        names = {"kv_connector": "NothingConnector", "kv_connector_module_path": "nothing_connector"}
        return {**names, "kv_role": "kv_both"}
    return engines.tutti(root, 1 << 30)


def measure(kind: str, requests: int, tokens: int, layers: int) -> dict[str, float]:
    """Run an engine in this process; return microseconds a step, by callback and side."""
    sys.path.insert(0, str(HERE / "serving_cpu"))
    from vllm import LLM, SamplingParams
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from tutti_vllm.testing.tiny_model import TinyModel, make_tiny_model

    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        model = TinyModel(layers=layers, hidden=128, heads=2, kv_heads=2, intermediate=256)
        config = connector(kind, Path(folder) / "store")
        llm = LLM(
            model=str(make_tiny_model(Path(folder) / "model", model)),
            dtype="float32",
            block_size=32,
            max_model_len=512,
            num_gpu_blocks_override=512,
            max_num_seqs=requests,
            enforce_eager=True,
            skip_tokenizer_init=True,
            disable_log_stats=False,
            **({} if config is None else {"kv_transfer_config": config}),
        )
        core: Any = llm.llm_engine.engine_core.engine_core
        prompts = [
            {"prompt_token_ids": [chance.randrange(3, model.vocabulary) for _ in range(12)]}
            for _ in range(requests)
        ]
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        llm.generate(prompts, sampling, use_tqdm=False)
        times: dict[str, list[float]] = {}
        sides = {} if config is None else {"S": core.scheduler.connector, "W": get_kv_transfer_group()}
        for side, one in sides.items():
            for name in CALLBACKS:
                into = times.setdefault(f"{side} {name}", [])
                setattr(one, name, timed(into, getattr(one, name)))
        for name, owner in (("schedule", core.scheduler), ("update_from_output", core.scheduler)):
            into = times.setdefault(f"vLLM {name}", [])
            setattr(owner, name, timed(into, getattr(owner, name)))
        llm.generate(prompts, sampling, use_tqdm=False)
        steps = len(times["vLLM schedule"])
        found = {
            name: statistics.median(each) * len(each) / steps * 1e6 for name, each in times.items() if each
        }
        core.shutdown()
    return found


def main() -> None:
    """Measure all kinds in turns and print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100, help="of each answer; a chunk takes 128 or more")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.only:
        found = measure(options.only, options.requests, options.tokens, options.layers)
        print("found " + json.dumps(found), flush=True)
        return
    results: dict[str, list[dict[str, float]]] = {kind: [] for kind in options.kinds}
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    sizes = [f"--{name}={getattr(options, name)}" for name in ("requests", "tokens", "layers")]
    for turn in range(options.turns):
        for kind in options.kinds:
            print(f"turn {turn + 1} of {options.turns}: {kind}", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, "--only", kind, *sizes]
            environment = settings | os.environ
            done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
            if not lines:
                raise SystemExit(f"{kind} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
            results[kind].append(json.loads(lines[-1].removeprefix("found ")))
    for kind, runs in results.items():
        shown = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}
        own = {name: us for name, us in shown.items() if not name.startswith("vLLM")}
        print(f"{kind}: callbacks {sum(own.values()):.1f} us a step")
        print("  " + ", ".join(f"{name} {us:.1f}" for name, us in shown.items() if us >= 0.5))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
